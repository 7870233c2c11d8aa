"""Members of many hosts meet at a registry: `registry+http(s)://host:port[,host2:port]/group`.

    join --> lease --> session: PUT ------ every ttl/3: PUT again ----------.
    watch ----------->          events: the list, then what changes --> view --> watch
                         ^  lost: the next registry, then tenacity's back-off    |
                         `--- the last list stands ----------------------------- '
    observer ---> report: POST, once a second at most, for the registry's page; never waited for, lost without harm

What it decides: the registry is a notice board, and nothing stops when it burns. The naive way, a client that empties
its list or raises when the server is gone, turns the outage of a helper into the outage of all that it helped.

C1  The list changes by signed lists of growing versions only. What does not fit is refused, and another registry tried.
C2  `complete` (M7) holds while the list is fresh and settled: not before the first one, not when the registry was gone
    for a lease, not while it says that members may be missing, nor before the version that the registry has signed for
    a nonce of ours. Nobody makes a token on the word of an empty list, or of one that somebody plays back.
C3  Every renewal carries all that the registry must know, so whoever lost it, has it again; and who finds itself
    missing in the list renews at once.
C4  Times are durations. No time of day of another host is compared with ours, but to say that one of them is wrong.
C5  Each trouble is told once, with its remedy, and again only after all was well in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from softmutex.core.errors import ConfigError
from softmutex.ending import end
from softmutex.ports import CannotOpen, Closed, Member, Proofs
from softmutex.saying import logger
from softmutex.urls import Url, host_of, is_loopback, split_address
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.client import RegistryClient, Trouble
from softmutex_adapters.registry.followed import View
from softmutex_adapters.registry.pins import Pins
from softmutex_adapters.registry.reporter import Reporter

if TYPE_CHECKING:
    import tenacity

log = logger("membership")
T = TypeVar("T")

DEFAULT_PORT = 9430
JOIN_S = 5.0  # so long `join` waits for a registry; after that it is joined when one comes back
FIRST_LIST_S = 0.5
BACK_OFF_S, BACK_OFF_MAX_S = 0.2, 15.0
AGAIN_S = 0.5  # after a session that was good, within this
DROPPED_PAUSE_S = 2.0
RENEWALS = 3  # in the time of a lease
LAST_REPORT_S = 0.4
OTHERS_S = 1.0  # a registry that is only told, and not followed, has so long to answer
MUTE_S = 30.0
TOLD_ALL_MAX = 5  # where it never knows: it may have another store
REPORT_AGAIN_S = 5.0  # after one that was not answered
COUNTERS = ("sessions", "troubles", "renewals", "lists", "lists_refused", "reports")


class RegistryMembership:
    """`registry+https://reg1:9430,reg2:9430/group?token_file=PATH&public_key=KEY&ca=FILE`

    `token_file` holds the bearer token, mode 0600. `public_key` is what the registry says when it starts: with it,
    lists of nobody else are taken; without, the first key that is met stands (`softmutex_adapters.registry.pins`).
    `registry+http://` beyond this host wants `insecure=yes`: the token is read, and members are added, by whoever is on
    the way. `ca`: what its certificate is checked with, instead of the system's authorities.
    `report=no`: the registry's page is told nothing of the mutexes here, not even their names.
    """

    def __init__(
        self,
        registries: Sequence[str],
        group: str,
        *,
        token_file: str | None = None,
        public_key: str | None = None,
        ca: str | None = None,
        report: bool = True,
        insecure: bool = False,
    ) -> None:
        if not registries:
            raise ConfigError("registry+http:// names no registry. Write registry+http://host:9430/group.")
        if not re.fullmatch(wire.GROUP, group):
            raise ConfigError(
                f"registry+http://: {group!r} is no name of a group. Write registry+http://host:9430/GROUP, with "
                "letters, digits, dots, dashes and underscores."
            )
        if public_key is not None:
            try:
                public_key = wire.to_text(wire.from_text(public_key, 32))
            except ValueError as error:
                raise ConfigError(f"public_key: {error}. Copy what the registry said at its start.") from None
        in_plain = [base for base in registries if base.startswith("http://") and not is_loopback(host_of(base) or "")]
        if in_plain and not insecure:
            raise ConfigError(
                f"registry+{in_plain[0]}: the token and the list would travel in plain text, and whoever is on the way "
                "could use the one and change the other. Write registry+https:// (softmutex registry --cert --key), or "
                "insecure=yes."
            )
        self._registries = list(registries)
        self._group = group
        self._secrets: dict[str, Any] = {"token_file": token_file, "public_key": public_key, "ca": ca}
        is_near = all(is_loopback(host_of(base) or "") for base in registries)
        self._secrets |= {"pins": None if is_near else Pins.of_user(), "bases": self._registries}
        self._view = View(group)
        self._proofs: Proofs | None = None
        self._me: Member | None = None
        self._lease = ""
        self._shown: tuple[Member, ...] | None = None
        self._shown_banned: frozenset[str] = frozenset()
        self._changed, self._listed, self._missing, self._joined = (asyncio.Event() for _ in range(4))
        self._was_complete = False
        self._refused: Trouble | None = None  # join can never work
        self._client: RegistryClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self.observer = Reporter(self._wake_reporting) if report else None
        self._closed = False
        self._ttl_s = 60.0
        self._wanted = 0  # the version at which we are listed
        self._lost_at: float | None = None  # when the last session ended; None while there is one
        self._settles_at = 0.0
        self._told: set[tuple[str, str]] = set()
        self._told_all: Counter[str] = Counter()  # how often to registries that are not followed
        self._mute_until: dict[str, float] = {}
        self._counts = dict.fromkeys(COUNTERS, 0)

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        scheme = parts.scheme.removeprefix("registry+")
        places, _, group = parts.place.partition("/")
        try:
            found = [split_address(place.strip(), default_port=DEFAULT_PORT) for place in places.split(",") if place]
        except ValueError as error:
            parts.refuse(str(error))
        options: dict[str, Any] = {name: parts.text(name) for name in ("token_file", "public_key", "ca")}
        options["report"] = parts.flag("report", True)
        options["insecure"] = parts.flag("insecure")
        parts.finish()
        bases = [f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}" for host, port in found]
        return cls(bases, group.removesuffix("/"), **options)

    # --- what the node asks -----------------------------------------------------------------------------------------

    async def join(self, me: Member) -> None:
        if self._me is not None:
            raise RuntimeError("this membership was joined before; leave first, or make a new one")
        if self._closed:
            raise Closed("the membership is closed")
        self._me, self._lease = me, secrets.token_urlsafe(24)
        await self._begin_again()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOIN_S):
                await self._joined.wait()
        if self._refused is not None:
            why = str(self._refused)
            self._me, self._lease = None, ""
            await self._stop()
            raise CannotOpen(why)
        if not self._joined.is_set():
            log.warning(
                "no registry of the group %r answers (%s). They are asked again; without a list nothing begins here.",
                *(self._group, ", ".join(self._registries)),
            )

    async def watch(self) -> Sequence[Member]:
        if not self._closed and self._task is None:
            await self._begin_again()
        if self._shown is None and not self._listed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LIST_S):
                    await self._listed.wait()
        while not self._closed:
            others = self._view.others(self._me, self._lease, self._proofs)
            if others != self._shown or self._view.banned != self._shown_banned:
                self._shown, self._shown_banned = others, self._view.banned
                return others
            self._changed.clear()
            await self._changed.wait()
        raise Closed("the membership is closed")

    async def leave(self) -> None:
        if self._me is None:
            return
        lease, self._me, self._lease = self._lease, None, ""
        await self._stop()
        await self._say_leave(lease)
        if not self._closed:
            await self._begin_again()

    async def aclose(self) -> None:
        self._closed = True
        self._changed.set()
        self._listed.set()
        await self.leave()
        await self._stop()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def group_key(self) -> bytes | None:
        return None

    def prove_by(self, proofs: Proofs) -> None:
        """M13."""
        self._proofs = proofs

    @property
    def banned(self) -> frozenset[int | bytes]:
        """Whom the registry's list bans: ids of lives, and public keys of identities."""
        return frozenset(
            int(who, 16) if wire.ID.fullmatch(who) else wire.from_text(who, 32) for who in self._shown_banned
        )

    # --- as an authority (`softmutex.runtime.identity`) -------------------------------------------------------------

    @property
    def group(self) -> str:
        return self._group

    @property
    def public_key(self) -> bytes | None:
        """Only what was given is known for certain; what a registry says of itself is not."""
        given = self._secrets["public_key"]
        return None if given is None else wire.from_text(given, 32)

    async def certify(self, name: str, public: bytes, proof: bytes, invitation: str = "") -> bytes:
        """From the first registry that gives one."""
        return await self._of_any(lambda client, base: client.certify(base, name, public, proof, invitation))

    async def administer(self, method: str, what: str, body: object = None) -> Any:
        """What the operator asks: bans, identities. `what` follows the group in the path."""
        return await self._of_any(lambda client, base: client.administer(method, base, what, body))

    async def _of_any(self, ask: Callable[[RegistryClient, str], Awaitable[T]]) -> T:
        why = "no registry was asked."
        for base in random.sample(self._registries, len(self._registries)):
            try:
                self._client = self._client or RegistryClient(self._group, **self._secrets)
                return await ask(self._client, base)
            except Trouble as trouble:
                why = str(trouble)
        raise CannotOpen(why)

    @property
    def complete(self) -> bool:
        """C2."""
        is_in = self._me is None or (self._joined.is_set() and self._refused is None)
        if not self._view.version or self._task is None or not is_in or self._client is None:
            return False
        now = self._task.get_loop().time()
        is_fresh = self._lost_at is None or now - self._lost_at < self._ttl_s
        if self._me is not None and now - self._client.fresh_at >= self._ttl_s:  # each renewal brings a proof
            is_fresh = False
        return is_fresh and now >= self._settles_at and self._view.version >= self._client.fresh

    @property
    def pending(self) -> tuple[str, ...]:
        """M8: a list that was never whole."""
        self._was_complete = self._was_complete or self.complete
        return () if self._was_complete else (f"the list of {self._group!r} at {', '.join(self._registries)}",)

    def statistics(self) -> Mapping[str, int]:
        return {**self._counts, "members": len(self._view.members)}

    # --- sessions ---------------------------------------------------------------------------------------------------

    async def _begin_again(self) -> None:
        await self._stop()
        self._joined.clear()
        self._refused = None
        loop = self._loop = asyncio.get_running_loop()
        self._lost_at = loop.time() if self._lost_at is None else self._lost_at
        self._task = loop.create_task(self._run(), name=f"softmutex registry: {self._group}")

    async def _stop(self) -> None:
        while (task := self._task) is not None:  # ours until it has ended, or `watch` would start another one meanwhile
            await end(task)
            if self._task is task:
                self._task = None

    async def _run(self) -> None:
        import tenacity

        back_off = tenacity.wait_random_exponential(multiplier=BACK_OFF_S, max=BACK_OFF_MAX_S)

        def wait(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked_s = error.wait_s if isinstance(error, Trouble) else 0.0
            return back_off(state) + asked_s * (1 + random.random() / 4)

        while True:
            try:
                await tenacity.AsyncRetrying(wait=wait, retry=tenacity.retry_if_exception_type(Trouble))(self._session)
            except Exception:  # M4: a mistake of ours is no reason to leave a node without its list
                self._counts["troubles"] += 1
                log.exception("the registry membership of the group %r broke down; it begins again", self._group)
                await asyncio.sleep(BACK_OFF_MAX_S)
            await asyncio.sleep(random.random() * AGAIN_S)

    async def _session(self) -> None:
        """Returns after a session that was good for a while; raises Trouble where no registry gave one."""
        troubles = []
        for base in random.sample(self._registries, len(self._registries)):
            try:
                self._client = self._client or RegistryClient(self._group, **self._secrets)
                await self._follow(base)
                return
            except Trouble as trouble:
                troubles.append(trouble)
                self._tell(base, trouble)
        if all(trouble.is_final for trouble in troubles):
            self._refused = troubles[0]
            self._joined.set()
        raise min(troubles, key=lambda trouble: trouble.wait_s)

    async def _follow(self, base: str) -> None:
        assert self._client is not None
        beside: list[asyncio.Task[None]] = []
        is_good = False
        if self._me is not None:
            await self._renew(base)
            loop = asyncio.get_running_loop()
            beside.append(loop.create_task(self._renew_forever(base), name="softmutex lease"))
            if self.observer is not None:
                beside.append(loop.create_task(self._report_forever(base, self.observer), name="softmutex report"))
        try:
            async with contextlib.aclosing(self._client.follow(base, self._view.version, self._lease)) as lists:
                async for told in lists:
                    if told is not None:
                        self._take(base, told)
                    if not is_good:
                        is_good = True
                        self._is_good(base)
                    if self._view.version >= self._wanted:
                        self._joined.set()
        except Trouble as trouble:
            if not is_good or trouble.kind != "lost":
                raise
            self._tell(base, trouble)
        finally:
            if is_good:
                self._lost_at = asyncio.get_running_loop().time()
            await end(*beside)

    def _is_good(self, base: str) -> None:
        assert self._client is not None
        self._counts["sessions"] += 1
        self._lost_at = None
        if any(kind != "clock" for _, kind in self._told):
            log.warning("%s gives the list of %r again (%d members)", base, self._group, len(self._view.members))
        self._told = {told for told in self._told if told[1] == "clock"}
        if self._client.clock_off_s:
            off = f"the clock of {base} and of this host differ by {abs(self._client.clock_off_s) / 3600:.1f} hours"
            remedy = "The membership does not need them, certificates and logs do. Set them by NTP."
            self._tell(base, Trouble("clock", f"{off}. {remedy}"))

    def _take(self, base: str, told: wire.MemberList) -> None:
        if not self._view.take(told):
            self._counts["lists_refused"] += 1
            why = f"{base} shows version {told.version} of the list, and this node has seen {self._view.version}"
            raise Trouble("set back", f"{why}: its store or its clock was set back. Correct its clock.")
        self._counts["lists"] += 1
        self._settles_at = asyncio.get_running_loop().time() + told.settling_s
        self._listed.set()
        self._changed.set()
        if self._lease and told.version >= self._wanted and wire.key_of(self._lease) not in self._view.members:
            self._missing.set()  # C3

    # --- the lease --------------------------------------------------------------------------------------------------

    async def _renew(self, base: str) -> None:
        assert self._client is not None
        assert self._me is not None
        self._missing.clear()
        self._wanted, self._ttl_s = await self._client.put(base, self._lease, self._me, self._proofs)
        self._counts["renewals"] += 1

    async def _renew_forever(self, base: str) -> None:
        pause_s = self._ttl_s / RENEWALS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s * (0.8 + 0.4 * random.random())):
                    await self._missing.wait()
            was_missing = self._missing.is_set()
            try:
                await self._renew(base)
                pause_s = self._ttl_s / RENEWALS
                if was_missing:
                    address = self._me.address if self._me else ""
                    why = f"{base} had dropped this node from the list; it is back. If that goes on: is another one"
                    self._tell(base, Trouble("missing", f"{why} at {address}, too?"))
                    await asyncio.sleep(DROPPED_PAUSE_S)  # two that drop each other must not do it all the time
            except Trouble as trouble:
                self._tell(base, trouble)
                pause_s = max(self._ttl_s / RENEWALS / 8, trouble.wait_s)

    # --- the registry's page ----------------------------------------------------------------------------------------

    def _wake_reporting(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._news.set)

    async def _report_forever(self, base: str, observer: Reporter) -> None:
        """Whatever goes wrong here is the page's loss alone, so it is counted and not told of."""
        assert self._client is not None
        while True:
            self._news.clear()
            report = observer.draw()
            if report is None:
                await self._news.wait()
                continue
            is_answered, is_known, others_know, again_s = False, True, True, REPORT_AGAIN_S
            try:
                (is_known, again_s), others_know = await asyncio.gather(
                    self._client.report(base, self._lease, report), self._tell_others(base, report)
                )
                is_answered = True
                self._counts["reports"] += 1
            except Trouble as trouble:
                self._counts["troubles"] += 1
                again_s = max(again_s, trouble.wait_s)
            finally:
                observer.settle(answered=is_answered, known=is_known, all_again=not others_know)
            await asyncio.sleep(again_s)

    async def _tell_others(self, base: str, report: object) -> bool:
        """The other registries of the URL draw the same page: whichever is looked at shows the whole group. Whether
        they knew of this member; one that does not answer is left in peace for a while."""
        assert self._client is not None
        now = asyncio.get_running_loop().time()
        others = [each for each in self._registries if each != base and now >= self._mute_until.get(each, 0.0)]

        async def tell(client: RegistryClient, other: str) -> bool:
            try:
                is_known, _ = await client.report(other, self._lease, report, OTHERS_S)
            except Trouble:
                self._mute_until[other] = now + MUTE_S
                return True
            self._told_all[other] += not is_known  # it may not have heard yet that this member has joined
            return is_known or self._told_all[other] > TOLD_ALL_MAX

        return all(await asyncio.gather(*(tell(self._client, other) for other in others)))

    async def _say_leave(self, lease: str) -> None:
        """To all who hear it, after the last report. Where none does, the lease ends by itself."""
        if self._client is None:
            return
        client, bases = self._client, self._registries
        report = self.observer.draw() if self.observer is not None else None
        if report is not None:  # of who is listed no longer, none is taken
            each = [client.report(base, lease, report, LAST_REPORT_S) for base in bases]
            await asyncio.gather(*each, return_exceptions=True)
        await asyncio.gather(*(client.drop(base, lease) for base in bases), return_exceptions=True)

    def _tell(self, base: str, trouble: Trouble) -> None:
        self._counts["troubles"] += 1
        if (base, trouble.kind) not in self._told:
            self._told.add((base, trouble.kind))
            stands = f" The last list ({len(self._view.members)} members) stands." if self._view.version else ""
            log.warning("%s%s", trouble, stands)
