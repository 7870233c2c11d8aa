"""`softmutex lead -n NAME -- COMMAND ...`: runs COMMAND on whoever leads, and elsewhere when that one dies.

    softmutex lead -n indexer -- index-forever

Started on every member: one runs its COMMAND, the others wait for the office. All else is as with `softmutex run`: the
flags, the signals, the exit codes, for to lead is to hold a mutex whose algorithm is an election. Two things differ
where nothing is said: --algorithm is bully (or give ring), and --on-lost is term, for a leader that is none any more
should stop.
"""

from __future__ import annotations

import argparse

from softmutex.cli import run
from softmutex.runtime.leading import election, mutex_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    run.add_arguments(parser)
    parser.usage = "softmutex lead -n NAME [flags] -- COMMAND [ARGUMENT ...]"


def main(arguments: argparse.Namespace) -> int:
    arguments.name = mutex_of(arguments.name)
    arguments.algorithm = election(arguments.algorithm)
    arguments.on_lost = arguments.on_lost or "term"
    return run.main(arguments)
