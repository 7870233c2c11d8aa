"""The name server of a cluster, as far as a headless service needs one: the addresses are those in a file, now.

python -m tests.schedulers.cluster_dns ADDRESS NAME FILE
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.contracts.name_server import NameServer


class Cluster(NameServer):
    def __init__(self, host: str, name: str, file: Path) -> None:
        super().__init__(host, 53)
        self._name, self._file = name, file

    def answer(self, question: bytes, most: int) -> bytes:
        self.addresses = {self._name: self._file.read_text().split()}
        return super().answer(question, most)


async def main(host: str, name: str, file: str) -> None:
    async with Cluster(host, name, Path(file)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
