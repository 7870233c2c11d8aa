"""How soon the mutex is held again after something went wrong, with real processes, one row a kind of fault.

A few processes want the mutex all the time. Then one is killed, stopped, cut off; somebody outside takes the time until
the next one is in, adds up the seconds in which two were in at once, and looks whether everything that was asked for
was granted in the end. `static://` is how hosts are: nobody tells of a death. On one host, `local://` has it from the
kernel. Hosts that are cut off from each other are network namespaces, which only root can make.

    recovery      from the fault to the next grant (waiter killed, churn: the longest time that nobody was in)
    overlaps      how often two were in at once, as seen from outside; `untold`: of these, nobody in it was told
    told          holds that were told that they may not be the only ones
    lost          requests that were never granted: 0, or it is a bug
    back          from healing until those who were cut off had all been in
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from softmutex.cli.benching.crew import Crew, CrewMember, overlaps_of
from softmutex.cli.benching.servers import free_port

NODES = 5
CHURNERS = 10
CHURN_PER_MINUTE = 0.3
CALM_S = 1.0  # of undisturbed turns between two trials
Nodes = list[dict[str, Any]]
Trial = Callable[[Crew, random.Random], Awaitable[float]]


async def measure_recovery(quick: bool) -> list[dict[str, Any]]:
    trials = 1 if quick else 20
    rows = []
    with tempfile.TemporaryDirectory(prefix="softmutex-bench-") as home:
        static, local = static_nodes(NODES), local_nodes(NODES, f"{home}/runtime")
        faults: list[tuple[str, Nodes, Trial]] = [
            ("holder killed", static, kill_holder),
            ("holder killed, local://", local, kill_holder),
            ("waiter killed", static, kill_waiter),
            ("holder and watcher killed", static, kill_holder_and_watcher),
            ("holder stopped and continued", static, stop_holder),
        ]
        for scenario, nodes, trial in faults[:2] if quick else faults:
            rows.append(await measure(scenario, Crew(nodes), trial, trials))
        if quick:
            return rows
        churn = Crew(local_nodes(CHURNERS, f"{home}/churn"))
        rows.append(await measure("churn 30 % a minute", churn, replace_one, 6))
        try:
            async with hosts(NODES) as prefixes:
                crew = Crew(host_nodes(NODES, home), prefixes)
                back: list[float] = []
                row = await measure("hosts divided 3|2 and healed", crew, divide(back), trials // 2)
                rows.append({**row, "back_median_s": quantile(back, 0.5), "back_max_s": max(back)})
        except NoHosts as missing:
            rows.append({"scenario": "hosts divided 3|2 and healed", "left_out": str(missing)})
    return rows


async def measure(scenario: str, crew: Crew, trial: Trial, trials: int) -> dict[str, Any]:
    print(f"  {scenario}: {trials} trials", file=sys.stderr, flush=True)
    chance = random.Random(1)
    took = []
    async with crew:
        for _ in range(trials):
            await asyncio.sleep(CALM_S * (0.5 + chance.random()))
            took.append(await trial(crew, chance))
        lost = await crew.rest()
    seconds, count, untold = overlaps_of(crew.stays())
    return {
        "scenario": scenario,
        "trials": trials,
        "recovery_median_s": quantile(took, 0.5),
        "recovery_p90_s": quantile(took, 0.9),
        "recovery_max_s": max(took),
        "overlap_s": seconds,
        "overlaps": count,
        "untold": untold,
        "told": sum(stay.told for stay in crew.stays()),
        "lost": lost,
    }


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


# --- what goes wrong --------------------------------------------------------------------------------------------------


async def keeper(crew: Crew, chance: random.Random, among: Sequence[CrewMember] = ()) -> CrewMember:
    """One that has it and keeps it, for a while by now."""
    member = (among or crew.members)[int(chance.random() * len(among or crew.members))]
    member.order("keep")
    await member.says("kept")
    await asyncio.sleep(chance.random() * 2)
    return member


async def watcher_of(crew: Crew, holder: CrewMember) -> CrewMember:
    """The first that is alive. A token that was made anew, or whose watchers have just died, soon names others."""
    while True:
        holder.order("look")
        for watcher in (await holder.says("looked"))["watchers"]:
            for member in crew.others(holder):
                if member.id == watcher:
                    return member
        await asyncio.sleep(0.1)


async def again(crew: Crew, *members: CrewMember) -> None:
    """The dead are started again, and everybody has had a turn."""
    for member in members:
        await member.start()
        member.order("go")
    await crew.all_get_in(time.monotonic())


async def kill_holder(crew: Crew, chance: random.Random) -> float:
    holder = await keeper(crew, chance)
    died_at = await holder.kill()
    recovered_at = await crew.next_grant(died_at, crew.others(holder))
    await again(crew, holder)
    return recovered_at - died_at


async def kill_holder_and_watcher(crew: Crew, chance: random.Random) -> float:
    holder = await keeper(crew, chance)
    watcher = await watcher_of(crew, holder)
    died_at = await holder.kill()
    await watcher.kill()
    recovered_at = await crew.next_grant(died_at, crew.others(holder, watcher))
    await again(crew, holder, watcher)
    return recovered_at - died_at


async def kill_waiter(crew: Crew, chance: random.Random) -> float:
    holder = await keeper(crew, chance)
    waiter = crew.others(holder)[int(chance.random() * (len(crew.members) - 1))]
    await waiter.kill()
    holder.order("release")
    left_at = (await holder.says("out"))["at"]
    all_in_at = await crew.all_get_in(left_at, crew.others(waiter))
    idle = crew.longest_gap(left_at, all_in_at)
    await again(crew, waiter)
    return idle


async def stop_holder(crew: Crew, chance: random.Random) -> float:
    """It is woken up when it has been replaced for half a second, in a body that goes on for as long, or until told."""
    holder = await keeper(crew, chance)
    stopped_at = holder.signal(signal.SIGSTOP)
    recovered_at = await crew.next_grant(stopped_at, crew.others(holder))
    await asyncio.sleep(0.5)
    holder.signal(signal.SIGCONT)
    await asyncio.sleep(0.5)
    holder.order("release")
    await again(crew)
    return recovered_at - stopped_at


async def replace_one(crew: Crew, chance: random.Random) -> float:
    """One leaves in good order and another one comes, then all is quiet until it is time for the next."""
    leaver = crew.members.pop(int(chance.random() * len(crew.members)))
    crew.gone.append(leaver)
    began_at = time.monotonic()
    newcomer = leaver.successor()
    await asyncio.gather(leaver.leave(), newcomer.start())
    crew.members.append(newcomer)
    newcomer.order("go")
    await crew.all_get_in(time.monotonic())
    idle = crew.longest_gap(began_at, time.monotonic())
    await asyncio.sleep(max(0.0, began_at + 60 / (CHURN_PER_MINUTE * CHURNERS) - CALM_S - time.monotonic()))
    return idle


def divide(back: list[float]) -> Trial:
    """The holder is on the smaller side. How long those who were cut off needed to come back goes to `back`."""

    async def trial(crew: Crew, chance: random.Random) -> float:
        cut_off, others = crew.members[:2], crew.members[2:]
        holder = await keeper(crew, chance, among=cut_off)
        await plug(range(2), "island")
        cut_at = time.monotonic()
        recovered_at = await crew.next_grant(cut_at, others)
        await asyncio.sleep(2 * chance.random())
        await plug(range(2), "bridge")
        healed_at = time.monotonic()
        holder.order("release")
        back.append(await crew.all_get_in(healed_at, cut_off) - healed_at)
        await again(crew)
        return recovered_at - cut_at

    return trial


# --- where they run ---------------------------------------------------------------------------------------------------


def static_nodes(count: int) -> Nodes:
    places = [f"127.0.0.1:{port}" for port in free_ports(count)]
    return [{"transport": f"udp://{place}", "membership": "static://" + ",".join(places)} for place in places]


def free_ports(count: int) -> list[int]:
    ports: dict[int, None] = {}
    while len(ports) < count:
        ports[free_port()] = None
    return list(ports)


def local_nodes(count: int, directory: str) -> Nodes:
    return [{"transport": "udp://127.0.0.1:0", "membership": f"local://?directory={directory}"}] * count


def host_nodes(count: int, home: str) -> Nodes:
    key = Path(home, "key")
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(32))
    places = [f"{address_of(number)}:9431" for number in range(count)]
    group = {"membership": "static://" + ",".join(places), "key": str(key)}
    return [{"transport": f"udp://{place}", **group} for place in places]


class NoHosts(Exception):
    """Says what is missing."""


HUB = f"softmutex-{os.getpid()}"


def name_of(number: int) -> str:
    return f"{HUB}-{number}"


def address_of(number: int) -> str:
    return f"10.79.0.{number + 1}"


@asynccontextmanager
async def hosts(count: int) -> AsyncIterator[list[Sequence[str]]]:
    """Namespaces on a bridge that is in one of its own; with an island beside it, to which hosts can be moved."""
    if os.geteuid() or not shutil.which("ip"):
        raise NoHosts("only root can make hosts of namespaces, with iproute2's `ip`")
    names = [HUB, *map(name_of, range(count))]
    try:
        for name in names:
            await ip("netns", "add", name)
        for switch in ("bridge", "island"):
            await ip("-n", HUB, "link", "add", switch, "type", "bridge")
            await ip("-n", HUB, "link", "set", switch, "up")
        for number, name in enumerate(names[1:]):
            peer = ("type", "veth", "peer", "name", "eth0", "netns", name)
            await ip("-n", HUB, "link", "add", f"plug{number}", *peer)
            await ip("-n", HUB, "link", "set", f"plug{number}", "up")
            await ip("-n", name, "address", "add", f"{address_of(number)}/24", "dev", "eth0")
            await ip("-n", name, "link", "set", "lo", "up")
            await ip("-n", name, "link", "set", "eth0", "up")
        await plug(range(count), "bridge")
        yield [("ip", "netns", "exec", name) for name in names[1:]]
    finally:
        for name in names:
            await ip("netns", "delete", name, must=False)


async def plug(numbers: Sequence[int], switch: str) -> None:
    for number in numbers:
        await ip("-n", HUB, "link", "set", f"plug{number}", "master", switch)


async def ip(*words: str, must: bool = True) -> None:
    process = await asyncio.create_subprocess_exec("ip", *words, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    if must and process.returncode:
        raise NoHosts(f"ip {' '.join(words)}: {said.decode().strip()}")
