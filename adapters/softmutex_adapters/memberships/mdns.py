"""Members of one name on a LAN find each other, with nothing configured: `mdns://lab`.

What it decides: multicast DNS is a hint of whom to greet, and no more. The naive way takes it for a list of members.
But it is no failure detector (the record of a killed process stays for minutes), and anybody on the network can invent
members or say goodbye for others. So the list shows whoever was announced, without a goodbye since and within the TTL;
`complete` is not promised (M7), so that the node greets each newcomer, and asks each one who leaves the list before it
believes it.

    join --> announce --> three times, and whenever the interfaces change or somebody says goodbye in my name
    open --> look around, once --> ask all after 1, 2, 4, ... s, then every ASK_S (a second a member, if that is more),
             naming those who need not answer; ask one of whom nothing was heard for half of his TTL
    every record heard --> Roll --> watch, at most every GAP_S

A failing network is silence and a counter: `failures`, and `unheard` where what this node sends does not come back.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, Self

from softmutex.core.errors import ConfigError
from softmutex.ending import end
from softmutex.ports import CannotOpen, Closed, Member
from softmutex.saying import logger
from softmutex.urls import Url
from softmutex_adapters.memberships import mdns_text
from softmutex_adapters.memberships.mdns_places import check_chosen, look
from softmutex_adapters.memberships.mdns_roll import Roll

if TYPE_CHECKING:
    from softmutex_adapters.memberships.mdns_air import Air

log = logger("membership")

DEFAULT_NAME = "default"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
TTL_S = 120
GAP_S = 0.1  # between two lists: a flood of records is one piece of news
TICK_S = 0.5
ASK_S = 30.0
ASK_MAX_S = 300.0
REFUSED_ASK_S = 2.0  # after a flood, in which somebody real may have been refused
KNOWN_MAX = 400  # answers that a question names; they take 12 KB
LOOK_S = 3.0  # between two looks at the interfaces
LOOKS_AFTER_CHANGE = 3  # an IPv6 address cannot be used at once
RESCUE_S = 1.0  # others hear nothing of one declared gone for a moment, and no packet twice within 0.8 s
RETRY_S = 5.0


class MdnsMembership:
    """`mdns://name?interfaces=eth0,127.0.0.1&ip=4|6|both&ttl=seconds`

    Without `interfaces` it is all of them. Members that differ in `ip` or `interfaces` meet where these overlap.
    `ttl` is how long a killed process stays in the list if nobody needs it: 120 s, or 4 s in a group of a dozen, which
    then asks about once a second.
    """

    def __init__(
        self, name: str = DEFAULT_NAME, *, interfaces: Sequence[str] = (), ip: str = "both", ttl: int = TTL_S
    ) -> None:
        name = name or DEFAULT_NAME
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"mdns://{name}: a group's name has up to 64 letters, digits, dots, dashes and underscores, and "
                "starts with no dot and no dash."
            )
        if ip not in ("4", "6", "both"):
            raise ConfigError(f"mdns://{name}: ip={ip} is none of 4, 6, both.")
        self._name = name
        self._chosen, self._ip, self._ttl_s = tuple(interfaces), ip, ttl
        self._roll = Roll(mdns_text.fingerprint(name))
        self._me: Member | None = None
        self._air: Air | None = None
        self._runner: asyncio.Task[None] | None = None
        self._trouble: Exception | None = None
        self._tried = asyncio.Event()  # the first attempt to open is over
        self._settled = asyncio.Event()  # and whoever was there had time to answer
        self._changed = asyncio.Event()
        self._closed = False
        self._shown: tuple[Member, ...] | None = None
        self._shown_version = -1
        self._shown_at = float("-inf")
        self._counts = dict.fromkeys(["asked", "failures", "unheard", "rescues", "moves"], 0)

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        interfaces = [one.strip() for one in (parts.text("interfaces") or "").split(",") if one.strip()]
        ip = parts.text("ip", "both") or ""
        ttl = parts.integer("ttl", TTL_S, low=4, high=3600)
        parts.finish()
        return cls(parts.place.removesuffix("/"), interfaces=interfaces, ip=ip, ttl=ttl)

    # --- the port ---------------------------------------------------------------------------------------------------

    async def join(self, me: Member) -> None:
        if self._me is not None:
            raise RuntimeError("this membership was joined before; leave first, or make a new one")
        if not me.id:
            raise ValueError("mdns:// tells members apart by their id, and this one has none")
        said = mdns_text.write(me, self._roll.group)
        check_chosen(self._chosen)
        self._start()
        await self._tried.wait()
        if self._closed:
            raise Closed("the membership is closed")
        if self._air is None:
            self._explain(self._trouble)
        self._me, self._roll.me = me, me.id
        await self._air.announce(said["id"], said, said["address"], self._ttl_s)
        await self._settled.wait()

    async def watch(self) -> Sequence[Member]:
        loop = asyncio.get_running_loop()
        while not self._closed:
            self._start()
            await self._settled.wait()
            if self._shown_version != self._roll.version:
                await asyncio.sleep(max(0.0, self._shown_at + GAP_S - loop.time()))
                self._shown_version = self._roll.version
                others = self._roll.others(self._me.address if self._me else "")
                if others != self._shown and not self._closed:
                    self._shown, self._shown_at = others, loop.time()
                    return others
            self._changed.clear()
            if self._shown_version == self._roll.version and not self._closed:
                await self._changed.wait()
        raise Closed("the membership is closed")

    async def leave(self) -> None:
        if self._me is not None:
            await self._stop()
            self._changed.set()  # whoever watches goes on, as an onlooker

    async def aclose(self) -> None:
        self._closed = True
        await self._stop()
        for event in (self._tried, self._settled, self._changed):
            event.set()

    def group_key(self) -> bytes | None:
        return None

    def statistics(self) -> Mapping[str, int]:
        return {**self._counts, **self._roll.counts, "members": len(self._roll) - self._roll.hears_itself()}

    # --- the runner -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._closed:
            raise Closed("the membership is closed")
        if self._runner is None:
            self._tried.clear()
            self._settled.clear()
            self._runner = asyncio.get_running_loop().create_task(self._run(), name=f"softmutex mdns: {self._name}")

    async def _stop(self) -> None:
        """Says goodbye and closes the sockets: an answer that zeroconf still holds back must not follow the goodbye."""
        await end(self._runner)
        if self._air is not None:
            try:
                await self._air.say_goodbye()
            except Exception as error:
                self._note_failure(error)
            finally:
                await self._air.close()
        self._runner = self._air = None  # not before: whoever watches would start anew in the middle of it
        self._me = None
        self._roll.left()

    async def _run(self) -> None:
        while not await self._open():  # noqa: ASYNC110 it tries again, and waits for nobody
            await asyncio.sleep(RETRY_S)
        loop = asyncio.get_running_loop()
        gap_s, ask_at, look_at, looks = 1.0, loop.time() + 1.0, loop.time() + LOOK_S, 0
        refused = 0
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            self._roll.expire(now)
            if self._roll.version != self._shown_version:
                self._changed.set()
            try:
                await self._rescue(now)
                self._ask(now)
                if now >= ask_at:
                    gap_s = min(gap_s * 2, max(ASK_S, min(len(self._roll), ASK_MAX_S)))
                    if self._roll.counts["refused"] > refused:
                        refused, gap_s = self._roll.counts["refused"], REFUSED_ASK_S
                    ask_at = now + gap_s * random.uniform(0.75, 1.25)
                    self._ask_all(now)
                if now >= look_at:
                    look_at = now + LOOK_S
                    looks = await self._follow_interfaces(looks)
            except Exception as error:  # whatever the network or zeroconf comes up with (M4)
                self._note_failure(error)

    async def _open(self) -> bool:
        try:
            from softmutex_adapters.memberships.mdns_air import Air  # zeroconf: only where it is used

            places = look(self._chosen, self._ip)
            self._roll.moved(places)
            self._air = Air(self._roll, places, self._changed.set)
            await self._air.start()
            self._trouble = None
            self._tried.set()
            await self._air.look_around()
        except Exception as error:
            self._note_failure(error)
            self._trouble = error
            if not self._tried.is_set() and self._air is not None:
                await self._air.close()
                self._air = None
        finally:
            self._tried.set()
            self._settled.set()
        return self._air is not None

    async def _rescue(self, now: float) -> None:
        """Somebody said goodbye in the name of this node."""
        gone_at = self._roll.declared_gone_at
        if gone_at is not None and now - gone_at >= RESCUE_S and self._air is not None:
            self._roll.declared_gone_at = None
            self._counts["rescues"] += 1
            await self._air.announce_again()

    def _ask(self, now: float) -> None:
        labels = self._roll.due(now)
        if labels and self._air is not None:
            self._counts["asked"] += 1
            self._air.ask(labels)

    def _ask_all(self, now: float) -> None:
        if self._air is None:
            return
        self._counts["asked"] += 1
        self._air.ask_all(self._roll.known(now, KNOWN_MAX))
        if self._me is not None and not self._roll.hears_itself() and self._roll.declared_gone_at is None:
            self._counts["unheard"] += 1
            if self._counts["unheard"] == 1:
                log.warning(
                    "mdns://%s: what this node sends by multicast does not come back; others may not hear it either. "
                    "Let UDP port 5353 to 224.0.0.251 and ff02::fb through the firewall, or use another membership.",
                    self._name,
                )

    async def _follow_interfaces(self, looks: int) -> int:
        """How many more looks are to be taken as if something had changed."""
        places = look(self._chosen, self._ip)
        if places == self._roll.here and not looks:
            return 0
        if places != self._roll.here:
            self._counts["moves"] += 1
            looks = LOOKS_AFTER_CHANGE
        if places.sockets and self._air is not None:  # without any the old ones stay, until there are new ones
            await self._air.move(places)
            self._ask_all(asyncio.get_running_loop().time())
        self._roll.moved(places)
        return looks - 1

    # --- failures ---------------------------------------------------------------------------------------------------

    def _note_failure(self, error: Exception) -> None:
        self._counts["failures"] += 1
        if self._counts["failures"] == 1:
            log.warning("mdns://%s: %s: %s. It is tried again.", self._name, type(error).__name__, error)

    def _explain(self, error: Exception | None) -> NoReturn:
        raise CannotOpen(
            f"mdns://{self._name} cannot be opened: {error}. Is UDP port 5353 free to share "
            "(avahi: disallow-other-stacks=no), and an interface up? Or choose one: mdns://name?interfaces=eth0"
        ) from error
