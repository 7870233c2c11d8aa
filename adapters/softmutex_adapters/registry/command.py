"""`softmutex registry`: starts a registry, says where it is and whose key signs, and stops when it is told to.

Logs are lines of JSON on standard error. Exit codes: 0 after SIGTERM or SIGINT, 69 where it could not start, 64 usage.

What it decides: nobody joins, looks or bans without a token, on this host neither, where others have accounts, too. The
naive way, "it listens on 127.0.0.1 only", trusts every user of the host, and every page in a browser on it. So where no
token file is named, one is made at the first start, beside the store, and told once. The key that signs lists is made
beside it; it is in no store, for who can read that must not be able to speak for the registry.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import resource
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.files import read_secret
from softmutex.ports import CannotOpen
from softmutex.saying import logger
from softmutex.urls import is_loopback, join_address, split_address
from softmutex_adapters.registry import store as stores
from softmutex_adapters.registry import tokens, wire
from softmutex_adapters.registry.guard import Hosts
from softmutex_adapters.registry.hub import GROUPS_MAX, MEMBERS_MAX, TTL_S, Hub
from softmutex_adapters.registry.server import CONNECTIONS_MAX, RATE_ADDRESS, RATE_GROUP, RegistryServer
from softmutex_adapters.transports.addressing import bind

UNAVAILABLE = 69
DEFAULT_LISTEN = "127.0.0.1:9430"
TOKENS, SIGNING_KEY = "softmutex-registry.tokens", "softmutex-registry.key"
log = logger("registry")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}")
    parser.add_argument(
        "--store", default=stores.DEFAULT, metavar="URL", help=f"{', '.join(stores.FORMS)}; default {stores.DEFAULT}"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"who may do what; a line is {tokens.LINE}. Default: {TOKENS} beside the store, made at the first start",
    )
    parser.add_argument(
        "--signing-key",
        metavar="FILE",
        help=f"what signs the lists, the same for all registries of a store. Default: {SIGNING_KEY} beside the store, "
        "made at the first start",
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="what clients call it, besides localhost, its addresses and the names in its certificate; may be repeated",
    )
    parser.add_argument("--cert", metavar="FILE", help="serve TLS with this certificate (PEM)")
    parser.add_argument("--key", metavar="FILE", help="the key of the certificate (PEM)")
    parser.add_argument("--insecure", action="store_true", help="without tokens: whoever can connect may do everything")
    parser.add_argument(
        "--ttl",
        type=float,
        default=TTL_S,
        metavar="S",
        help=f"a silent member is dropped after S seconds; default {TTL_S:g}",
    )
    for name, default, what in (
        ("members-max", MEMBERS_MAX, "members of one group"),
        ("groups-max", GROUPS_MAX, "groups"),
        ("connections-max", CONNECTIONS_MAX, "open connections"),
        ("rate-address", RATE_ADDRESS, "requests a second of one address"),
        ("rate-group", RATE_GROUP, "requests a second for one group"),
    ):
        parser.add_argument(
            f"--{name}", type=type(default), default=default, metavar="N", help=f"{what}; default {default:g}"
        )


def main(arguments: argparse.Namespace) -> int:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # it tells of every stranger who speaks no HTTP
    try:
        check(arguments)
        return run(serve(arguments))
    except ConfigError:
        raise
    except SoftMutexError as error:
        sys.stderr.write(f"softmutex registry: {error}\n")
        return UNAVAILABLE


def run(work: Any) -> int:
    try:
        import uvloop
    except ImportError:
        return int(asyncio.run(work))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return int(runner.run(work))


def check(arguments: argparse.Namespace) -> None:
    if bool(arguments.cert) != bool(arguments.key):
        raise ConfigError("--cert and --key belong together: give both, or none and let a proxy do TLS.")
    if not 1.0 <= arguments.ttl <= 3600.0:
        raise ConfigError(f"--ttl {arguments.ttl:g} is not between 1 and 3600 seconds.")
    host, _ = listen_address(arguments.listen)
    if not (arguments.cert or is_loopback(host)):
        log.warning(
            "tokens and lists travel in plain text. Give --cert and --key, or listen on 127.0.0.1 behind a proxy"
        )


def listen_address(listen: str) -> tuple[str, int]:
    try:
        return split_address(listen, default_host="127.0.0.1", default_port=9430)
    except ValueError as error:
        raise ConfigError(f"--listen: {error}. Write host:port.") from None


def beside_store(arguments: argparse.Namespace, name: str) -> str:
    """The store's directory, where it is a file; else the working directory."""
    path = arguments.store.removeprefix("sqlite:").removeprefix("//")
    folder = os.path.dirname(path) if path != arguments.store else ""
    if folder and not os.path.isdir(folder):
        raise CannotOpen(f"--store {arguments.store}: the directory {folder} of the store is not there. Make it.")
    return os.path.join(folder, name)


