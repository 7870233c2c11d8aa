"""Identities: certificates from a registry, signatures under hand-overs, bans. Real nodes, a real registry."""

import asyncio
import base64
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self, get_type_hints

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.bans import BANS_MAX
from softmutex_adapters.registry.certificates import CERTIFICATE_S, Certificates
from softmutex_adapters.registry.enrolment import Enrolment
from softmutex_adapters.registry.store import ENROLLED, Entry
from softmutex_adapters.registry.tokens import Tokens
from softmutex_adapters.transports.udp import UdpTransport

from softmutex import AcquireTimeout, ConfigError, Node, NodeClosed
from softmutex.core.algorithms.wandering.messages import Want
from softmutex.core.codec import wire_type_of
from softmutex.core.events import Token
from softmutex.core.messages import Bye, Message, Pong
from softmutex.core.wire import MAX_FRAME, MAX_MUTEX, SMALLEST, TAG_SIZE, Frame, read_header
from softmutex.ports import Member, Transport
from softmutex.runtime import identity, keyfile, sealing
from softmutex.runtime.identity import ATTESTATION_MAX, CLOCK_SLACK_S, SIGNED, Vouching
from softmutex.runtime.sealing import KeyRing, Sealer, read_keys
from tests.registry.inside import Inside, inside
from tests.runtime.group import shown, until
from tests.security.insider import certified
from tests.wire.shapes import CLASSES, example

KEY = bytes(range(32))
HOUR, DAY = 3600.0, 86400.0


@pytest.fixture(autouse=True)
def hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "softmutex")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "FIRST_S", 0.1)
    monkeypatch.setattr(identity, "AGAIN_S", 0.01)


@pytest.fixture
async def registry(no_leaks: None, tmp_path: Path) -> AsyncIterator[Inside]:
    async with inside(tmp_path) as served:
        yield served


def member(registry: Inside, folder: Path, name: str, **options) -> "Enrolled":
    """A node of the group `lab` with an identity; it takes in only such. Options that are None are left out."""
    file = folder / f"{name}.identity"
    if not file.exists():
        keyfile.make(file)
    url = f"registry+{registry.base}/lab?public_key={registry.hub.signer.public}&report=no"
    given = {
        "transport": "udp://127.0.0.1:0",
        "membership": url,
        "key": KEY,
        "identity": file,
        "require_identity": True,
        "name": name,
        **options,
    }
    node = Enrolled(**{option: value for option, value in given.items() if value is not None})
    node.registry, node.file = registry, file
    return node


class Enrolled(Node):
    """Its operator lets it in before it comes."""

    registry: Inside
    file: Path

    async def open(self) -> None:
        if not self.registry.hub.closing and self.file.exists():
            await enrol(self.registry, self.file)
        await super().open()


async def enrol(registry: Inside, file: Path, group: str = "lab") -> str:
    """The public key, which is enrolled under the name of its file."""
    secret = Ed25519PrivateKey.from_private_bytes(read_keys(file)[0])
    public = wire.to_text(secret.public_key().public_bytes_raw())
    entry = Entry(Member("enrolled", 0, file.stem), "")
    await registry.hub.change(group, {f"{ENROLLED}{public}": entry})
    return public


def names(node: Node) -> set[str]:
    return {peer.name for peer in node.peers()}


async def take_turns(*nodes: Node, rounds: int = 5) -> None:
    async def work(node: Node) -> None:
        for _ in range(rounds):
            async with node.mutex("x").hold(timeout=60):
                pass

    await asyncio.gather(*map(work, nodes))


def certifies(registry: Inside, **otherwise: Any) -> None:
    """From now on the registry gives such certificates."""
    [own] = Certificates(registry.hub, Enrolment(registry.hub), **otherwise).routes()
    registry.server.routes[:] = [own if route.path == own.path else route for route in registry.server.routes]


def plugged() -> Transport:
    return UdpTransport.from_url("udp://127.0.0.1:0")


async def identity_shown(node: Node) -> str:
    return str((await shown(node, plugged(), [KEY]))["identity"])


class Insider:
    """Somebody who has the key of the group, and says with it what the test wants."""

    def __init__(self) -> None:
        self.id = 4711
        self._transport = plugged()
        self._sealer = Sealer(KeyRing.of(KEY), "default", self.id)

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._transport.aclose()

    def say(self, to: Node, message: Message, mutex: str = "") -> None:
        self._transport.send(to.address, self._sealer.seal(Frame(self.id, to.id, mutex, message)))


