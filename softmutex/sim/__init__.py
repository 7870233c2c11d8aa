"""The simulator: the real machines, in virtual time, over a network that can be as bad as asked for.

A is the piece of work that runs under the mutex, as the papers call it.

from softmutex.sim import Scenario, simulate

result = simulate(Scenario(algorithm="sandwich", nodes=300, duration_s=1e5, seed=1))
"""

from softmutex.sim.faults import (
    Batch,
    Churn,
    Clocks,
    Clog,
    DeadLink,
    Fault,
    Kill,
    Lives,
    Partition,
    Pause,
    Replay,
    TokenLoss,
)
from softmutex.sim.result import Result
from softmutex.sim.run import simulate
from softmutex.sim.scenario import Scenario

__all__ = [
    "Batch",
    "Churn",
    "Clocks",
    "Clog",
    "DeadLink",
    "Fault",
    "Kill",
    "Lives",
    "Partition",
    "Pause",
    "Replay",
    "Result",
    "Scenario",
    "TokenLoss",
    "simulate",
]
