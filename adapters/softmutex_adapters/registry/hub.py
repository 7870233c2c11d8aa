"""The one who changes things: between the requests that come in, the store, and those who watch.

    put, drop, a lease that is over --> pending --> store.commit --> group.apply --> whoever waits for the commit
    another registry's commit -----> store.changed --> store.read --^    `--> broadcast --> streams, polls

What it decides: everything that piled up while the last commit was on its way goes into the next one, and watchers are
told once for all of it. The naive way, a transaction and 10,000 messages for each member, turns a cold start of 10,000
members into a hundred million messages. How long a broadcast took decides how soon the next one comes.

U1  `put` returns after the commit: whoever reads later, finds it (M1), also after a kill -9 (S1).
U2  A store that fails is told to the operator once, and tried again. One that only this registry uses is done without
    meanwhile: all goes on from memory and is written later. Of a shared one the last lists stand, leases do not end,
    and newcomers are asked to come again: two registries that went on from memory would tell two truths.
U3  A list that goes back is not told. When a client shows a version that the store has never had, the store was set
    back or lost: the version is raised beyond it, and the list settles anew (W3). So does that of a group which was
    in the store when this registry started. A group of which nobody has ever spoken here is settled.
U4  What a stream is owed is bounded: a small change is written at once, anything else by its own task, a few at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from softmutex.ending import end
from softmutex.ports import Member
from softmutex.saying import logger
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.group import Group
from softmutex_adapters.registry.store import ALONE, BEAT_S, INSTANCE_LIVES_S, Entry, Store, StoreFailed, next_version
from softmutex_adapters.registry.streams import Stream

log = logger("registry")

TTL_S = 60.0
SWEEP_S = 0.25
SETTLE_MAX_S = 20.0  # by then everybody has come back: longer than the longest back-off of our client
GAP_S = 0.005
GAP_MAX_S = 0.4
RETRY_S = 1.0
CLOCK_SLACK_MS = 2 * 86_400_000  # clocks that are off by a day are borne
SET_BACK_EVERY_S = 10.0
MEMBERS_MAX = 20_000
GROUPS_MAX = 1_000


class Listener(Protocol):
    def __call__(self, group: Group, *, is_forgotten: bool = False) -> None: ...


class Taken(Exception):
    """Another member has this address, or this id; the text says which."""


class Full(Exception):
    """There is no room for one more; the text says of what."""


class Hub:
    def __init__(
        self,
        store: Store,
        signer: wire.Signer,
        *,
        ttl_s: float = TTL_S,
        members_max: int = MEMBERS_MAX,
        groups_max: int = GROUPS_MAX,
    ) -> None:
        self.store, self.signer, self.ttl_s = store, signer, ttl_s
        self.members_max, self.groups_max = members_max, groups_max
        self.instance = secrets.token_hex(8)
        self.groups: dict[str, Group] = {}
        self.streams: dict[str, dict[Stream, None]] = defaultdict(dict)
        self.counts: Counter[str] = Counter()
        self.listeners: list[Listener] = []  # told of each change of a list
        self.trouble = ""  # what is wrong with the store; "" while nothing is
        self.closing = False
        self.polls: dict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._pending: dict[str, dict[str, Entry | None]] = {}
        self._waiting: dict[str, list[asyncio.Future[int]]] = defaultdict(list)
        self._in_flight: tuple[str, dict[str, Entry | None]] = ("", {})
        self._unsaved: dict[str, dict[str, Entry | None]] = {}
        self._unread: set[str] = set()  # another registry changed them, and reading failed
        self._set_back_at: dict[str, float] = {}
        self._work = asyncio.Event()
        self._turn = asyncio.Lock()  # one at a time changes groups
        self._tasks: list[asyncio.Task[None]] = []

    # --- birth and death --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Raises StoreFailed where the store is not to be had."""
        self.now = asyncio.get_running_loop().time
        await self.store.open()
        self.settle_s = min(self.ttl_s / 2, SETTLE_MAX_S)
        self.settled_at = self.now() + self.settle_s
        await self._check_signer()
        self._living = await self.store.beat(self.instance)
        self._beaten_at = self.now()
        for name in await self.store.groups():
            await self._read(name)
        for work in (self._commit_forever, self._sweep_forever, self._follow_forever):
            self._tasks.append(asyncio.create_task(self._again_and_again(work), name=f"registry {work.__name__}"))

    async def _check_signer(self) -> None:
        """All registries of a store sign with one key: members take lists of no other."""
        known = (await self.store.offer("public key", self.signer.public.encode())).decode()
        if known != self.signer.public:
            raise StoreFailed(
                f"this registry signs with the key {self.signer.public}, and the lists of its store are signed with "
                f"{known}. Copy the signing key of the first registry here (--signing-key FILE). Where it is lost, "
                "begin with another store, and give the members the new public_key."
            )

    async def aclose(self) -> None:
        """Answers all who wait; what is pending is committed."""
        self.closing = True
        for name in list(self.streams):
            for stream in list(self.streams[name]):
                stream.wake()
        self._wake_polls(*list(self.polls))
        await end(*self._tasks)
        for name in {**self._pending, **self._waiting, **self._unsaved}:
            async with self._turn:
                await self._commit(name)
        await self.store.aclose()

    async def _again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except StoreFailed as error:
                self._tell_trouble(error)
            except Exception:
                self.counts["breakdowns"] += 1
                log.exception("a part of the registry broke down; it goes on in a second")
            await asyncio.sleep(RETRY_S)

    def _tell_trouble(self, error: StoreFailed) -> None:
        self.counts["store_failures"] += 1
        if self.trouble != str(error):
            self.trouble = str(error)
            how = "nobody new is taken in" if self.store.shared else "all goes on from memory, and is written later"
            log.error("the store fails; the last lists stand, %s: %s", how, error)

    def _tell_recovery(self) -> None:
        if self.trouble:
            log.warning("the store works again")
            self.trouble = ""

    # --- what members ask -------------------------------------------------------------------------------------------

    async def put(self, name: str, lease: str, member: Member, proof: str = "") -> int:
        """Joins, or renews the lease. Returns a version at which it is listed."""
        group, entry = self.group(name), Entry(member, self.instance if self.store.shared else ALONE, proof)
        if self._latest(group, lease) != entry:
            self._make_room(group, lease, member)
            group.heard(lease, self.now() + self.ttl_s)
            pending = self._pending.setdefault(name, {})
            pending.pop(lease, None)
            pending[lease] = entry
            return await self._committed(name)
        group.heard(lease, self.now() + self.ttl_s)
        return await self._committed(name) if self._is_moving(group, lease) else group.version

    def _make_room(self, group: Group, lease: str, member: Member) -> None:
        pending = self._pending.setdefault(group.name, {})
        if lease not in group.entries and len(group.entries) + len(pending) >= self.members_max:
            raise Full(f"the group {group.name!r} has {self.members_max} members, which is the limit")
        rivals = group.make_room(lease, member, self.now(), self._living - {self.instance})
        if rivals is None:
            self.counts["addresses_refused"] += 1
            raise Taken(
                f"another member lives at {member.address}, or has the id {member.id:016x}; its place is free when it "
                "leaves, or falls silent"
            )
        for rival in rivals:
            pending[rival] = None
            group.deadlines.pop(rival, None)
            self.counts["replaced"] += 1

    async def drop(self, name: str, lease: str) -> int:
        group = self.group(name)
        if self._latest(group, lease) is None:
            return group.version
        group.deadlines.pop(lease, None)
        group.farewells[lease] = None
        self._pending.setdefault(name, {})[lease] = None
        return await self._committed(name)

    async def change(self, name: str, changes: Mapping[str, Entry | None]) -> int:
        """What no member asked for: bans."""
        self.group(name)
        self._pending.setdefault(name, {}).update(changes)
        return await self._committed(name)

    def _latest(self, group: Group, lease: str) -> Entry | None:
        """Also when it is not committed yet."""
        moving = self._moving(group)
        return next((changes[lease] for changes in moving if lease in changes), group.entries.get(lease))

    def _is_moving(self, group: Group, lease: str) -> bool:
        return any(lease in changes for changes in self._moving(group))

    def _moving(self, group: Group) -> list[dict[str, Entry | None]]:
        """What is on its way to the store, the latest first."""
        flying = self._in_flight[1] if self._in_flight[0] == group.name else {}
        return [self._pending.get(group.name, {}), flying]

    async def _committed(self, name: str) -> int:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[name].append(done)
        self._work.set()
        return await done

    async def line(self, name: str, after: int, wait_s: float) -> tuple[int, tuple[bytes, str] | None]:
        """The version of now, and what leads there from `after`: at once, or when something has changed."""
        group = self.group(name)
        await self.check_not_set_back(group, after)
        told = group.since(after, self.now())
        if told is None and wait_s > 0 and not self.closing:
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.polls[name].add(changed)
            try:
                async with asyncio.timeout(wait_s):
                    await changed
            except TimeoutError:
                pass
            finally:
                self.polls[name].discard(changed)
            told = group.since(after, self.now())
        return group.version, told

    def group(self, name: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= self.groups_max:
                raise Full(f"there are {self.groups_max} groups, which is the limit")
            group = self.groups[name] = Group(name, self.signer, None, self.now(), 0.0)
        group.used_at = self.now()
        return group

    # --- changes ----------------------------------------------------------------------------------------------------

    async def _commit_forever(self) -> None:
        while True:
            wait_s = RETRY_S if self._unsaved else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._work.wait()
            self._work.clear()
            began = time.perf_counter()  # a loop may look at its own clock once a turn only
            for name in {**self._pending, **self._waiting, **self._unsaved}:
                async with self._turn:
                    await self._commit(name)
            await asyncio.sleep(min(GAP_MAX_S, max(GAP_S, 4 * (time.perf_counter() - began))))

    async def _commit(self, name: str) -> None:
        changes, waiting = self._pending.pop(name, {}), self._waiting.pop(name, [])
        group = self.group(name)
        owed = {**self._unsaved.get(name, {}), **changes}
        if not owed:
            self._release(waiting, group.version)
            return
        self._in_flight = name, changes
        try:
            previous, version = await self.store.commit(name, owed, group.version)
        except StoreFailed as error:
            self._tell_trouble(error)
            if self.store.shared:
                self._put_off(group, changes, waiting, error)
                return
            self._unsaved[name] = owed
            version = next_version(group.version, 0) if changes else group.version
        else:
            self._tell_recovery()
            self._unsaved.pop(name, None)
            self.counts["commits"] += 1
            if self.store.shared and previous != group.version:
                await self._read_again(name)
                changes = {}
        finally:
            self._in_flight = "", {}
        if changes:
            group.apply(changes, version)
            self._log(group, changes)
        self._release(waiting, group.version)
        self.broadcast(group)

    @staticmethod
    def _release(waiting: list[asyncio.Future[int]], version: int) -> None:
        for done in waiting:
            if not done.done():
                done.set_result(version)

    def _put_off(
        self, group: Group, changes: dict[str, Entry | None], waiting: list[asyncio.Future[int]], error: StoreFailed
    ) -> None:
        for lease, entry in changes.items():
            if entry is None:
                group.deadlines[lease] = self.now() + RETRY_S
            else:
                group.forget_claim(lease)
        for done in waiting:
            if not done.done():
                done.set_exception(error)

    def _log(self, group: Group, changes: dict[str, Entry | None]) -> None:
        joined = sum(entry is not None for entry in changes.values())
        self.counts["joined"] += joined
        self.counts["left"] += len(changes) - joined
        what = {"group": group.name, "version": group.version, "joined": joined, "left": len(changes) - joined}
        log.info("the list changed", extra={"fields": what | {"members": len(group.entries)}})

    async def _read(self, name: str) -> None:
        """Makes the group what the store has."""
        stored = await self.store.read(name)
        if stored is None:
            return
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name, self.signer, stored, self.now(), self.settled_at)
        elif stored.version > group.version:
            group.apply(group.differences(stored), stored.version, is_next=False)
        for lease in list(group.deadlines):
            entry = stored.entries.get(lease)
            if entry is None or (entry.owner != self.instance and entry.owner in self._living):
                del group.deadlines[lease]
        group.adopt(self._living, self.now() + self.ttl_s)

    async def _read_again(self, name: str) -> None:
        self._unread.add(name)
        await self._read(name)
        self._unread.discard(name)

    async def check_not_set_back(self, group: Group, after: int) -> None:
        """U3. At most every SET_BACK_EVERY_S for a group: who shows impossible versions moves nothing more."""
        if group.knows(after) or after > time.time_ns() // 1_000_000 + CLOCK_SLACK_MS:
            return
        async with self._turn:
            with contextlib.suppress(StoreFailed):
                if self.store.shared:
                    await self._read_again(group.name)
                recently = self._set_back_at.get(group.name, float("-inf")) + SET_BACK_EVERY_S
                if group.knows(after) or self.now() < recently:
                    return
                self._set_back_at[group.name] = self.now()
                log.warning(
                    "group %s: a client has seen version %d, which this store never had: it was set back or lost. "
                    "The list settles anew for %g s",
                    *(group.name, after, self.settle_s),
                )
                self.counts["set_back"] += 1
                _, version = await self.store.commit(group.name, {}, max(after, group.version))
                group.begin_anew(version, self.now() + self.settle_s)
                self.broadcast(group)

    # --- time -------------------------------------------------------------------------------------------------------

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            if self.store.shared:
                await self._beat()
            now = self.now()
            for group in list(self.groups.values()):
                over = [] if self.store.shared and self.trouble else group.over(now)
                if over:
                    self.counts["expired"] += len(over)
                    log.info("leases are over", extra={"fields": {"group": group.name, "members": len(over)}})
                    self._pending.setdefault(group.name, {}).update(dict.fromkeys(over))
                    self._work.set()
                elif group.is_idle(now) and group.name not in self._pending and not self.streams[group.name]:
                    await self._forget(group.name)

    async def _beat(self) -> None:
        if self.now() - self._beaten_at < BEAT_S:
            return
        living = await self.store.beat(self.instance)
        self._tell_recovery()
        if self.now() - self._beaten_at > INSTANCE_LIVES_S:
            living |= {self.instance}  # others may have taken our members over; whoever is heard here comes back
        self._beaten_at = self.now()
        gone, self._living = self._living - living, living
        async with self._turn:
            for name in [*self.groups] if gone else [*self._unread]:
                await self._read_again(name)

    async def _forget(self, name: str) -> None:
        async with self._turn:
            await self.store.forget(name)
            if self.groups[name].is_idle(self.now()):
                group = self.groups.pop(name)
                for listener in self.listeners:
                    listener(group, is_forgotten=True)
                self.streams.pop(name, None)
                self.polls.pop(name, None)
                self._set_back_at.pop(name, None)

    async def _follow_forever(self) -> None:
        """What other registries changed."""
        while True:
            name = await self.store.changed()
            async with self._turn:
                for one in [name] if name else await self.store.groups():
                    await self._read_again(one)
                    if one in self.groups:
                        self.broadcast(self.groups[one])

    # --- telling ----------------------------------------------------------------------------------------------------

    def broadcast(self, group: Group) -> None:
        now, began = self.now(), time.perf_counter()
        frames: dict[int, Stream.Frame] = {}
        for stream in list(self.streams[group.name]):
            if stream.version not in frames:
                told = group.since(stream.version, now)
                frames[stream.version] = Stream.frame(wire.event(group.version, *told)) if told else None
            stream.tell(frames[stream.version], group.version)
        self._wake_polls(group.name)
        for listener in self.listeners:
            listener(group)
        self.counts["broadcasts"] += 1
        self.counts["broadcast_microseconds"] += round((time.perf_counter() - began) * 1e6)

    def _wake_polls(self, *names: str) -> None:
        for name in names:
            for changed in self.polls[name]:
                if not changed.done():
                    changed.set_result(None)
