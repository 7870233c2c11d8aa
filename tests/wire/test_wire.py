"""Frames: whole (W1 total), in one spelling (W2 canonical), of bounded size (W3), and with nothing behind them (W4)."""

import importlib.util
import sys
from types import ModuleType
from typing import Annotated, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softmutex.core import wire
from softmutex.core.codec import record
from softmutex.core.errors import BadFrame, ConfigError, SoftMutexError
from softmutex.core.events import SECOND, Escort, Token
from softmutex.core.messages import ROSTER_PAGE, Commit, Done, Entry, Message, Offer, RosterPage, Withdraw, name_of
from softmutex.core.wire import HEADER_SIZE, MAX_FRAME, TAG_SIZE, Frame, OtherVersion, UnfitForWire, decode, encode
from tests.wire.shapes import CLASSES, KINDS, MOST, example_frame, frames, plain_frame, wrong_values

every_message = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def check_totality(data: bytes) -> Frame | BadFrame:
    """W1 and W2 for these bytes, whatever they are."""
    try:
        frame = decode(data)
    except BadFrame as error:
        return error
    assert encode(frame) == data
    assert decode(encode(frame)) == frame
    return frame


@every_message
def test_every_message_of_this_package_fits_a_frame(cls: type[Message]):
    """W3. `learn` looks at those of other packages; these it believes, so that a start is short."""
    room = MAX_FRAME - TAG_SIZE - HEADER_SIZE - 8 - 1 - wire.MAX_MUTEX - 1
    assert record(cls).largest <= room


# --- what is written can be read -------------------------------------------------------------------------------------


@every_message
@given(data=st.data())
def test_what_is_written_is_what_the_page_on_the_format_says_and_what_is_read(cls: type, data: st.DataObject):
    frame = data.draw(frames(cls))
    written = encode(frame)
    assert written == plain_frame(frame)
    read = decode(written)
    assert read == frame
    assert type(read) is Frame
    assert type(read.message) is cls
    assert encode(read) == written


@every_message
def test_the_same_bytes_in_another_container_are_the_same_frame(cls: type):
    written = encode(example_frame(cls, "typical"))
    for container in (bytearray(written), memoryview(written), memoryview(bytearray(b"-" + written + b"-"))[1:-1]):
        assert decode(container) == decode(written)


def test_parts_that_look_alike_keep_their_types():
    token = decode(encode(example_frame(Offer, "typical"))).message.token
    assert type(token) is Token
    assert type(token.queue[0]).__name__ == "Ticket"
    assert token.escort.more is True


# --- any bytes give a frame or BadFrame ------------------------------------------------------------------------------


@given(st.binary(max_size=1500))
def test_any_bytes_give_a_frame_or_bad_frame(data: bytes):
    check_totality(data)


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=200))
def test_any_fields_give_a_frame_or_bad_frame(kind: int, fields: bytes):
    check_totality(encode(Frame(1, 2, "m", Withdraw(0)))[: HEADER_SIZE + 10] + bytes([kind]) + fields)


@given(frames(), st.data())
def test_a_damaged_frame_gives_a_frame_or_bad_frame(frame: Frame, data: st.DataObject):
    damaged = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        length = data.draw(st.integers(0, 9))
        damaged[at : at + length] = data.draw(st.binary(max_size=9))
        if not damaged:
            break
    check_totality(bytes(damaged))


@given(frames())
def test_a_frame_that_is_cut_short_anywhere_is_refused(frame: Frame):
    written = encode(frame)
    for end in range(len(written)):
        with pytest.raises(BadFrame):
            decode(written[:end])


@given(frames(), st.binary(min_size=1, max_size=20))
def test_a_frame_that_goes_on_after_its_end_is_refused(frame: Frame, more: bytes):
    with pytest.raises(BadFrame, match=r"ends after|bytes, where"):
        decode(encode(frame) + more)


