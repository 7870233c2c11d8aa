"""The mutex without asyncio: `from softmutex import sync`.

    with sync.SoftMutex("rsync", timeout=60) as hold:
        subprocess.run(cmd, check=True)

The options are those of `softmutex.SoftMutex`. All nodes of a process that are used in this way live on one background
thread, which is there only as long as one of them is. `hold.lost` is a `threading.Event`.
"""

from softmutex.runtime.blocking import BlockingHold as Hold
from softmutex.runtime.sync import Node, SoftMutex

__all__ = ["Hold", "Node", "SoftMutex"]
