"""Epochs of ages to come are refused at the door: they would leave no room for the next one."""

import pytest

from softmutex.core.codec import U64_END
from softmutex.core.epochs import EPOCHS, SLACK_S, is_possible
from softmutex.core.events import SECOND
from softmutex.core.wire import Frame, encode
from softmutex.runtime.sealing import Refusal, Refused, Unsealed
from tests.wire.shapes import CLASSES, example

NOW = 1_800_000_000 * SECOND
AHEAD = NOW // SECOND + SLACK_S


def with_epoch(value, epoch: int):
    """The same, each epoch in it replaced; and whether there was one."""
    if not isinstance(value, tuple):
        return value, False
    if type(value) is tuple:
        items = [with_epoch(item, epoch) for item in value]
        return tuple(item for item, _ in items), any(found for _, found in items)
    parts = {
        name: (epoch, True) if name in EPOCHS else with_epoch(part, epoch)
        for name, part in zip(type(value).__annotations__, value, strict=True)
    }
    return value._replace(**{name: part for name, (part, _) in parts.items()}), any(f for _, f in parts.values())


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_whatever_tells_of_an_epoch_may_tell_of_those_that_can_be_meant(cls: type):
    possible, has_one = with_epoch(example(cls, "typical"), AHEAD)
    assert is_possible(possible, NOW)
    if has_one:
        for epoch in (AHEAD + 1, U64_END - 1):
            assert not is_possible(with_epoch(possible, epoch)[0], NOW)


def test_the_wandering_tokens_messages_tell_of_epochs():
    telling = {cls.__name__ for cls in CLASSES if with_epoch(example(cls, "typical"), 1)[1]}
    assert telling >= {"Offer", "Commit", "Seen", "Heard", "Probe", "Sight", "Bequest", "Recall", "Account"}


def test_a_node_does_not_hear_of_them():
    door, told = Unsealed(1), 0
    door.serve((), lambda: NOW)
    for cls in CLASSES:
        message, has_one = with_epoch(example(cls, "typical"), U64_END - 1)
        opened = door.open(encode(Frame(2, 1, "m", message)))
        if has_one:
            told += 1
            assert isinstance(opened, Refused)
            assert opened.reason is Refusal.EPOCH
        else:
            assert isinstance(opened, Frame)
    assert door.refusals[Refusal.EPOCH] == told >= 9