@pytest.mark.parametrize("size", [0, 1, 2, 3, MAX_FRAME + 1, 65_507])
@pytest.mark.parametrize("container", [bytes, bytearray, memoryview])
def test_datagrams_of_absurd_size_are_refused(size: int, container: type):
    written = encode(example_frame(Offer, "typical"))
    with pytest.raises(BadFrame):
        decode(container((written + bytes(65_507))[:size]))


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_can_be_told_from_garbage(version: int):
    written = bytearray(encode(example_frame(Offer, "typical")))
    written[2] = version
    for data in (written, written[:3], written + bytes(2000)):
        with pytest.raises(OtherVersion, match=rf"version {version} .* speaks 1") as told:
            decode(data)
        assert told.value.version == version


def test_a_sealed_frame_is_not_taken_for_an_unsealed_one():
    written = bytearray(encode(example_frame(Done, "typical")))
    written[3] = 7
    with pytest.raises(BadFrame, match="sealed with key 7"):
        decode(written)


# --- what does not fit is not written --------------------------------------------------------------------------------


@every_message
def test_a_value_that_does_not_fit_is_named_with_what_would(cls: type):
    for path, wrong in wrong_values(cls, name_of(cls)):
        if type(wrong) is cls:
            with pytest.raises(UnfitForWire) as told:
                encode(Frame(1, 2, "m", wrong))
            assert str(told.value).startswith(f"{path} = ")
            assert " is not " in str(told.value)


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (Frame(0, 2, "m", Withdraw(0)), "sender 0"),
        (Frame(MOST + 1, 2, "m", Withdraw(0)), f"sender {MOST + 1}"),
        (Frame(1, -1, "m", Withdraw(0)), "to -1"),
        (Frame(1, 2, "é" * 33, Withdraw(0)), "at most 64 bytes"),
        (Frame(1, 2, "m" * 256, Withdraw(0)), "at most 64 bytes"),
        (Frame(1, 2, "\ud800", Withdraw(0)), "at most 64 bytes of UTF-8"),
        (Frame(1, 2, b"m", Withdraw(0)), "mutex b'm'"),
        (Frame(1, 2, "m", Token(1, 2, 3, 4)), "Token is no message"),
        (Frame(1, 2, "m", None), "NoneType is no message"),
    ],
    ids=str,
)
def test_an_envelope_that_does_not_fit_is_refused(frame: Frame, told: str):
    with pytest.raises(UnfitForWire) as error:
        encode(frame)
    assert told in str(error.value)
    assert isinstance(error.value, SoftMutexError)


@pytest.mark.parametrize(("key", "counter"), [(256, 0), (-1, 0), (1, -1), (1, 2**64)])
def test_a_header_out_of_range_is_refused(key: int, counter: int):
    with pytest.raises(UnfitForWire, match="out of range"):
        wire.write_header(key, 1, counter)


# --- sizes -----------------------------------------------------------------------------------------------------------


@every_message
def test_no_message_outgrows_a_frame_with_every_bound_reached(cls: type):
    written = encode(example_frame(cls, "largest"))
    assert len(written) + TAG_SIZE <= MAX_FRAME
    declared = record(cls).largest
    assert len(written) == wire.SMALLEST + wire.MAX_MUTEX + declared


# --- the messages of an algorithm ------------------------------------------------------------------------------------


class Three(NamedTuple):
    one: Token
    two: Token
    three: Token


class Loose(NamedTuple):
    number: int


class Modest(NamedTuple):
    nonce: Annotated[int, "u64"]


class AlsoModest(NamedTuple):
    nonce: Annotated[int, "u64"]


@pytest.fixture
def own() -> ModuleType:
    """A copy of `wire` for one test: what it learns is forgotten."""
    found = importlib.util.spec_from_file_location("own_wire", wire.__file__)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "own_wire", module)
        found.loader.exec_module(module)
    return module


def test_what_an_algorithm_declares_travels(own: ModuleType):
    with pytest.raises(own.UnfitForWire, match="no algorithm that is known here declares it"):
        own.encode(own.Frame(1, 2, "m", Modest(7)))
    for _ in range(2):  # a second time changes nothing
        own.learn("mine", {200: Modest})
    assert own.decode(own.encode(own.Frame(1, 2, "m", Modest(7)))).message == Modest(7)