@contextlib.contextmanager
def signs_nothing(whose: str) -> Iterator[None]:
    """The node of this identity signs nothing any more, as if it had lost its certificate."""
    attest = Vouching.attest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vouching, "attest", lambda self, *what: b"" if self.shown == whose else attest(self, *what))
        yield


@contextlib.contextmanager
def clock_off(seconds: float) -> Iterator[None]:
    """A node that is opened here has a wrong clock, as far as certificates are concerned."""
    with pytest.MonkeyPatch.context() as patch:
        defaults = {"secret": None, "wall_s": lambda: time.time() + seconds}
        patch.setattr(identity.Vouching.__init__, "__kwdefaults__", defaults)
        yield


# --- hand-overs -------------------------------------------------------------------------------------------------------


async def test_members_with_certificates_meet_and_hand_over(registry: Inside, tmp_path: Path):
    async with member(registry, tmp_path, "a") as a, member(registry, tmp_path, "b") as b:
        await until(lambda: names(a) == {"b"} and names(b) == {"a"})
        await take_turns(a, b)
        for node in (a, b):
            assert not {"unsigned", "unvouched", "no identity"} & node.statistics().dropped.keys()
            assert len(base64.urlsafe_b64decode(await identity_shown(node) + "=")) == 32
        assert await identity_shown(a) != await identity_shown(b)
    assert registry.hub.counts["certificates"] == 2


def test_every_signed_frame_fits_whatever_is_in_it():
    largest = max(wire_type_of(cls).largest for cls in (*SIGNED, *filter(identity.hands_over, CLASSES)))
    assert SMALLEST + MAX_MUTEX + largest + ATTESTATION_MAX + TAG_SIZE <= MAX_FRAME


def test_whatever_carries_a_token_is_signed():
    carriers = {cls for cls in CLASSES if Token in get_type_hints(cls).values()}
    assert {cls.__name__ for cls in carriers} >= {"Offer", "Commit", "Pass"}
    for cls in carriers:
        a, b = certified(1, 1), certified(2, 2)
        a.seal(Frame(1, 2, "", example(cls, "largest")))
        sealed = a.seal(Frame(1, 2, "", example(cls, "largest")))
        assert read_header(sealed)[2] & sealing.SIGNED
        assert isinstance(b.open(sealed), Frame)


async def test_who_has_the_key_and_no_identity_is_not_taken_in_and_is_told_of_once(
    registry: Inside, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    plain = {"identity": None, "require_identity": None}
    async with member(registry, tmp_path, "a") as a, member(registry, tmp_path, "plain", **plain) as stranger:
        await until(lambda: a.statistics().dropped.get("no identity", 0) > 1)
        async with a.mutex("x").hold(timeout=60):
            assert a.peers() == ()
        with pytest.raises(AcquireTimeout):
            async with a.mutex("x"), stranger.mutex("x").hold(timeout=0.5):
                raise AssertionError("it came by the token")
    assert caplog.text.count("plain at") == 1
    assert "shows no certificate, and this node requires one" in caplog.text


async def test_a_farewell_is_no_way_in_for_who_is_not_vouched_for_or_banned(registry: Inside, tmp_path: Path):
    """Who said farewell is still listened to for a moment: only those who were members."""

    def counted(node: Node, why: str) -> int:
        return node.statistics().dropped.get(why, 0)

    want = Want(4711, 1, False, 3)
    async with Insider() as bad, member(registry, tmp_path, "a") as a, a.mutex("x").hold(timeout=60):
        for message in (Bye(), want):
            bad.say(a, message, "x")
        await until(lambda: counted(a, "unsigned") == 2)
        assert "WANT" not in a.mutex("x").statistics().received
    plain = {"identity": None, "require_identity": None}
    async with Insider() as bad, member(registry, tmp_path, "a", **plain) as a, a.mutex("x").hold(timeout=60):
        bad.say(a, Pong(1))
        await until(lambda: {peer.id for peer in a.peers()} == {bad.id})
        bad.say(a, Bye())
        await until(lambda: a.peers() == ())
        bad.say(a, want, "x")
        await until(lambda: a.mutex("x").statistics().received.get("WANT"))
        await registry.call("PUT", f"/v1/groups/lab/banned/{bad.id:016x}")

        def is_ignored() -> bool:
            bad.say(a, want, "x")
            return counted(a, "not addressed") > 0

        await until(is_ignored)
        heard, ignored = a.mutex("x").statistics().received["WANT"], counted(a, "not addressed")
        bad.say(a, want, "x")
        await until(lambda: counted(a, "not addressed") > ignored)
        assert a.mutex("x").statistics().received["WANT"] == heard


async def test_where_none_is_required_members_with_and_without_work_together(registry: Inside, tmp_path: Path):
    plain = {"identity": None, "require_identity": None}
    async with (
        member(registry, tmp_path, "a", require_identity=None) as a,
        member(registry, tmp_path, "plain", **plain) as b,
    ):
        await until(lambda: names(a) == {"plain"} and names(b) == {"a"})
        await take_turns(a, b)


async def test_a_hand_over_by_who_lost_its_certificate_is_refused_and_counted_until_it_has_one_again(
    registry: Inside, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with (
        member(registry, tmp_path, "a") as a,
        member(registry, tmp_path, "b") as b,
        member(registry, tmp_path, "c") as c,
    ):
        await until(lambda: names(a) == {"b", "c"} and names(b) == {"a", "c"})
        await take_turns(a, b, c)
        async with contextlib.AsyncExitStack() as hold:
            await hold.enter_async_context(a.mutex("x").hold(timeout=60))
            asked = asyncio.gather(take_turns(b, rounds=1), take_turns(c, rounds=1))
            await until(lambda: b.mutex("x").statistics().waiting and c.mutex("x").statistics().waiting)
            with signs_nothing(await identity_shown(a)):
                await hold.aclose()
                await until(lambda: any(node.statistics().dropped.get("unsigned") for node in (b, c)))
        await asked
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, c)))
    assert "hands a token over without a signature" in caplog.text


