"""The releaser's own rules, where a real Slurm would have to be caught in a moment: against one that is a table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from softmutex_adapters.schedulers.slurm import jobs, places, releaser, seat
from softmutex_adapters.schedulers.slurm.jobs import TURN_S, Job, Queue, Sight, SlurmFailed, Wish, read_queue, read_wish
from softmutex_adapters.schedulers.slurm.releaser import Releaser
from softmutex_adapters.schedulers.slurm.show import describe
from softmutex_adapters.schedulers.slurm.show import table as shown

from softmutex import ConfigError, Node, SoftMutex

PATIENCE_S = 100.0


class Table:
    """As much of Slurm as the releaser sees. Jobs end when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: dict[str, Job] = {}
        self.seen: list[str] = []
        self.put_off_at: list[float] = []
        self.told: dict[str, str] = {}
        self.refuses_to_put_off = False
        self.is_away = False
        self.looks = 0
        self.look_takes_s = 0.0
        for name in ("queue", "look_at", "let_go", "put_off", "unchain", "keep_by", "say", "cancel"):
            monkeypatch.setattr(jobs, name, getattr(self, name))

    def submit(self, number: int, weight: int | None = None, priority: int = 0, submitted_s: float = 0.0) -> None:
        id, wish = str(number), Wish("link", weight=weight, priority=priority)
        waiting = frozenset({"PENDING"})
        self.jobs[id] = Job(id, waiting, "BeginTime", wish, submitted_s=submitted_s, begins_s=TURN_S, row=id)

    def runs(self, number: int) -> bool:
        job = self.jobs.get(str(number))
        return job is not None and job.runs

    def end(self, number: int) -> None:
        del self.jobs[str(number)]
        for job in list(self.jobs.values()):
            if job.dependency == str(number):
                self._start(job)

    def _start(self, job: Job) -> None:
        self.seen.append(f"{job.id} starts")
        self.jobs[job.id] = self.jobs[job.id]._replace(states=frozenset({"RUNNING"}), dependency="")

    async def queue(self) -> Queue:
        await asyncio.sleep(self.look_takes_s)
        self.looks += 1
        if self.is_away:
            raise SlurmFailed("squeue: no answer")
        return Queue(dict(self.jobs), {})

    async def look_at(self, id: str) -> Sight:
        if self.is_away:
            raise SlurmFailed("squeue: no answer")
        job = self.jobs.get(id)
        return Sight(next(iter(job.states)), job.reason) if job else jobs.GONE

    async def let_go(self, job: Job, by: str, after: str | None = None) -> None:
        there = self.jobs[job.id] = self.jobs[job.id].let_go_by(by)._replace(begins_s=1.0, dependency=after or "")
        if there.reason != "PartitionDown" and after not in self.jobs:
            self._start(there)

    async def put_off(self, job: Job, why: str) -> None:
        if self.refuses_to_put_off or self.jobs[job.id].runs:
            raise SlurmFailed("no longer pending")
        self.seen.append(f"{job.id} is put off")
        self.put_off_at.append(asyncio.get_running_loop().time())
        self.jobs[job.id] = self.jobs[job.id]._replace(begins_s=TURN_S, wish=job.wish._replace(by=""), dependency="")

    async def unchain(self, job: Job) -> None:
        self.seen.append(f"{job.id} is unchained")

    async def keep_by(self, job: Job, by: str) -> None:
        self.seen.append(f"{job.id} is kept")

    async def say(self, job: Job, words: str) -> None:
        self.told[job.id] = words

    async def cancel(self, job: Job) -> None:
        del self.jobs[job.id]


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert condition(), what


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(releaser, "QUEUE_LEAST_S", 0.02)
    monkeypatch.setattr(seat, "LOOK_LEAST_S", 0.01)
    return Table(monkeypatch)


HERE: Any = {"transport": "memory://slurm", "membership": "memory://slurm", "leave_timeout": 1.0}


def member(name: str, config: Path | None = None) -> Node:
    return Node(name=name, **HERE) if config is None else Node.from_config(config, name=name, **HERE)


@asynccontextmanager
async def working(node: Node, slots: int = 1, bridge_s: float = 3600.0) -> AsyncIterator[Releaser]:
    async with node:
        works = Releaser(node, {"link": slots}, start_within_s=120.0, bridge_s=bridge_s)
        task = asyncio.create_task(works.run("here"))
        try:
            yield works
        finally:
            works.is_ending.set()
            await task
            await works.finish()


