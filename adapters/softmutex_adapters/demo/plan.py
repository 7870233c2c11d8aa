"""The scenario of a demo, in numbers. It travels to the processes as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

MEGA = 1_000_000
FILE = "image.bin"

# What the three runs are called, and what a subscriber does before a transfer.
STAGES = {
    "uncoordinated": "everybody at once",
    "coordinated": "by softmutex",
    "ideal": "by an ideal local semaphore",
}
SCENARIOS = {
    "deadline": "who is late starts again from zero, as `timeout 10 curl` in a crontab",
    "connections": "so, and the server refuses the ninth login at once",
    "plain": "no deadline, no limit: a link that is shared, and nothing else",
}


@dataclass(frozen=True)
class Plan:
    """`deadline_s` counts from the start of the transfer (the login is part of it), not from the first wish for it:
    who waits for a mutex has not begun. 0 is none."""

    scenario: str = "deadline"
    clients: int = 32
    slots: int = 2
    capacity_mbit_s: float = 40.0
    size_mb: float = 2.0
    deadline_s: float = 10.0
    connections: int = 0  # 0: as many as come
    tries: int = 3
    pause_s: float = 1.0  # after a refused login; twice that after the second, as curl does; after a deadline none
    spread_s: float = 1.0  # cron starts all in the first second of a minute

    @property
    def size(self) -> int:
        return round(self.size_mb * MEGA)

    @property
    def capacity(self) -> float:
        """Bytes a second."""
        return self.capacity_mbit_s * MEGA / 8

    @property
    def load(self) -> float:
        """How often all that is wanted would fill the capacity within one deadline."""
        return self.clients * self.size / (self.capacity * self.deadline_s) if self.deadline_s else 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return cls(**json.loads(text))