# --- certificates and clocks ------------------------------------------------------------------------------------------


async def test_a_certificate_is_renewed_at_half_of_its_time(registry: Inside, tmp_path: Path):
    certifies(registry, lifetime_s=1)
    async with member(registry, tmp_path, "a"):
        await until(lambda: registry.hub.counts["certificates"] >= 3)


async def test_an_expired_certificate_is_told_to_both_sides_and_refused(
    impatient: None, registry: Inside, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with member(registry, tmp_path, "fresh") as fresh:
        certifies(registry, wall_s=lambda: time.time() - DAY - CERTIFICATE_S)  # what it gives now, expired a day ago
        async with member(registry, tmp_path, "old") as old:
            await until(lambda: fresh.statistics().dropped.get("unvouched") and old.statistics().told.get("clock"))
            assert (fresh.peers(), fresh.statistics().told["certificates"]) == ((), 1)
            assert old.statistics().told["clock"] == 1
    assert "shows a certificate that expired 24.0 hours ago by the clock of this host" in caplog.text
    assert "the clock of this host is 48.0 hours ahead of the one of the authority" in caplog.text


@pytest.mark.parametrize(("off_s", "way"), [(-DAY, "behind"), (DAY + 2 * CLOCK_SLACK_S, "ahead of")])
async def test_a_clock_that_is_off_by_a_day_is_told_to_its_own_user(
    impatient: None, registry: Inside, tmp_path: Path, caplog: pytest.LogCaptureFixture, off_s: float, way: str
):
    async with member(registry, tmp_path, "right") as right:
        wrong = member(registry, tmp_path, "wrong")
        with clock_off(off_s):
            await wrong.open()
        try:
            # It refuses what is in order; its own certificate may come later.
            await until(lambda: wrong.statistics().dropped.get("unvouched") and wrong.statistics().told.get("clock"))
            assert wrong.statistics().told["clock"] == 1
            assert "clock" not in right.statistics().told
            assert right.statistics().dropped.get("unvouched", 0) == 0  # the certificate itself is good
        finally:
            await wrong.close()
    hours = f"{abs(off_s) / 3600:.1f} hours {way}"
    assert f"wrong: the clock of this host is {hours} the one of the authority" in caplog.text


async def test_a_clock_that_is_a_little_off_does_no_harm(registry: Inside, tmp_path: Path):
    async with member(registry, tmp_path, "right") as right:
        late = member(registry, tmp_path, "late")
        with clock_off(-CLOCK_SLACK_S / 2):
            await late.open()
        try:
            await until(lambda: names(right) == {"late"} and names(late) == {"right"})
        finally:
            await late.close()


async def test_a_member_starts_with_its_last_certificate_while_the_registry_is_down(tmp_path: Path, no_leaks: None):
    async with inside(tmp_path) as registry:
        async with member(registry, tmp_path, "a"), member(registry, tmp_path, "b"):
            pass
        url, public = registry.base, registry.hub.signer.public
    together = {"authority": f"registry+{url}/lab?public_key={public}", "membership": "static://127.0.0.1:1"}
    gone = registry  # only its address and key are still used
    async with member(gone, tmp_path, "a", **together) as a:
        port = a.address.rpartition(":")[2]
        async with member(gone, tmp_path, "b", **{**together, "membership": f"static://127.0.0.1:{port}"}) as b:
            await until(lambda: names(a) == {"b"} and names(b) == {"a"})
            await take_turns(a, b)


async def test_a_certificate_of_another_registry_or_group_is_refused(
    registry: Inside, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "other").mkdir()
    async with inside(tmp_path / "other") as other, member(registry, tmp_path, "a") as a:
        port = a.address.rpartition(":")[2]
        for served, group in ((other, "lab"), (registry, "elsewhere")):
            authority = f"registry+{served.base}/{group}?public_key={served.hub.signer.public}"
            options = {"authority": authority, "membership": f"static://127.0.0.1:{port}"}
            before = a.statistics().dropped.get("unvouched", 0)
            stranger = member(registry, tmp_path, f"of-{group}", **options)
            await enrol(served, stranger.file, group)
            async with stranger:
                await until(lambda before=before: a.statistics().dropped.get("unvouched", 0) > before)
            assert a.peers() == ()
    assert caplog.text.count("shows a certificate of another authority or another group") >= 2


async def test_without_token_no_certificate_and_the_user_is_told_once(
    no_leaks: None, impatient: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with inside(tmp_path, tokens=Tokens(["lab a-token-of-the-lab"])) as registry:
        authority = f"registry+{registry.base}/lab?public_key={registry.hub.signer.public}"
        async with member(registry, tmp_path, "a", membership="static://127.0.0.1:1", authority=authority) as a:
            await until(lambda: a.statistics().told.get("certificate", 0) >= 3)
    assert caplog.text.count("no certificate: ") == 1
    assert "the token is missing or wrong" in caplog.text
    assert "There is none, and members that require identities do not take this node in" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": None, "membership": "static://127.0.0.1:1", "authority": None}, "identities want a group key"),
        ({"membership": "static://127.0.0.1:1"}, "identities want an authority"),
        ({"membership": "registry+http://127.0.0.1:1/lab"}, "public_key=KEY"),
        ({"identity": "/no/such/file"}, "cannot be read"),
    ],
)
async def test_settings_that_cannot_be_meant_are_refused(registry: Inside, tmp_path: Path, options: dict, said: str):
    with pytest.raises(ConfigError, match=said):
        await member(registry, tmp_path, "a", **options).open()


