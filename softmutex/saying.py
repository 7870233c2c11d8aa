"""What the library says in the log, made fit to be shown.

What it decides: names come from peers, and are written as in a literal of Python, here, once, for every line that any
module logs. The naive way, to think of it wherever a name is logged, forgets it in one place, and there a peer writes
lines of its own into the log of its neighbours, and sequences that their terminals obey.
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


log = logging.getLogger("softmutex")
log.addFilter(Printable())
