"""`softmutex bench`: what the outside observer of `bench recovery` makes of what the processes say."""

from pathlib import Path

from softmutex.cli.benching.contended import longest_gap, summary
from softmutex.cli.benching.crew import Crew, CrewMember, Event, Stay, overlaps_of
from softmutex.cli.benching.recovery import kill_holder, local_nodes, measure, quantile


def member_that_said(*events: tuple[float, str]) -> CrewMember:
    member = Crew([{}]).members[0]
    member.log = [Event(at=at, what=what) for at, what in events]
    return member


def test_overlaps_are_timed_counted_and_compared_with_what_was_told():
    stays = [Stay(0.0, 4.0, False), Stay(3.0, 5.0, True), Stay(6.0, 9.0, False), Stay(7.0, 8.0, False)]
    assert overlaps_of(stays) == (2.0, 2, 1)


def test_holds_that_follow_each_other_do_not_overlap():
    assert overlaps_of([Stay(0.0, 1.0, False), Stay(1.0, 2.0, False)]) == (0.0, 0, 0)


def test_a_killed_process_ends_its_hold_and_takes_its_request_along():
    member = member_that_said((1.0, "asked"), (2.0, "in"), (2.5, "killed"), (3.0, "asked"), (3.5, "killed"))
    assert member.stays() == [Stay(2.0, 2.5, False)]
    assert member.unanswered() == 0


def test_a_request_of_a_living_process_that_came_to_nothing_is_lost():
    assert member_that_said((1.0, "asked"), (2.0, "in"), (3.0, "out"), (4.0, "asked")).unanswered() == 1


def test_the_longest_time_with_nobody_in_is_found_within_bounds_only():
    crew = Crew([{}])
    said = [(0.0, "in"), (1.0, "out"), (5.0, "in"), (6.0, "out"), (8.0, "in"), (9.0, "out")]
    crew.members[0].log = [Event(at=at, what=what) for at, what in said]
    assert crew.longest_gap(5.5, 10.0) == 2.0


def test_a_share_of_few_values_is_one_of_them():
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0], 0.9) == 1.0


async def test_a_row_of_the_table_comes_from_real_processes(no_leaks: None, tmp_path: Path):
    crew = Crew(local_nodes(3, f"{tmp_path}/runtime"))
    row = await measure("holder killed", crew, kill_holder, 1)
    said = sorted((event["at"], event["what"], member) for member in crew.members for event in member.log)
    [died_at] = [at for at, what, _ in said if what == "killed"]
    [victim] = [member for _, what, member in said if what == "killed"]
    next_in_at = min(at for at, what, member in said if what == "in" and at > died_at and member is not victim)
    assert row["recovery_max_s"] == row["recovery_median_s"] == next_in_at - died_at
    assert row["trials"] == 1 and row["lost"] == 0


def test_the_worst_client_is_seen_where_the_mean_is_fine():
    lucky = [(float(begin), float(begin), begin + 1.0) for begin in range(9)]
    unlucky = [(0.0, 9.0, 10.0)]
    row = summary([{"holds": [lucky, unlucky]}], 2, 0.0, 0)
    assert row["fewest_of_a_client"] == 1
    assert row["longest_gap_s"] == 9.0
    assert row["longest_gap_rounds"] == 4.5  # a round takes two seconds: ten holds in ten seconds, two clients


def test_who_was_alone_until_the_others_had_asked_is_no_unfairness_of_the_later_rounds():
    alone = [(at / 100, at / 100, at / 100) for at in range(90)]
    one, other = ([(float(at), float(at), at + 0.4) for at in range(first, 21, 2)] for first in (1, 2))
    row = summary([{"holds": [alone + one, other]}], 2, 0.0, 0)
    assert row["jain"] < 0.7
    assert row["jain_after_first_round"] > 0.99


def test_who_never_gets_in_waits_from_the_first_hold_of_all_to_the_last_question():
    assert longest_gap([], 2.0, 7.5) == 5.5
    assert longest_gap([(1.0, 3.0, 3.5), (3.5, 4.0, 7.0)], 2.0, 7.5) == 3.5
