"""One group in memory: the log and the list agree, and whose lease is over. Time is told."""

from hypothesis import given
from hypothesis import strategies as st
from softmutex_adapters.registry import group as groups
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.followed import View
from softmutex_adapters.registry.group import DROPPED_S, FORGET_S, Group
from softmutex_adapters.registry.store import Entry, Stored

from softmutex.ports import Member

SIGNER = wire.Signer(bytes(32))


def entry(number: int, owner: str = "") -> Entry:
    return Entry(Member(f"10.0.0.1:{number}", number, f"node-{number}"), owner)


def lease(number: int) -> str:
    return f"lease-of-number-{number}"


def made(*numbers: int, version: int = 100, settled_at: float = 0.0) -> Group:
    stored = Stored(version, {lease(number): entry(number) for number in numbers})
    return Group("g", SIGNER, stored, 0.0, settled_at)


def told(group: Group, after: int) -> wire.MemberList | None:
    found = group.since(after, 0.0)
    if found is None:
        return None
    line, signature = found
    assert wire.is_signed_by(SIGNER.public, line, signature)
    return wire.read(line)


changes = st.lists(st.dictionaries(st.integers(1, 6), st.booleans(), min_size=1, max_size=4), min_size=1, max_size=20)


@given(changes, st.lists(st.integers(0, 20), max_size=5), st.integers(1, 8))
def test_g1_any_version_and_the_changes_since_give_the_list_of_now(steps, looks, log_size):
    """Watchers of all versions end with the same members, whether they are told the changes or the whole list."""
    group, kept = made(), groups.CHANGES_MAX
    groups.CHANGES_MAX = log_size
    views = [View("g")]
    try:
        for number, step in enumerate(steps, 1):
            group.apply({lease(n): entry(n) if is_there else None for n, is_there in step.items()}, 100 + number)
            if number in looks:
                late = View("g")
                views.append(late)
            for view in views if number in looks or number == len(steps) else ():
                found = told(group, view.version)
                assert found is None or view.take(found)
    finally:
        groups.CHANGES_MAX = kept
    now = {wire.key_of(lease): entry.member for lease, entry in group.entries.items()}
    assert all(view.members == now for view in views)


def test_a_small_change_is_told_as_such_and_to_a_stranger_the_whole_list():
    group = made(1, 2)
    group.apply({lease(3): entry(3), lease(1): None}, 101)
    change, whole = told(group, 100), told(group, 0)
    assert change is not None and whole is not None
    assert (change.after, [one.address for _, one in change.joined]) == (100, ["10.0.0.1:3"])
    assert change.left == [wire.key_of(lease(1))]
    assert (whole.after, len(whole.joined), whole.left) == (None, 2, [])
    assert told(group, 101) is None


def test_g3_a_version_between_what_was_loaded_and_what_came_then_was_never_there():
    group = made(1, version=100)
    assert group.knows(99) and group.knows(100)
    assert not group.knows(101)
    group.apply({lease(2): entry(2)}, 200)
    assert not group.knows(150), "a client that has it comes from a history that was lost"
    assert group.knows(200) and not group.knows(201)
    group.begin_anew(300, 0.0)
    assert group.knows(150) and group.knows(300)
    change = told(group, 200)
    assert change is not None and change.after is None, "after that all are told the whole list"


def test_a_lease_is_in_no_list():
    group = made(1)
    line, _ = group.since(0, 0.0) or (b"", "")
    assert lease(1).encode() not in line


def test_while_it_settles_the_list_says_so_in_seconds():
    group = made(1, settled_at=30.0)
    line, _ = group.since(0, 10.0) or (b"", "")
    assert wire.read(line).settling_s == 20.0


def test_a_silent_lease_is_over_after_its_time_and_a_heard_one_is_not():
    group = made(1, 2)
    group.heard(lease(1), 60.0)
    group.heard(lease(2), 60.0)
    group.heard(lease(2), 80.0)
    assert group.over(59.0) == []
    assert group.over(60.0) == [lease(1)]
    assert group.over(61.0) == []


