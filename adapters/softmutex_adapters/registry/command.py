"""`softmutex registry`: starts a registry, says where it is and whose key signs, and stops when it is told to.

Logs are lines of JSON on standard error. Exit codes: 0 after SIGTERM or SIGINT, 69 where it could not start, 64 usage.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import json
import logging
import resource
import signal
import socket
import ssl
import sys
import time
from typing import Any

from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.ports import CannotOpen
from softmutex.urls import join_address, split_address
from softmutex_adapters.registry import store as stores
from softmutex_adapters.registry.guard import Tokens
from softmutex_adapters.registry.hub import GROUPS_MAX, MEMBERS_MAX, TTL_S, Hub
from softmutex_adapters.registry.server import CONNECTIONS_MAX, RATE_ADDRESS, RATE_GROUP, RegistryServer
from softmutex_adapters.transports.addressing import bind

UNAVAILABLE = 69
DEFAULT_LISTEN = "127.0.0.1:9430"
log = logging.getLogger("softmutex.registry")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}")
    parser.add_argument(
        "--store", default=stores.DEFAULT, metavar="URL", help=f"{', '.join(stores.FORMS)}; default {stores.DEFAULT}"
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="who may come in; a line is TOKEN (all groups) or GROUP TOKEN"
    )
    parser.add_argument("--cert", metavar="FILE", help="serve TLS with this certificate (PEM)")
    parser.add_argument("--key", metavar="FILE", help="the key of the certificate (PEM)")
    parser.add_argument("--insecure", action="store_true", help="without tokens, though other hosts can connect")
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
    if not (arguments.token_file or arguments.insecure or is_loopback(host)):
        raise ConfigError(
            f"--listen {arguments.listen} can be reached from other hosts, and there is no token. Give "
            "--token-file FILE ((umask 077; head -c 24 /dev/urandom | base64 > FILE)), or --insecure where "
            "everybody there may join."
        )
    if not (arguments.cert or is_loopback(host)):
        log.warning(
            "tokens and lists travel in plain text. Give --cert and --key, or listen on 127.0.0.1 behind a proxy"
        )


def listen_address(listen: str) -> tuple[str, int]:
    try:
        return split_address(listen, default_host="127.0.0.1", default_port=9430)
    except ValueError as error:
        raise ConfigError(f"--listen: {error}. Write host:port.") from None


def is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


async def serve(arguments: argparse.Namespace) -> int:
    tokens = Tokens.from_file(arguments.token_file) if arguments.token_file else Tokens()
    limits = {"members_max": arguments.members_max, "groups_max": arguments.groups_max}
    hub = Hub(stores.open_store(arguments.store), ttl_s=arguments.ttl, **limits)
    server = RegistryServer(
        hub,
        tokens=tokens,
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