async def test_others_of_the_group_wait_no_longer_than_the_bridge_and_one_job(no_leaks: Any, table: Table):
    for number in range(1, 4):
        table.submit(number)
    async with working(member("releaser")) as works, member("other") as other:
        await until(lambda: table.runs(1) and table.jobs["2"].dependency == "1", "the second is not chained")
        works.bridge_s = 0.0  # it is over
        await until(lambda: "2 is put off" in table.seen, "the bridge is not given up")

        async def enter() -> None:
            async with other.mutex("link"):
                table.seen.append("the other is in")

        waits = asyncio.create_task(enter())
        await until(lambda: other.mutex("link").statistics().waiting == 1, "the other does not wait")
        await other.mutex("link").look()  # the releaser's node has heard of it, too
        table.end(1)
        await asyncio.wait_for(waits, PATIENCE_S)
        await until(lambda: table.runs(2), "the second does not start")
        table.end(2)
        await until(lambda: table.runs(3), "the third does not start")
        table.end(3)
    starts = [each for each in table.seen if "starts" in each or "other" in each]
    assert starts == ["1 starts", "the other is in", "2 starts", "3 starts"]


async def test_who_is_next_reads_so_though_its_old_place_was_written_as_it_was_chained(
    no_leaks: Any, table: Table, monkeypatch: pytest.MonkeyPatch
):
    """The look that knows the place may have begun before, and writes after."""
    monkeypatch.setattr(places, "EACH_S", 0.05)
    table.submit(1)
    async with working(member("releaser")):
        await until(lambda: table.runs(1), "the first does not start")
        table.submit(2)
        await until(lambda: table.jobs["2"].dependency == "1", "the second is not chained")
        await until(lambda: table.told.get("2") == "next, after job 1", "it reads its old place")
        for number in (1, 2):
            table.end(number)


async def test_who_was_put_off_for_others_is_not_overtaken_before_the_queue_is_read_again(
    no_leaks: Any, table: Table, monkeypatch: pytest.MonkeyPatch
):
    for number in range(1, 4):
        table.submit(number)
    async with working(member("releaser")) as works:
        await until(lambda: table.runs(1) and table.jobs["2"].dependency == "1", "the second is not chained")
        monkeypatch.setattr(releaser, "QUEUE_LEAST_S", 3600.0)
        looks = table.looks
        await until(lambda: table.looks > looks, "the queue is not read")  # for the last time
        works.bridge_s = 0.0  # it is over
        await until(lambda: "2 is put off" in table.seen, "the bridge is not given up")
        table.end(1)
        await until(lambda: table.runs(2) or table.runs(3), "no other one starts")
        assert table.runs(2)
        table.end(2)
        await until(lambda: table.runs(3), "the third does not start")
        table.end(3)


async def test_the_successor_starts_with_the_end_of_the_job_that_runs(no_leaks: Any, table: Table):
    table.submit(1)
    table.submit(2)
    async with working(member("releaser")):
        await until(lambda: table.runs(1) and table.jobs["2"].dependency == "1", "the second is not chained")
        table.end(1)
        assert table.runs(2), "it waits for the service"
        table.end(2)


async def test_a_job_that_started_when_it_was_to_be_put_off_keeps_its_mutex(no_leaks: Any, table: Table):
    table.submit(1)
    table.jobs["1"] = table.jobs["1"]._replace(reason="PartitionDown")
    table.refuses_to_put_off = True
    async with working(member("releaser")), member("other") as other:
        await until(lambda: "1 is kept" in table.seen, "it is not tried")
        table.jobs["1"] = table.jobs["1"]._replace(states=frozenset({"RUNNING"}))
        assert await other.mutex("link").try_acquire() is None
        table.end(1)
        async with other.mutex("link"):
            pass


