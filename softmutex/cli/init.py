"""`softmutex init --hosts a,b,c`: all that a group of hosts needs, in one directory that is ready to be copied.

    softmutex init --hosts a.lab,b.lab,c.lab [--directory softmutex-group] [--https] [--port 9431] [--user NAME]

    group.key                 the group's key, 0600
    hosts/NAME.toml           each host's settings; found there as /etc/softmutex/softmutex.toml
    softmutex-agent.service   one node a host, which jobs of --user ask; runs this very interpreter
    certificates/             with --https: an authority, and for each host a certificate of its names and addresses
    inventory.ini, site.yml   the same by Ansible: ansible-playbook -i inventory.ini site.yml
    install                   the same by hand, on each host, as root
    README                    what to do with them

A host is a name, or `name=address` where names are not resolved everywhere: then members use the address. Each file is
made anew or not at all: one that is there already is an error, for a second key would divide the group.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from ipaddress import ip_address
from pathlib import Path
from string import Template
from typing import Final

from softmutex.cli import Mistake
from softmutex.core.errors import ConfigError
from softmutex.runtime.config import SYSTEM_FILE
from softmutex.urls import join_address

PORT: Final = 9431
TEMPLATES: Final = ("softmutex-agent.service", "inventory.ini", "site.yml", "install", "README")
HOME: Final = SYSTEM_FILE.parent


@dataclass(frozen=True)
class GroupHost:
    name: str
    address: str = ""

    @property
    def reached_at(self) -> str:
        return self.address or self.name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", required=True, metavar="A,B,C", help="names, or name=address")
    parser.add_argument("--directory", type=Path, default=Path("softmutex-group"), help="where; softmutex-group")
    parser.add_argument("--port", type=int, default=PORT, help=f"which each host opens; {PORT}")
    parser.add_argument("--group", default="default", help="members of different groups never meet")
    parser.add_argument("--user", help="whose jobs ask the agents; you")
    parser.add_argument("--https", action="store_true", help="by HTTPS instead of UDP, with certificates")


def main(arguments: argparse.Namespace) -> int:
    hosts = read_hosts(arguments.hosts)
    if not 0 < arguments.port < 65536:
        raise Mistake(f"softmutex init: --port {arguments.port}: a port is a number from 1 to 65535")
    where: Path = arguments.directory
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        if left := sorted(each.name for each in where.iterdir()):
            raise ConfigError(
                f"{where} is not empty ({', '.join(left[:3])}): a second key would divide the group. "
                "Choose another --directory, or add a host to membership= in hosts/*.toml and run `install` again."
            )
        write_all(where, hosts, arguments)
    except OSError as error:
        raise ConfigError(f"{where} cannot be written: {error.strerror}.") from None
    sys.stdout.write(f"{where}: ready for {', '.join(host.name for host in hosts)}. Read {where / 'README'}\n")
    return 0


def read_hosts(said: str) -> list[GroupHost]:
    hosts = []
    for part in filter(None, (each.strip() for each in said.split(","))):
        name, _, address = part.partition("=")
        try:
            given = str(ip_address(address)) if address else ""
        except ValueError:
            raise ConfigError(f"--hosts {part}: {address!r} is no address. Write name=10.0.0.1") from None
        if not name or any(not (letter.isalnum() or letter in "-._:") for letter in name):
            raise ConfigError(f"--hosts {part}: {name!r} is no name of a host.")
        hosts.append(GroupHost(name, given))
    if len(hosts) < 2 or len({host.name for host in hosts}) < len(hosts):
        raise ConfigError(f"--hosts {said}: two hosts at least, each once. On one host nothing has to be set up.")
    return hosts


def write_all(where: Path, hosts: list[GroupHost], arguments: argparse.Namespace) -> None:
    from softmutex.runtime import keyfile

    words = words_for(hosts, arguments)
    keyfile.make(where / "group.key")
    (where / "hosts").mkdir()
    for host in hosts:
        write(where / "hosts" / f"{host.name}.toml", settings(host, hosts, arguments), 0o644)
    templates = resources.files("softmutex.cli") / "group"
    for name in TEMPLATES:
        text = Template((templates / name).read_text()).substitute(words)
        write(where / name, text, 0o755 if name == "install" else 0o644)
    if arguments.https:
        from softmutex.cli.certificates import write_certificates

        write_certificates(where / "certificates", {host.name: sorted(names_of(host)) for host in hosts})


def words_for(hosts: list[GroupHost], arguments: argparse.Namespace) -> dict[str, str]:
    import getpass

    return {
        "PYTHON": sys.executable,
        "SOFTMUTEX": f"{sys.executable} -m softmutex",
        "HOME": str(HOME),
        "USER": arguments.user or getpass.getuser(),
        "PORT": str(arguments.port),
        "PROTOCOL": "tcp" if arguments.https else "udp",
        "HOSTS": "\n".join(f"{one.name}{f' ansible_host={one.address}' if one.address else ''}" for one in hosts),
        "FIRST": hosts[0].name,
        "NAMES": " ".join(host.name for host in hosts),
    }


def settings(host: GroupHost, hosts: list[GroupHost], arguments: argparse.Namespace) -> str:
    scheme = "https" if arguments.https else "udp"
    query = f"?cert={HOME}/host.pem&key={HOME}/host.key&ca={HOME}/ca.pem" if arguments.https else ""
    members = ",".join(join_address(one.reached_at, arguments.port) for one in hosts)
    lines = [
        f"# By softmutex init, for {host.name}.",
        f'transport = "{scheme}://0.0.0.0:{arguments.port}{query}"',
        f'membership = "static://{members}"',
        f'key_file = "{HOME}/group.key"',
    ]
    if arguments.https:  # who dials is found by that; a datagram says where it comes from
        lines.append(f'advertise = "https://{join_address(host.reached_at, arguments.port)}"')
    if arguments.group != "default":
        lines.append(f'group = "{arguments.group}"')
    return "\n".join(lines) + "\n"


def names_of(host: GroupHost) -> Iterator[str]:
    """All under which others may reach it: certificates are checked against the name or address that was dialled."""
    yield host.name
    if host.address:
        yield host.address
        return
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host.name, None)}
    except OSError:
        sys.stderr.write(f"softmutex init: {host.name} does not resolve here: its certificate names no address\n")
        return
    yield from (address for address in found if not ip_address(address).is_loopback)


def write(path: Path, text: str, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