# --- bans -------------------------------------------------------------------------------------------------------------


async def test_a_banned_id_is_ignored_by_all_told_once_and_refused_by_the_registry(
    registry: Inside, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    plain = {"identity": None, "require_identity": None}
    async with (
        member(registry, tmp_path, "a", **plain) as a,
        member(registry, tmp_path, "b", **plain) as b,
        member(registry, tmp_path, "bad", **plain) as bad,
    ):
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, bad)))
        await take_turns(a, b, bad)
        path = f"/v1/groups/lab/banned/{bad.id:016x}"
        status, _, _ = await registry.call("PUT", path, json={"why": "it floods us"})
        assert status == 200
        await until(lambda: names(a) == {"b"} and names(b) == {"a"} and bad.statistics().told.get("banned"))
        with pytest.raises(NodeClosed, match="banned from its group"):
            async with bad.mutex("x").hold(timeout=60):
                pass
        await take_turns(a, b)
        _, listed, _ = await registry.call("GET", "/v1/groups/lab/banned")
        assert listed == {"banned": [{"who": f"{bad.id:016x}", "why": "it floods us"}]}
        again = {"address": "127.0.0.1:9", "id": f"{bad.id:016x}"}
        status, told, _ = await registry.call("PUT", "/v1/groups/lab/members/" + "l" * 20, json=again)
        assert (status, "it floods us" in told["error"]) == (403, True)
        for node in (a, b, bad):
            assert node.statistics().told["banned"] >= 1
        assert caplog.text.count("is banned by the registry: this node ignores it") == 2  # by a, by b
        assert (await registry.call("DELETE", path))[0] == 200
        await until(lambda: is_let_in(bad))