def test_the_first_frame_of_an_unknown_kind_has_the_installed_algorithms_loaded(own: ModuleType):
    loaded: list[str] = []
    own.when_unknown(lambda: (loaded.append("all"), own.learn("mine", {200: Modest})))
    written = bytearray(encode(Frame(1, 2, "m", Withdraw(7))))
    for unknown in (0, 15, 255):  # not for algorithms
        written[HEADER_SIZE + 10] = unknown
        with pytest.raises(BadFrame, match=f"unknown kind {unknown}"):
            own.decode(written)
    assert not loaded
    written[HEADER_SIZE + 10] = 200
    for _ in range(2):
        assert own.decode(written).message == Modest(7)
    assert loaded == ["all"]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ({200: Three}, r"THREE of the algorithm 'mine' may take \d+ bytes, \d+ fit a frame. Lower a bound"),
        ({200: Loose}, r"LOOSE of the algorithm 'mine' cannot travel: Loose.number is declared as"),
        ({200: Modest, 201: Modest}, "has the number 201, and MODEST of the algorithm 'mine' .* has the number 200"),
        ({200: Withdraw}, "WITHDRAW of the algorithm 'mine' .* and WITHDRAW of the hand-over .* has the number 8"),
        (
            {4: Modest},
            "Modest the number 4, which is that of COMMIT, of the hand-over. Those of other packages than this are",
        ),
        ({51: Modest}, "the number 51, which is that of PING, of the node"),
        ({0: Modest}, "the number 0, which is not for algorithms"),
        ({256: Modest}, "the number 256, which is not for algorithms"),
    ],
    ids=str,
)
def test_messages_that_cannot_be_had_are_refused_with_the_reason(own: ModuleType, messages: dict[int, type], told: str):
    with pytest.raises(ConfigError, match=told):
        own.learn("mine", messages)


def test_a_message_may_be_as_large_as_what_else_is_in_a_frame_leaves_room_for(own: ModuleType):
    def wide(room: int) -> type:
        return NamedTuple("Wide", [("data", Annotated[bytes, f"<={room}"])])  # type: ignore[return-value]

    room = MAX_FRAME - TAG_SIZE - wire.SMALLEST - wire.MAX_MUTEX
    most = next(size for size in range(room, 0, -1) if record(wide(size)).largest <= room)
    own.learn("mine", {200: wide(most)})
    with pytest.raises(ConfigError, match="Lower a bound"):
        wire.learn("mine", {201: wide(most + 1)})


def test_a_page_of_a_roster_is_full_where_no_further_member_fits():
    """Who gets fewer than ROSTER_PAGE takes that for all there are."""
    entries = [Entry(node, f"h{node}") for node in range(1, ROSTER_PAGE + 2)]
    encode(Frame(1, 2, "", RosterPage(0, tuple(entries[:-1]))))
    with pytest.raises(UnfitForWire):
        encode(Frame(1, 2, "", RosterPage(0, tuple(entries))))


def test_two_algorithms_of_one_number_are_both_named(own: ModuleType):
    own.learn("theirs", {200: Modest})
    with pytest.raises(ConfigError) as told:
        own.learn("mine", {200: AlsoModest})
    assert "ALSO_MODEST of the algorithm 'mine' (tests.wire.test_wire) has the number 200" in str(told.value)
    assert "MODEST of the algorithm 'theirs' (tests.wire.test_wire) has the number 200" in str(told.value)


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Offer, Commit])
def test_a_token_fits_200_bytes_sealed(cls: type[Offer] | type[Commit]):
    """Nobody waits in the queue; a trace context of 25 bytes, two watchers, years of hops, a name of 32 bytes."""
    token = Token(1000, 1_700_000_000 * SECOND, 2**53 - 1, 10**12, 3, (), MOST, b"c" * 25)
    token = token._replace(escort=Escort((MOST, MOST), unseen=3600 * SECOND))
    message: Message = Offer(MOST, token, True) if cls is Offer else Commit(MOST, MOST, token)
    assert len(encode(Frame(MOST, MOST, "m" * 32, message))) + TAG_SIZE <= 200