def read_tokens(arguments: argparse.Namespace) -> tokens.Tokens:
    """Made, and told, where none is named and none is there."""
    if arguments.token_file:
        return tokens.Tokens.from_file(arguments.token_file)
    if arguments.insecure:
        return tokens.Tokens()
    path = beside_store(arguments, TOKENS)
    made = tokens.make_file(path)
    if made is not None:
        sys.stdout.write(
            f"softmutex registry: made the tokens in {path}, which are shown this once:\n"
            f"  join   {made['join']}   for members: in a file, named by ?token_file=FILE\n"
            f"  read   {made['read']}   for who looks at the page\n"
            f"  admin  {made['admin']}   for softmutex ban and softmutex identity\n"
        )
    return tokens.Tokens.from_file(path)


def read_signer(arguments: argparse.Namespace) -> wire.Signer:
    path = arguments.signing_key or beside_store(arguments, SIGNING_KEY)
    with contextlib.suppress(FileExistsError):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            why = f"no signing key can be made at {path} ({error.strerror}). Name a file: --signing-key FILE."
            raise CannotOpen(why) from None
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{wire.to_text(secrets.token_bytes(32))}\n")
    try:
        return wire.Signer(wire.from_text(read_secret(path, "signing key").decode("ascii", "replace"), 32))
    except ValueError:  # which would show it
        raise ConfigError(
            f"the signing key {path} is not 32 bytes in base 64. Copy it again, or name another: --signing-key FILE."
        ) from None


def own_names(arguments: argparse.Namespace) -> Iterator[str]:
    yield from arguments.host
    yield listen_address(arguments.listen)[0]
    yield socket.gethostname()
    if arguments.cert:
        yield from names_in(Path(arguments.cert))


def names_in(certificate: Path) -> Iterator[str]:
    from cryptography import x509

    with contextlib.suppress(OSError, ValueError, x509.ExtensionNotFound):
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        yield from names.get_values_for_type(x509.DNSName)


async def serve(arguments: argparse.Namespace) -> int:
    limits = {"members_max": arguments.members_max, "groups_max": arguments.groups_max}
    store = stores.open_store(arguments.store)
    hub = Hub(store, read_signer(arguments), ttl_s=arguments.ttl, **limits)
    server = RegistryServer(
        hub,
        tokens=read_tokens(arguments),
        hosts=Hosts(own_names(arguments)),
        connections_max=arguments.connections_max,
        rate_address=arguments.rate_address,
        rate_group=arguments.rate_group,
    )
    raise_descriptors()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tls = read_certificate(arguments.cert, arguments.key) if arguments.cert else None
    scheme = "https" if tls else "http"
    bound = await bind(*listen_address(arguments.listen), socket.SOCK_STREAM, f"{scheme}://{arguments.listen}")
    try:
        await hub.open()
        await server.start(bound, tls)
    except BaseException:
        bound.close()
        await server.stop()
        raise
    url = f"{scheme}://{join_address(*bound.getsockname()[:2])}"
    log.info("listening", extra={"fields": {"url": url, "public_key": hub.signer.public, "groups": len(hub.groups)}})
    if not server.tokens:
        log.warning("insecure: whoever can connect may join, look and ban")
    sys.stdout.write(f"softmutex registry: {url}  public_key={hub.signer.public}\n")
    sys.stdout.flush()
    await stop.wait()
    log.info("stopping", extra={"fields": {"members": sum(len(group.entries) for group in hub.groups.values())}})
    await server.stop()
    return 0


def read_certificate(cert: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise CannotOpen(
            f"the certificate (--cert {cert} --key {key}) cannot be used: {error}. "
            "Name readable PEM files, a certificate and the key that belongs to it."
        ) from error
    return context


def raise_descriptors() -> None:
    """Each member has one connection or two; the usual 1,024 are for small services."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)