async def is_let_in(node: Node) -> bool:
    try:
        async with node.mutex("x").hold(timeout=60):
            return True
    except NodeClosed:
        return False


async def test_a_banned_identity_gets_no_certificate_and_its_signatures_count_for_nothing(
    impatient: None, registry: Inside, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with member(registry, tmp_path, "a") as a, member(registry, tmp_path, "bad") as bad:
        await until(lambda: names(a) == {"bad"})
        status, _, _ = await registry.call("PUT", f"/v1/groups/lab/banned/{await identity_shown(bad)}", json={})
        assert status == 200
        await until(lambda: names(a) == set() and bad.statistics().told.get("banned"))
    async with member(registry, tmp_path, "a") as a, member(registry, tmp_path, "bad") as bad:  # another life of it
        await until(lambda: a.statistics().dropped.get("banned"))
        assert a.peers() == ()
    (tmp_path / "bad.identity.certificate").unlink()
    async with member(registry, tmp_path, "bad") as bad:
        await until(lambda: bad.statistics().told.get("certificate"))
    assert "this identity is banned from the group 'lab'" in caplog.text


async def test_bans_survive_the_registry_and_are_signed_with_the_list(no_leaks: None, tmp_path: Path):
    who = f"{77:016x}"
    async with inside(tmp_path) as registry:
        await registry.join("lab", 1)
        await registry.call("PUT", f"/v1/groups/lab/banned/{who}")
    async with inside(tmp_path) as registry:
        status, told, _ = await registry.call("GET", "/v1/groups/lab/members")
        assert (status, told["banned"]) == (200, [who])
        version = told["version"]
        await registry.join("lab", 2)
        _, change, _ = await registry.call("GET", f"/v1/groups/lab/members?after={version}")
        assert (change["after"], change["banned"]) == (version, [who])  # the whole list of bans, in a change, too
        await registry.call("DELETE", f"/v1/groups/lab/banned/{who}")
        _, told, _ = await registry.call("GET", "/v1/groups/lab/members")
        assert "banned" not in told
        assert len(told["joined"]) == 2


async def test_a_groups_token_does_not_ban_and_bans_are_bounded(no_leaks: None, tmp_path: Path):
    tokens = Tokens(["lab a-token-of-the-lab", "admin the-operators-token-for-all"])
    async with inside(tmp_path, tokens=tokens) as registry:
        path = "/v1/groups/lab/banned/{:016x}"
        as_member = {"headers": {"Authorization": "Bearer a-token-of-the-lab"}}
        operator = {"headers": {"Authorization": "Bearer the-operators-token-for-all"}}
        assert (await registry.call("PUT", path.format(1), **as_member))[0] == 403
        answers = [(await registry.call("PUT", path.format(n), **operator))[0] for n in range(BANS_MAX + 1)]
        assert answers == [200] * BANS_MAX + [503]
        assert (await registry.call("PUT", path.format(0), **operator))[0] == 200  # again: it is one already
        for nonsense in ("x", "0" * 15, "G" * 16):
            assert (await registry.call("PUT", f"/v1/groups/lab/banned/{nonsense}", **operator))[0] == 400
        assert (await registry.call("PUT", path.format(1), json={"who": "me"}, **operator))[0] == 400


# --- what is signed ---------------------------------------------------------------------------------------------------


async def test_any_bytes_for_a_certificate_are_refused(registry: Inside):
    path = "/v1/groups/lab/certificates"
    for body in (
        b"",
        b"[]",
        b"{}",
        b'{"name": 1}',
        json.dumps({"name": "a", "public_key": "x", "proof": "y"}).encode(),
    ):
        status, told, _ = await registry.call("POST", path, data=body)
        assert (status, "the body is" in told["error"]) == (400, True)
    good = {"name": "a", "public_key": "A" * 43, "proof": "A" * 86}
    status, told, _ = await registry.call("POST", path, json=good)
    assert (status, "proof is no signature" in told["error"]) == (403, True)
