"""The main job with nothing of ours but the mutex: vsftpd, curl with a deadline, a link of 40 Mbit/s in the kernel.

32 hosts fetch one file each, as their crontabs would: three times curl with `--max-time`, from zero each time. All
together they want 1.6 times what the link carries within one deadline.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ftp.link import Link, link

pytestmark = [pytest.mark.needs("root", "netns", "tc", "vsftpd", "curl"), pytest.mark.slow, pytest.mark.timeout(240)]

CLIENTS, SLOTS = 32, 2
CAPACITY_MBIT_S = 40.0
SIZE = 2_000_000
DEADLINE_S = 8
PATIENCE_S = 120.0
SOFTMUTEX = str(Path(sys.executable).with_name("softmutex"))
CRON = 'for try in 1 2 3; do "$@" && exit 0; done; exit 1'


@dataclass
class Outcome:
    finished: int
    goodput_mbit_s: float
    wasted: int


def fetch_all(way: Link, before: Sequence[str], environ: dict[str, str]) -> Outcome:
    """All clients at once; `before` is what each puts before its curl."""
    curl = ["curl", "-s", "-o", "/dev/null", "-w", "%{size_download}\n", "--max-time", str(DEADLINE_S), way.url]
    began = time.monotonic()
    clients = [
        subprocess.Popen(
            [*way.within, "sh", "-c", CRON, "cron", *before, *curl], stdout=subprocess.PIPE, text=True, env=environ
        )
        for _ in range(CLIENTS)
    ]
    try:
        said = [client.communicate(timeout=PATIENCE_S)[0] for client in clients]
    finally:
        for client in clients:
            client.kill()
            client.wait()
    took_s = time.monotonic() - began
    finished = sum(client.returncode == 0 for client in clients)
    came = sum(int(line) for text in said for line in text.split())
    return Outcome(finished, finished * SIZE * 8 / 1e6 / took_s, came - finished * SIZE)


@pytest.fixture
def way() -> Iterator[Link]:
    with link(CAPACITY_MBIT_S, SIZE) as made:
        yield made


def test_who_takes_turns_all_get_their_file_in_time_and_who_does_not_mostly_throws_away(way: Link, tmp_path: Path):
    environ = {**os.environ, "SOFTMUTEX_MEMBERSHIP": f"local://cron?directory={tmp_path}"}
    turns = [SOFTMUTEX, "run", "-q", "-n", "ftp", "--slots", str(SLOTS), "--"]
    together = fetch_all(way, [], environ)
    in_turn = fetch_all(way, turns, environ)
    assert in_turn.finished == CLIENTS, in_turn
    assert in_turn.goodput_mbit_s > together.goodput_mbit_s
    assert in_turn.wasted * 10 < together.wasted > CLIENTS * SIZE // 2  # the link shares unevenly: all may finish, late
