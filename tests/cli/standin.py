"""`softmutex run` with a stand-in for the agent: what the front does, told apart from what the mutex does.

    python standin.py DIRECTORY [--end-when-lost] [--grace S] -- COMMAND ...

The stand-in does what the test orders by making files in DIRECTORY: `grant`, `fail`, `lose`, `overrun`, `crash`.
What the front tells it is written to DIRECTORY/heard, one kind a line.
"""

import argparse
import os
import socket
import sys
import time
from pathlib import Path

from softmutex.agent.link import NOT_ACQUIRED, Lines, pack
from softmutex.cli import command, supervise

ORDERS = {
    "grant": pack("granted", turn=1),
    "fail": pack("failed", code=NOT_ACQUIRED, why="not acquired"),
    "lose": pack("lost", why="lost"),
    "overrun": pack("overrun", why="held for too long", end=True),
}


def serve(link: socket.socket, orders: Path) -> None:
    lines, given = Lines(), set()
    link.settimeout(0.005)
    with (orders / "heard").open("a", buffering=1) as heard:
        while True:
            if (orders / "crash").exists():
                os._exit(1)
            for name, message in ORDERS.items():
                if name not in given and (orders / name).exists():
                    given.add(name)
                    link.sendall(message)
            try:
                chunk = link.recv(4096)
            except TimeoutError:
                continue
            for message in lines.feed(chunk):
                heard.write(" ".join(str(value) for value in message.values()) + "\n")
                if message["is"] == "take":
                    link.sendall(pack("go", epoch=7))
                if message["is"] == "done":
                    while (orders / "dawdle").exists():
                        time.sleep(0.005)
                    return
            if not chunk:
                heard.write("eof\n")
                return


def say(text: str) -> None:
    sys.stderr.write(f"softmutex: {text}\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("orders", type=Path)
    parser.add_argument("--end-when-lost", action="store_true")
    parser.add_argument("--grace", type=float, default=5.0)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    job = supervise.Job(
        given.command,
        command.find(given.command[0]),
        lambda epoch, trace: {**os.environ, "SOFTMUTEX_EPOCH": str(epoch)},
        given.end_when_lost,
        given.grace,
        say,
        say,
    )
    return supervise.run(job, lambda link: serve(link, given.orders)).die()


if __name__ == "__main__":
    sys.exit(main())
