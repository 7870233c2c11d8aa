"""As on several hosts: each process has a port of its own, a list of the others, and the group's key.

Here the "hosts" are three processes on this machine.
"""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from softmutex import SoftMutex


async def host(port: str, hosts: str) -> None:
    async with SoftMutex(
        "nightly-ftp",
        transport=f"udp://127.0.0.1:{port}",  # on real hosts udp://0.0.0.0:9431
        membership=f"static://{hosts}",  # on real hosts static://ftp1:9431,ftp2:9431,ftp3:9431
        timeout=40,
    ) as hold:
        print(f"port {port} uploads, knowing {hold.peers} others", flush=True)
        await asyncio.sleep(0.05)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    with TemporaryDirectory() as directory:
        key_file = Path(directory) / "key"
        key_file.write_text(os.urandom(32).hex())
        key_file.chmod(0o600)
        ports = free_ports(3)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        environment = {**os.environ, "SOFTMUTEX_KEY_FILE": str(key_file)}
        processes = [subprocess.Popen([sys.executable, __file__, str(port), hosts], env=environment) for port in ports]
        for process in processes:
            if process.wait():
                sys.exit("a host failed")
    print("all three had their turn, one after the other")


if len(sys.argv) > 1:
    asyncio.run(host(*sys.argv[1:]))
else:
    main()
