"""Names that nobody uses any more are forgotten when there is no room for another one, or other settings are wanted.

    a new name, and MUTEXES_MAX are there --> all that have rested for REST are forgotten
    small talk about a name that was forgotten, and there is no room --> dropped: a beat brings nothing back
    somebody opens it, here or elsewhere, with other settings than a node knows that does not use it --> forgotten there
    anything else about it, or a use here --> it is taken up again, as by a newcomer (`core/group/founding.py`)

What it decides: what a node may forget. Every member takes part in every name of its group, so the naive way, to keep
them all and refuse the next one, makes 4,096 the number of names that a group has in all its life; a job that puts the
date into its name stops everybody one day. To forget whatever is oldest loses holds and waiters. To forget one at a
time leaves parked tokens behind whose holders tell watchers of them that know nothing any more, without end: members
that know the same names are full at the same time, and all forget all that rests.

Z1  A mutex is forgotten only where nobody here holds it or waits for it, and its algorithm bears it
    (`Algorithm.may_be_forgotten`); for want of room only where its machine knows of nobody who waits, and no message
    but small talk came for REST.
Z2  A parked token that goes with it is lost as with a node that died: the others do not miss it before somebody wants
    it. A name that all have forgotten begins anew, with the first epoch.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from softmutex.core.errors import ConfigError
from softmutex.core.events import Instant, from_seconds
from softmutex.core.messages import Message
from softmutex.runtime.local import LocalMutex
from softmutex.runtime.terms import Terms, refusal

if TYPE_CHECKING:
    from softmutex.runtime.node import RunningNode

MUTEXES_MAX = 4096
REST = from_seconds(60.0)


def make_room(node: RunningNode) -> None:
    if len(node.mutexes) < MUTEXES_MAX:
        return
    now = node.now()
    resting = {mutex for mutex in node.mutexes.values() if now - mutex.used_at >= REST and is_resting(mutex)}
    forget(node, resting)
    if len(node.mutexes) >= MUTEXES_MAX:
        raise ConfigError(
            f"this node takes part in {MUTEXES_MAX} mutexes already, which is the limit of a node, and none of them "
            "has rested for a minute. Name what is shared, not each use of it."
        )


def is_resting(mutex: LocalMutex) -> bool:
    if not mutex.started or mutex.busy or mutex.backlog or mutex.waiting or mutex.holding:
        return False
    if not mutex.machine.may_be_forgotten:
        return False
    view = mutex.machine.view()
    return not (view.holding or view.waiting or view.queue)


def forget(node: RunningNode, mutexes: Set[LocalMutex]) -> None:
    for mutex in mutexes:
        del node.mutexes[mutex.name]
        mutex.started = False
        node.driver.forget(mutex.name)
        node.warnings["names forgotten"] += 1
    node.timers.cancel_of(mutexes)


def uses(node: RunningNode, name: str) -> bool:
    """Whether an application of this node holds it or waits for it, or did so in the last minute: then those settings
    with which it was opened are the group's (`core/group/founding.py`, F7). And whoever must not forget it (Z1)."""
    mutex = node.mutexes.get(name)
    if mutex is None:
        return False
    if not mutex.machine.may_be_forgotten:
        return True
    return mutex.is_own and (bool(mutex.waiting or mutex.holding) or node.now() - mutex.own_at < REST)


def gives_way(node: RunningNode, mutex: LocalMutex, terms: Terms) -> bool:
    """To the settings with which an application of this node opens it now: where none uses it with others."""
    difference = "" if mutex.terms is terms else terms.difference(mutex.terms)
    if difference and uses(node, mutex.name):
        raise refusal(mutex.name, "this group", difference)
    if difference:
        forget(node, {mutex})
    return bool(difference)


def is_worth_it(node: RunningNode, message: Message) -> bool:
    """What is said about a name that is not known here: whether it is to be taken up."""
    return len(node.mutexes) < MUTEXES_MAX or type(message).__name__ not in node.small_talk


def used(mutex: LocalMutex, message: Message, now: Instant) -> None:
    if type(message).__name__ not in mutex.machine.small_talk:
        mutex.used_at = now