async def test_a_job_that_cannot_start_is_tried_again_with_longer_and_longer_pauses(
    no_leaks: Any, table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(releaser, "LATER_S", 0.1)
    table.submit(1)
    table.jobs["1"] = table.jobs["1"]._replace(reason="PartitionDown")
    async with working(member("releaser")):
        await until(lambda: len(table.put_off_at) == 4, "it is not tried again")
        del table.jobs["1"]
    pauses_s = [two - one for one, two in pairwise(table.put_off_at)]
    assert [pause_s >= least_s for pause_s, least_s in zip(pauses_s, (0.09, 0.19, 0.39), strict=True)] == [True] * 3


async def test_a_controller_that_is_away_costs_no_turn_but_a_releaser_that_ends_does_not_wait_for_ever(
    no_leaks: Any, table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(seat, "SLURM_GONE_S", 0.5)
    table.submit(1)
    async with member("other") as other:
        async with working(member("releaser")):
            await until(lambda: table.runs(1), "it does not start")
            table.is_away = True
            assert await other.mutex("link").try_acquire() is None
        assert table.runs(1)
        async with other.mutex("link"):
            pass


@pytest.mark.parametrize(("share", "most_s", "stays_slow"), [(2000, 3600.0, False), (10**9, 0.1, True)])
async def test_a_look_at_the_queue_that_took_long_keeps_nobody_waiting_for_many_times_as_long(
    no_leaks: Any, table: Table, monkeypatch: pytest.MonkeyPatch, share: int, most_s: float, stays_slow: bool
):
    """Where it was one of many, and where all of them take long."""
    monkeypatch.setattr(releaser, "QUEUE_SHARE", share)
    monkeypatch.setattr(releaser, "QUEUE_MOST_S", most_s)
    async with working(member("releaser")):
        await until(lambda: table.looks, "the queue is not read")
        table.look_takes_s, looks = 0.1, table.looks
        await until(lambda: table.looks > looks, "the queue is not read again")
        table.look_takes_s = 0.1 if stays_slow else 0.0
        table.submit(1)
        await until(lambda: table.runs(1), "it does not start")
        table.end(1)


async def test_jobs_of_several_slots_never_take_more_than_there_are_and_come_in_in_the_order_of_all(
    no_leaks: Any, table: Table
):
    weights = [2, 2, None, 3, 1, 1]
    for number, weight in enumerate(weights, start=1):
        table.submit(number, weight)
    most, started = 0, list[int]()
    async with working(member("releaser"), slots=3):
        for _ in weights:
            await until(lambda: any(table.runs(number + 1) for number in range(len(weights))), "nobody runs")
            inside = [number + 1 for number in range(len(weights)) if table.runs(number + 1)]
            most = max(most, sum(weights[number - 1] or 1 for number in inside))
            table.end(inside[0])
        await until(lambda: not table.jobs, "not all had their turns")
    started = [int(each.split()[0]) for each in table.seen if each.endswith("starts")]
    assert most <= 3
    assert started[:4] == [1, 2, 3, 4], "a light one overtook a heavy one"
    assert sorted(started) == [1, 2, 3, 4, 5, 6]


async def test_two_jobs_that_fit_together_run_together_and_one_that_never_fits_is_told_so(no_leaks: Any, table: Table):
    table.submit(1, 2)
    table.submit(2, 4)
    table.submit(3, 1)
    async with working(member("releaser"), slots=3):
        await until(lambda: table.runs(1) and table.runs(3), "a slot is free, and nobody takes it")
        await until(lambda: "2" in table.told, "it is not told")
        assert table.told["2"] == "weight 4 never fits into 3"
        for number in (1, 3):
            table.end(number)
        del table.jobs["2"]


# --- priorities -------------------------------------------------------------------------------------------------------


@pytest.fixture
def ageing(tmp_path: Path) -> Path:
    """The releaser's settings: a step of priority is worth a minute."""
    config = tmp_path / "softmutex.toml"
    config.write_text("[mutex.link]\nageing = 60\n")
    return config


def starts(table: Table) -> list[int]:
    return [int(each.split()[0]) for each in table.seen if each.endswith("starts")]


async def test_urgent_jobs_come_before_those_that_were_submitted_within_the_wait_that_they_count_for(
    no_leaks: Any, table: Table, ageing: Path
):
    table.submit(1)
    async with working(member("releaser", ageing), bridge_s=0.0):
        await until(lambda: table.runs(1), "the first does not start")
        for number, priority, submitted_s in (
            (2, 0, 100.0),
            (3, 1, 101.0),
            (4, 5, 399.0),
            (5, 5, 401.0),
            (6, 9, 500.0),
        ):
            table.submit(number, None, priority, submitted_s)
        wanted = {"6": 1, "3": 2, "4": 3, "2": 4, "5": 5}  # due at -40, 41, 99, 100, 101
        await until(
            lambda: all(table.told.get(id) == f"place {at} of 5" for id, at in wanted.items()), "they have other places"
        )
        for number in (1, 6, 3, 4, 2, 5):
            await until(lambda number=number: table.runs(number), f"it is not the turn of {number}: {table.seen}")  # type: ignore[misc]
            table.end(number)
    assert starts(table) == [1, 6, 3, 4, 2, 5]


class Asking(Node):
    """Remembers how it was asked for a mutex. Who comes first then is the law of tests/runtime/test_priorities.py."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[int] = []

    def mutex(self, name: str, **options: Any) -> SoftMutex:
        if name == "link":
            self.asked.append(options["priority"])
        return super().mutex(name, **options)


async def test_the_mutex_is_asked_for_as_urgently_as_the_job_is_and_who_asks_already_goes_on(
    no_leaks: Any, table: Table, ageing: Path
):
    node = Asking.from_config(ageing, name="releaser", **HERE)
    async with working(node, bridge_s=0.0), member("holder", ageing) as holder:
        hold = await holder.mutex("link").acquire()
        table.submit(1)
        await waiting(holder, 1)
        since_s = (await holder.mutex("link").look()).waiting[0].since
        table.submit(2, None, 5)
        await waiting(holder, 2)
        assert node.asked == [0, 5]
        async with asyncio.timeout(PATIENCE_S):  # or it asked anew, and lost its place
            # A look that is late by a moment shows all as if they had come by as much later.
            while (await holder.mutex("link").look()).waiting[0].since > since_s + 0.05:
                pass
        await hold.release()
        for number in (2, 1):
            await until(lambda number=number: table.runs(number), f"{number} does not start: {table.seen}")  # type: ignore[misc]
            table.end(number)
    assert starts(table) == [2, 1]


async def waiting(node: Node, number: int) -> None:
    mutex = node.mutex("link")
    async with asyncio.timeout(PATIENCE_S):
        while (await mutex.look()).waiting_count != number:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_the_queue_shows_urgent_jobs_at_the_places_that_the_releaser_told():
    mark = {"admin_comment": "softmutex=link", "submit_time": 5}
    patient = {**NEW, **mark, "comment": "softmutex=link [place 2 of 2]"}
    urgent = {"admin_comment": "softmutex=link:priority=5", "comment": "softmutex=link:priority=5 [place 1 of 2]"}
    rows = describe(read(patient, {**NEW, **urgent, "job_id": 8, "submit_time": 9}))
    assert [(row["place"], row["job"], row["priority"]) for row in rows] == [(1, "8", 5), (2, "7", 0)]
    assert "waits, priority 5" in shown(rows)


async def test_without_ageing_a_priority_counts_for_nothing_and_its_user_is_told(
    no_leaks: Any, table: Table, caplog: pytest.LogCaptureFixture
):
    table.submit(1)
    async with working(member("releaser"), bridge_s=0.0):
        await until(lambda: table.runs(1), "the first does not start")
        table.submit(2)
        table.submit(3, None, 5)
        await until(
            lambda: table.told.get("3") == "place 2 of 2, without priority: link has no ageing", "it is not told"
        )
        assert "Write ageing = 60" in caplog.text
        for number in (1, 2, 3):
            await until(lambda number=number: table.runs(number), f"{number} does not start")  # type: ignore[misc]
            table.end(number)


# --- what squeue says -------------------------------------------------------------------------------------------------


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


NOTHING = {"set": False, "infinite": False, "number": 0}
OLD = {
    "job_id": 7, "array_job_id": 0, "array_task_id": None, "array_task_string": "", "job_state": "PENDING",
    "state_reason": "BeginTime", "priority": 42, "eligible_time": TURN_S, "submit_time": 5, "start_time": TURN_S,
    "dependency": "", "comment": "softmutex=link", "admin_comment": "softmutex=link:timeout=2h", "user_name": "eva",
    "name": "mirror",
}  # fmt: skip
NEW = {
    **OLD, "array_job_id": number(0), "array_task_id": NOTHING, "job_state": ["PENDING"], "priority": number(42),
    "eligible_time": number(TURN_S), "submit_time": number(5), "start_time": number(TURN_S),
}  # fmt: skip


def read(*rows: Any) -> Queue:
    return read_queue(json.dumps({"jobs": rows}))


def test_numbers_and_states_are_read_as_old_and_as_new_versions_write_them():
    assert read(OLD) == read(NEW)
    job = read(NEW).jobs["7"]
    assert job.waits
    assert job.wish == Wish("link", 7200.0)
    assert not job.is_held
    assert read({**NEW, "priority": number(0)}).jobs["7"].is_held
    assert read({**NEW, "job_state": ["RUNNING"]}).jobs["7"].runs
    for over in (["COMPLETED"], ["RUNNING", "COMPLETING"], ["COMPLETED", "COMPLETING"]):
        assert not any(job.runs or job.waits for job in read({**NEW, "job_state": over}).jobs.values())


@pytest.mark.parametrize(
    ("which", "row", "tasks"),
    [("3-9%2", "7_[3-9]", 7), ("3", "7_[3]", 1), ("3,5,8-10", "7_[3,5,8-10]", 5), ("3-30:5", "7_[3-30:5]", 6)],
)
def test_tasks_of_an_array_that_wait_together_are_its_first_one_and_have_one_name(which: str, row: str, tasks: int):
    job = read({**NEW, "array_job_id": number(7), "array_task_string": which}).jobs["7_3"]
    assert (job.row, job.tasks) == (row, tasks)


def test_a_list_of_tasks_that_squeue_cut_off_has_no_name():
    assert read({**NEW, "array_job_id": number(7), "array_task_string": "3,5,7,..."}).jobs["7_3"].row == ""


@pytest.mark.parametrize(
    "row",
    [
        None, [], "x", {}, {**NEW, "job_id": "--user=eva"}, {**NEW, "job_id": -1}, {**NEW, "job_id": None},
        {**NEW, "admin_comment": "softmutex="}, {**NEW, "admin_comment": "softmutex=link:slots=2"},
        {**NEW, "admin_comment": "softmutex=link:timeout=never"}, {**NEW, "job_state": None},
        {**NEW, "admin_comment": "softmutex=link:priority=10"},
        {**NEW, "array_job_id": number(7), "array_task_string": "--user"}, {**NEW, "submit_time": "noon"},
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_no_trouble_of_the_others(row: Any):
    queue = read(row, {**NEW, "job_id": 8})
    assert list(queue.jobs) == ["8"]
    assert len(queue.troubles) <= 1


@pytest.mark.parametrize("said", ["", "[]", "{}", '{"jobs": {}}', '{"jobs": [', "slurm_load_jobs error", "[" * 100_000])
def test_what_is_no_list_of_jobs_is_a_failure_of_slurm(said: str):
    with pytest.raises(SlurmFailed):
        read_queue(said)


@pytest.mark.parametrize("job", ["--user=eva", "7 8", "7\n8", "7_[1-3];x", "", "7_", "٧", "-1", "7__1"])
async def test_nothing_but_a_job_is_ever_named_to_slurm(job: str):
    with pytest.raises(SlurmFailed, match="is no job"):
        await jobs.update(job, "starttime=now")


def test_a_user_says_only_what_a_user_may_say():
    assert read_wish("softmutex=link:timeout=90 words", ("timeout",)) == Wish("link", 90.0)
    assert read_wish("softmutex=link:weight=3:timeout=90").mark() == "softmutex=link:timeout=90:weight=3"
    assert read_wish("softmutex=link:priority=5").priority == 5
    assert read_wish("softmutex=link:priority=5:weight=3").mark("me") == "softmutex=link:weight=3:priority=5:by=me"
    for comment in ("softmutex=link:by=slurm-a-1", "softmutex=link:begin=5"):
        with pytest.raises(ConfigError):
            read_wish(comment, ("timeout",))


def test_a_place_is_written_behind_the_users_own_words_and_replaces_the_last_one():
    job = read({**NEW, "comment": "softmutex=link project 7 [place 3 of 9]"}).jobs["7"]
    assert jobs.comment(job, "place 2 of 9") == "comment=softmutex=link project 7 [place 2 of 9]"
    forged = read({**NEW, "comment": "softmutex=link \x1b]0;x\x07"}).jobs["7"]
    assert jobs.comment(forged, "place 2 of 9") == "comment=softmutex=link [place 2 of 9]"
