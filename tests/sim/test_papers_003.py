"""Seed 003's measure, and its figures in small."""

from softmutex.sim.papers_003 import BINARY, DIRECTED, RING, RingRun, perform, responsiveness
from softmutex.sim.tally import PastRun


def hold(node: int, asked: int, start: int) -> PastRun:
    return PastRun(node, 1, asked, start, start, 0)


def test_responsiveness_is_how_long_anybody_waits_since_the_last_grant():
    assert responsiveness([hold(1, 0, 5), hold(2, 1, 7), hold(3, 20, 20)]) == [5, 2, 0]
    assert responsiveness([hold(2, 3, 7), hold(1, 0, 9)]) == [7, 2]
    assert responsiveness([]) == []


def test_a_search_is_faster_than_the_ring_and_each_takes_the_steps_that_it_may():
    ring, search, directed = (perform(RingRun(32, 100, 4000, 1, way)) for way in (RING, BINARY, DIRECTED))
    assert ring.searches == () and ring.responsiveness > 8 > 5 > search.responsiveness > 2
    assert 0 < max(search.searches) <= 7 and 0 < max(directed.searches) <= 10
