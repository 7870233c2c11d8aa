"""What a plug-in is told wrongly it refuses where that is written, not in a worker at night."""

from __future__ import annotations

from typing import Any

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from softmutex_adapters.schedulers.apscheduler import AsyncIOSoftMutexExecutor, SoftMutexExecutor
from softmutex_adapters.schedulers.celery import in_turn
from softmutex_adapters.schedulers.dask import turn

from softmutex import ConfigError

OF_ALL: list[tuple[dict[str, Any], str]] = [
    ({"weight": "3x"}, "weight='3x'.*whole number"),
    ({"slots": "two"}, "slots='two'"),
    ({"priority": "high", "ageing": 60}, "priority='high'.*0 to 9"),
    ({"priority": 10, "ageing": 60}, "priority=10"),
    ({"ageing": -5}, "ageing=-5"),
    ({"prioritty": 5}, "prioritty"),
    ({"slots": 2, "weight": 3}, "weight 3 never fits, for slots is 2"),
]
OF_CELERY: list[tuple[dict[str, Any], str]] = [
    ({"wait": "soon"}, "wait='soon'.*seconds"),
    ({"wait": -1}, "wait=-1"),
    ({"give_up": [1]}, r"give_up=\[1\]"),
    ({"wiat": 5}, "'wiat' is no option"),
    ({"transport": "udp://"}, "'transport' is no option"),
]


@pytest.mark.parametrize(("options", "said"), [*OF_ALL, *OF_CELERY])
def test_celery_refuses_it_where_the_task_is_defined(options: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        in_turn("link", **options)


@pytest.mark.parametrize(("options", "said"), [*OF_ALL, ({"timeout": "soon"}, "timeout='soon'")])
def test_dask_refuses_it_before_the_task_leaves_its_workers_pool(options: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        turn("link", **options)


@pytest.mark.parametrize("executor", [SoftMutexExecutor, AsyncIOSoftMutexExecutor])
@pytest.mark.parametrize(("options", "said"), OF_ALL)
def test_apscheduler_refuses_it_where_the_executor_is_made(executor: Any, options: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        executor("link", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"weight": 3}, "weight 3 never fits, for slots is 2"), ({"priority": 5}, "has no priorities")],
)
async def test_apscheduler_refuses_when_it_starts_what_never_works_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, no_leaks: Any, options: dict[str, Any], said: str
):
    made = [(BackgroundScheduler, SoftMutexExecutor), (AsyncIOScheduler, AsyncIOSoftMutexExecutor)]
    executors = [(scheduler(), executor("link", **options)) for scheduler, executor in made]
    monkeypatch.setenv("SOFTMUTEX_SLOTS", "2")
    for scheduler, executor in executors:
        scheduler.add_executor(executor, "ftp")
        with pytest.raises(ConfigError, match=said):
            scheduler.start()


@pytest.mark.parametrize("take", [in_turn, turn, SoftMutexExecutor])
@pytest.mark.parametrize("name", ["", 5, None])
def test_a_mutex_without_a_name_is_refused(take: Any, name: Any):
    with pytest.raises(ConfigError, match="named by a text"):
        take(name)


def test_celerys_times_are_seconds_or_numbers_with_units():
    told = in_turn("link", wait="2s", give_up="2h")
    assert (told["mutex_wait"], told["mutex_give_up"]) == (2.0, 7200.0)