def test_members_of_a_dead_registry_get_a_whole_lease_more():
    group = made(1)
    group.entries[lease(2)] = entry(2, owner="alive")
    group.adopt(["alive"], 60.0)
    assert group.over(60.0) == [lease(1)]


def test_a_lease_whose_stream_broke_is_over_soon_where_others_stand():
    group = made(1, 2, 3)
    for number in (1, 2, 3):
        group.heard(lease(number), 60.0)
        group.stream_opened(lease(number))
    group.stream_broke(lease(1), 10.0)
    assert group.over(10.0 + DROPPED_S - 0.1) == []
    assert group.over(10.0 + DROPPED_S) == [lease(1)]


def test_a_stream_that_comes_back_in_time_saves_the_lease():
    group = made(1, 2)
    for number in (1, 2):
        group.stream_opened(lease(number))
    group.stream_broke(lease(1), 10.0)
    group.stream_opened(lease(1))
    assert group.over(100.0) == []


def test_when_most_streams_break_at_once_it_was_the_network_and_nobody_is_dropped():
    group = made(1, 2, 3)
    for number in (1, 2, 3):
        group.heard(lease(number), 60.0)
        group.stream_opened(lease(number))
    for number in (1, 2):
        group.stream_broke(lease(number), 10.0)
    assert group.over(10.0 + DROPPED_S) == []
    assert len(group.over(60.0)) == 3, "those who stay away are dropped when their lease is over"


def test_g2_an_address_is_its_leases_until_its_stream_breaks():
    group = made(1)
    group.heard(lease(1), 60.0)
    group.stream_opened(lease(1))
    again = Member("10.0.0.1:1", 77, "after a restart")
    assert group.make_room("another-lease-of-it", again, 10.0, frozenset()) is None
    assert group.make_room(lease(1), again, 10.0, frozenset()) == [], "its own lease may change everything"
    group.stream_broke(lease(1), 10.0)
    assert group.make_room("another-lease-of-it", again, 10.0, frozenset()) == [lease(1)]


def test_g2_what_another_living_registry_hears_is_for_that_one_to_say():
    group = made()
    group.apply({lease(1): entry(1, owner="other")}, 101)
    group.stream_opened(lease(1))
    group.stream_broke(lease(1), 10.0)
    assert group.make_room(lease(2), entry(1).member, 10.0, frozenset({"other"})) is None
    assert group.make_room(lease(2), entry(1).member, 10.0, frozenset()) == [lease(1)]


places = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "break"]), st.integers(1, 6), st.integers(1, 3)), max_size=40
)


@given(places)
def test_g2_no_two_leases_are_ever_listed_at_one_address(steps):
    """Leases 1 to 6, addresses 1 to 3."""
    group = made()
    for version, (what, number, at) in enumerate(steps, 101):
        member, changes = Member(f"10.0.0.1:{at}", number), {}
        if what == "put":
            rivals = group.make_room(lease(number), member, 0.0, frozenset())
            if rivals is not None:
                changes = {**dict.fromkeys(rivals), lease(number): Entry(member, "")}
                group.heard(lease(number), 60.0)
        elif what == "drop":
            changes = {lease(number): None}
        elif lease(number) in group.entries:
            group.stream_opened(lease(number))
            group.stream_broke(lease(number), 0.0)
        group.apply(changes, version)
        listed = [entry.member.address for entry in group.entries.values()]
        assert len(listed) == len(set(listed))


def test_an_empty_group_that_nobody_watches_is_idle_after_a_while():
    group = made()
    assert not group.is_idle(FORGET_S)
    assert group.is_idle(FORGET_S + 1)
    group.stream_opened(lease(1))
    assert not group.is_idle(FORGET_S + 1)


def test_who_leaves_while_another_one_dies_does_not_make_its_death_doubtful():
    group = made(1, 2, 3)
    for number in (1, 2, 3):
        group.stream_opened(lease(number))
    for number in (1, 2):
        group.stream_broke(lease(number), 10.0)
    group.apply({lease(2): None}, group.version + 1)
    assert group.over(10.0 + DROPPED_S) == [lease(1)]
