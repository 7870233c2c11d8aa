from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import ClassVar

from softmutex.ports import CannotOpen, Datagram, Explaining, OnThisHost, Prompt, Transport, is_on_this_host
from softmutex.testing.contracts.checks import Holdings, T, check, eventually, in_time, must_be_closed, repeating


class TransportContract:
    """T1 to T7 of `softmutex.ports.Transport`; T8 of those that are `OnThisHost`, T9 of those that are `Explaining`,
    T10 of those that are `Prompt`."""

    patience_s: ClassVar[float] = 30.0
    keeps: ClassVar[int] = 2048  # the most datagrams it keeps for a node that does not receive
    overflow_counter: ClassVar[str] = "queue_overflow"
    unresolvable: ClassVar[Sequence[str]] = ("", "no address at all", "a:b:c:d", "\0", "nobody")
    can_forge: ClassVar[bool] = False  # `forge` is there
    can_collide: ClassVar[bool] = False  # `make_at` is there
    can_refuse: ClassVar[bool] = False  # its network says where nobody listens
    is_private: ClassVar[bool] = True  # False: other hosts may reach those of `make`

    def make(self) -> Transport:
        """One that is not yet opened, at an address of its own."""
        raise NotImplementedError

    def make_at(self, address: str) -> Transport:
        """One whose place is the given `Transport.address`, which another has."""
        raise NotImplementedError

    def make_public(self) -> Transport | None:
        """One that other hosts may reach, by where it listens or by what it shows; None where there is no such thing.
        Those of `make` are for this host alone, where they say whether they are."""
        return None

    async def forge(self, address: str, payload: bytes) -> None:
        """Lets `payload` arrive at `address` from outside, past the checks of `send`."""
        raise NotImplementedError

    # --- T1 ---------------------------------------------------------------------------------------------------------

    async def test_t1_an_absent_peer_is_silence_not_an_error(self) -> None:
        async with self.opened(3) as (here, there, gone):
            absent = gone.address
            await gone.aclose()
            for _ in range(20):
                here.send(absent, b"anybody there?")
                await asyncio.sleep(0)
            await self._must_arrive(here, there)

    async def test_t1_an_address_that_makes_no_sense_is_a_counted_loss(self) -> None:
        async with self.opened(2) as (here, there):
            for address in self.unresolvable:
                before = sum(here.statistics().values())
                here.send(address, b"to whom?")
                await eventually(
                    lambda before=before: sum(here.statistics().values()) > before,  # type: ignore[misc]
                    f"send({address!r}) was lost without being counted",
                    self.patience_s,
                )
            await self._must_arrive(here, there)

    async def test_t1_a_full_buffer_is_silence_not_an_error(self) -> None:
        async with self.opened(2) as (here, there):
            for _ in range(5000):
                here.send(there.address, b"x" * min(1400, here.max_datagram))
            await self._must_arrive(here, there)

    # --- T2 ---------------------------------------------------------------------------------------------------------

    async def test_t2_a_datagram_arrives_whole_or_not_at_all(self) -> None:
        async with self.opened(2) as (here, there):
            largest = here.max_datagram
            sizes = sorted({1, 2, 3, 127, 128, 255, 256, 1000, largest - 1, largest})
            sent = {bytes((size + place * 7) % 256 for place in range(size)) for size in sizes}
            arrived: set[bytes] = set()

            async def collect() -> None:
                while arrived != sent:
                    got = {datagram.payload for datagram in await there.receive()}
                    check(got <= sent, f"arrived, but was never sent: {[len(p) for p in got - sent]} bytes")
                    arrived.update(got)

            def send_the_rest() -> None:
                for payload in sorted(sent - arrived):
                    here.send(there.address, payload)

            async with repeating(send_the_rest):
                await self._in_time(collect(), "not every size arrives")

    async def test_t2_one_that_is_too_large_is_refused_by_send(self) -> None:
        async with self.opened(2) as (here, there):
            try:
                here.send(there.address, bytes(here.max_datagram + 1))
            except ValueError:
                await self._must_arrive(here, there)
            else:
                raise AssertionError(f"send took {here.max_datagram + 1} bytes, one over its own max_datagram")

    async def test_t2_one_that_arrives_too_large_is_dropped_and_counted(self) -> None:
        if not self.can_forge:
            return  # nothing but its own `send` can put datagrams in
        async with self.opened(2) as (here, there):
            before = sum(there.statistics().values())
            await self.forge(there.address, bytes(there.max_datagram + 1))
            await eventually(
                lambda: sum(there.statistics().values()) > before,
                "it was dropped without being counted",
                self.patience_s,
            )
            await self._must_arrive(here, there)

    # --- T3 ---------------------------------------------------------------------------------------------------------

    async def test_t3_after_aclose_receive_raises_closed_and_nothing_is_left(self) -> None:
        async with self.opened(2) as (here, there):
            await self._must_arrive(here, there)
        holdings = Holdings()  # what a loop or a library makes once and keeps is there already
        async with self.opened(2) as (here, there):
            await self._must_arrive(here, there)
            waiting = asyncio.ensure_future(self._until_closed(there))
            await asyncio.sleep(0)
            here.send(here.address, b"nobody will read this")
            await here.aclose()
            await there.aclose()
            await self._must_be_closed(waiting)
            for closed in (here, there):
                await self._must_be_closed(closed.receive())
            here.send(there.address, b"after the end")
            await here.aclose()
            await holdings.must_return()

    async def test_t3_one_that_was_never_opened_can_be_closed(self) -> None:
        transport = self.make()
        await transport.aclose()
        await self._must_be_closed(transport.receive())

    # --- T4 ---------------------------------------------------------------------------------------------------------

    async def test_t4_what_came_before_the_first_receive_is_there(self) -> None:
        async with self.opened(2) as (here, there):
            for _ in range(3):
                here.send(there.address, b"early")
            await asyncio.sleep(0.05)
            async with repeating(lambda: here.send(there.address, b"late")):
                first = (await self._in_time(there.receive(), "nothing arrives"))[0]
            check(first.payload == b"early", "what was sent before the first receive is lost")

    async def test_t4_for_one_who_does_not_receive_the_oldest_are_dropped_and_counted(self) -> None:
        async with self.opened(2) as (here, there):
            sent = 0
            while there.statistics()[self.overflow_counter] == 0:
                check(sent < 100 * self.keeps, f"after {sent} datagrams {self.overflow_counter} tells of no loss")
                for _ in range(8):
                    here.send(there.address, b"%d" % sent)
                    sent += 1
                await asyncio.sleep(0)
            for _ in range(20):
                here.send(there.address, b"the newest")
                await asyncio.sleep(0.01)
            batch = await self._in_time(there.receive(), "nothing arrives")
            check(len(batch) <= self.keeps, f"it kept {len(batch)} datagrams, more than the {self.keeps} it may")
            check(batch[-1].payload == b"the newest", f"the newest was dropped, {batch[-1].payload!r} was kept")

    # --- T5 ---------------------------------------------------------------------------------------------------------

    async def test_t5_a_reply_to_the_source_reaches_the_sender(self) -> None:
        async with self.opened(2) as (here, there):
            asked = await self._must_arrive(here, there)
            async with repeating(lambda: there.send(asked.source, b"reply")):
                await self._in_time(self._until(here, b"reply"), f"no reply reaches {asked.source!r}")

    # --- T6 ---------------------------------------------------------------------------------------------------------

    async def test_t6_the_constructor_needs_no_loop(self) -> None:
        here, there = await asyncio.to_thread(self.make), await asyncio.to_thread(self.make)
        try:
            await here.open()
            await there.open()
            await self._must_arrive(here, there)
        finally:
            await here.aclose()
            await there.aclose()

    async def test_t6_a_place_that_is_taken_raises_cannot_open(self) -> None:
        if not self.can_collide:
            return  # its places are never taken
        async with self.opened(1) as (here,):
            second = self.make_at(here.address)
            try:
                await second.open()
            except CannotOpen as error:
                check(len(str(error)) > 20, f"CannotOpen does not say what to do: {error}")
            else:
                raise AssertionError(f"two were opened at {here.address}")
            finally:
                await second.aclose()

    async def test_t6_cancelling_a_waiting_receive_loses_nothing(self) -> None:
        async with self.opened(2) as (here, there):
            for _ in range(5):
                waiting = asyncio.ensure_future(there.receive())
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
            await self._must_arrive(here, there)

    # --- T7 ---------------------------------------------------------------------------------------------------------

    async def test_t7_where_nobody_listens_is_told_each_time_and_of_nobody_else(self) -> None:
        if not self.can_refuse:
            return  # its network does not know
        async with self.opened(4) as (here, there, gone, also_gone):
            absent = [gone.address, also_gone.address]
            await gone.aclose()
            await also_gone.aclose()
            for _ in range(3):
                for address in absent:
                    await self._in_time(self._refusal(here, address, absent), f"nothing is told of {address}")
                await self._must_arrive(here, there)
                await self._must_arrive(there, here)

    async def test_t7_an_empty_datagram_is_no_refusal(self) -> None:
        async with self.opened(2) as (here, there):
            for _ in range(5):
                here.send(there.address, b"")
            here.send(there.address, b"that was all")
            async with repeating(lambda: here.send(there.address, b"still there?")):
                while not (arrived := await self._in_time(there.receive(), "nothing arrives")):
                    pass
            check(all(datagram.payload for datagram in arrived), "an empty datagram was given to the node")

    # --- T8 ---------------------------------------------------------------------------------------------------------

    async def test_t8_it_says_that_only_this_host_reaches_it_where_that_is_so(self) -> None:
        async with self.opened(1) as (here,):
            if isinstance(here, OnThisHost):
                check(here.on_this_host is self.is_private, f"{here.address}: on_this_host is {here.on_this_host}")
        public = self.make_public()
        if public is not None:
            try:
                await public.open()
                check(isinstance(public, OnThisHost), "it was said which are public, and not by the transport itself")
                check(not is_on_this_host(public), f"other hosts reach {public.address}, and on_this_host is true")
            finally:
                await public.aclose()

    # --- T9 ---------------------------------------------------------------------------------------------------------

    async def test_t9_neither_whom_it_reaches_nor_who_is_not_there_is_a_trouble(self) -> None:
        async with self.opened(3) as (here, there, gone):
            absent = gone.address
            await gone.aclose()
            here.send(absent, b"anybody there?")
            await self._must_arrive(here, there)
            told = here.troubles() if isinstance(here, Explaining) else {}
            check(not told, f"all that is there was reached, and these are told of: {told}")

    # --- T10 --------------------------------------------------------------------------------------------------------

    async def test_t10_what_comes_is_handed_over_in_order_until_that_is_ended(self) -> None:
        async with self.opened(2) as (here, there):
            if not isinstance(there, Prompt):
                return
            here.send(there.address, b"early")
            await asyncio.sleep(0.05)
            taken: list[bytes] = []
            there.hand_to(lambda datagram: taken.append(datagram.payload))
            async with repeating(lambda: here.send(there.address, b"late")):
                await eventually(lambda: b"late" in taken, "nothing is handed over", self.patience_s)
            check(taken[0] == b"early", "what was there before is not handed over, or not first")
            there.hand_to(None)
            count = len(taken)
            await self._must_arrive(here, there)
            check(len(taken) == count, "it is handed over still")
            there.hand_to(lambda datagram: taken.append(datagram.payload))
            await there.aclose()
            count = len(taken)
            here.send(there.address, b"after the end")
            await asyncio.sleep(0.05)
            check(len(taken) == count, "it is handed over after the end")

    async def test_t10_nothing_is_handed_over_within_send(self) -> None:
        async with self.opened(2) as (here, gone):
            if not isinstance(here, Prompt):
                return
            absent = gone.address
            await gone.aclose()
            taken: list[Datagram] = []
            is_sending = was_within = False

            def take(datagram: Datagram) -> None:
                nonlocal was_within
                was_within |= is_sending
                taken.append(datagram)

            def send() -> None:
                nonlocal is_sending
                is_sending = True
                for address in (absent, here.address, absent, here.address):
                    here.send(address, b"anybody there?")
                is_sending = False

            here.hand_to(take)
            wanted = {absent, here.address} if self.can_refuse else {here.address}
            async with repeating(send):
                await eventually(
                    lambda: wanted <= {datagram.source for datagram in taken}, "nothing comes", self.patience_s
                )
            check(not was_within, "it was handed over within `send`")

    # --- how --------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def opened(self, count: int) -> AsyncIterator[Sequence[Transport]]:
        transports = [self.make() for _ in range(count)]
        try:
            for transport in transports:
                await transport.open()
            yield transports
        finally:
            for transport in transports:
                await transport.aclose()

    async def _refusal(self, here: Transport, address: str, absent: Sequence[str]) -> None:
        async with repeating(lambda: here.send(address, b"anybody there?")):
            refused = ""
            while refused != address:
                for datagram in await here.receive():
                    if not datagram.payload:
                        refused = datagram.source
                        check(refused in absent, f"{refused!r} was told of, and somebody listens there")

    async def _must_arrive(self, sender: Transport, receiver: Transport) -> Datagram:
        """It still works: a datagram arrives, if need be the tenth of its kind."""
        async with repeating(lambda: sender.send(receiver.address, b"still there?")):
            return await self._in_time(self._until(receiver, b"still there?"), "nothing arrives any more")

    @staticmethod
    async def _until(receiver: Transport, payload: bytes) -> Datagram:
        while True:
            for datagram in await receiver.receive():
                if datagram.payload == payload:
                    return datagram

    @staticmethod
    async def _until_closed(receiver: Transport) -> None:
        """What was sent until then may still come: on a busy machine a datagram is sent again before it arrives."""
        while True:
            await receiver.receive()

    async def _in_time(self, what: Awaitable[T], otherwise: str) -> T:
        return await in_time(what, otherwise, self.patience_s)

    async def _must_be_closed(self, waiting: Awaitable[object]) -> None:
        await must_be_closed(waiting, self.patience_s)
