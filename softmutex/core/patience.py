"""How long to wait for an answer before asking again: learnt, so that loopback and 300 ms links need no configuration.

The naive way, one fixed time, is a thousand times too long on one network or too short on another. This is Jacobson's
estimate as TCP has it (a smoothed round trip and its deviation) with Karn's rule: an answer to something that was sent
more than once teaches nothing but more patience, since nobody knows which copy was answered.

One estimate serves all peers of a node. A far peer among near ones costs needless resends, not failure: the waits
double, and whoever gives up should do so by the clock as well as by the count.
"""

from __future__ import annotations

from softmutex.core.events import Duration


class Patience:
    def __init__(self, first: Duration) -> None:
        """`first` while nothing is known; from then on from first/16 to 4 * first."""
        self._first = first
        self._longest = 4 * first
        self._shortest = first // 16
        self._wait = first
        self.round_trip: Duration = 0  # smoothed; 0: nothing is known
        self._deviation: Duration = 0

    def wait(self, tries: int = 0) -> Duration:
        """How long to wait for the answer to what has been sent 1 + `tries` times.

        It doubles, but not up to `first` where the network is fast: there, many tries are worth more when much is lost.
        """
        if not tries:
            return self._wait
        return min(self._wait << tries, max(self._first // 2, 2 * self._wait), self._longest)

    def learn(self, round_trip: Duration, tries: int = 0) -> None:
        """An answer came, `round_trip` after the first of 1 + `tries` copies was sent."""
        if tries:
            self._wait = self.wait(1)
            return
        if not self.round_trip:
            self.round_trip, self._deviation = round_trip, round_trip // 2
        else:
            self._deviation += (abs(round_trip - self.round_trip) - self._deviation) // 4
            self.round_trip += (round_trip - self.round_trip) // 8
        # Twice the usual round trip at least: on a network without jitter the deviation shrinks to nothing.
        usual = self.round_trip + max(self.round_trip, 4 * self._deviation)
        self._wait = min(max(usual, self._shortest), self._longest)
