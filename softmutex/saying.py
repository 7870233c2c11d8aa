"""What the library says in the log: by which part, and made fit to be shown.

    softmutex.node          birth and death of nodes, frames that cannot be handled, what their users should know
    softmutex.group         who is there: deaths, and mutexes that others run otherwise
    softmutex.hold          holds that are lost or take too long, and reactions to that which fail
    softmutex.wandering     what a machine did, by the name of its algorithm: tokens made, lost, discarded (debug)
    softmutex.keys          the group's keys and certificates
    softmutex.loop          a loop that was blocked
    softmutex.observers     observers that fail
    softmutex.membership    directories and registries out of reach
    softmutex.agent         the agent of many jobs
    softmutex.plugins       plug-ins that cannot be used
    softmutex.registry, softmutex.slurm, softmutex.celery, softmutex.dask       the servers and plug-ins of that name

What it decides: names come from peers, and are written as in a literal of Python, here, once, for every line that any
module logs. The naive way, to think of it wherever a name is logged, forgets it in one place, and there a peer writes
lines of its own into the log of its neighbours, and sequences that their terminals obey. A filter of `softmutex` alone
would not do: `logging` asks the filters of the logger that a line was given to, and not those above it.
"""

from __future__ import annotations

import logging

from softmutex.core.names import printable


class Printable(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        try:
            said = record.getMessage()
        except Exception:  # a line that cannot be put together is told of by `logging` itself
            return True
        if not said.isprintable():
            record.msg, record.args = printable(said), ()
        return True


def logger(part: str) -> logging.Logger:
    """That of one part of the library."""
    found = logging.getLogger(f"softmutex.{part}")
    if not any(isinstance(each, Printable) for each in found.filters):
        found.addFilter(Printable())
    return found
