"""The runtime directory: who may read it, who is dead in it, and what it costs."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from softmutex_adapters.memberships import rundir
from softmutex_adapters.memberships.local import LocalMembership

from softmutex.core.errors import ConfigError
from softmutex.ports import CannotOpen, Closed, Member
from softmutex.testing.contracts.checks import eventually

Make = Callable[..., LocalMembership]

MEMBER = """
import asyncio, os, sys, time
from softmutex_adapters.memberships.local import LocalMembership
from softmutex.ports import Member

async def main(base, address, fork):
    membership = LocalMembership("group", directory=base)
    key = membership.group_key()
    await membership.join(Member(address))
    child = os.fork() if fork else -1
    if child == 0:
        time.sleep(600)
        os._exit(0)
    print(key.hex(), child, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], sys.argv[2], len(sys.argv) > 3))
"""


class Elsewhere:
    """Members in processes of their own."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.processes: list[subprocess.Popen[bytes]] = []
        self.children: list[int] = []

    def start(self, address: str, *, fork: bool = False) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", MEMBER, str(self.base), address, *(["fork"] if fork else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.processes.append(process)
        return process

    def key_of(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        key, child = process.stdout.readline().split()
        if int(child) > 0:
            self.children.append(int(child))
        return bytes.fromhex(key.decode())

    def end(self) -> None:
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


@pytest.fixture
def elsewhere(base: Path) -> Iterator[Elsewhere]:
    processes = Elsewhere(base)
    yield processes
    processes.end()


@pytest.fixture
async def make(no_leaks: None, base: Path) -> AsyncIterator[Make]:
    made: list[LocalMembership] = []

    def make_one(name: str = "group", **options: Any) -> LocalMembership:
        made.append(LocalMembership(name, **{"directory": str(base)} | options))
        return made[-1]

    yield make_one
    for membership in made:
        await membership.aclose()


async def until_shown(membership: LocalMembership, *wanted: str, within_s: float = 100.0) -> float:
    """How long it took until `watch` showed exactly these addresses."""
    start = asyncio.get_running_loop().time()
    async with asyncio.timeout(within_s):
        while {member.address for member in await membership.watch()} != set(wanted):
            pass
    return asyncio.get_running_loop().time() - start


# --- who may read it -------------------------------------------------------------------------------------------------


async def test_the_directory_and_all_in_it_belong_to_the_user_alone(make: Make, base: Path) -> None:
    membership = make()
    membership.group_key()
    await membership.join(Member("here:1"))
    for path in [base, *base.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert len((base / "group" / "key").read_bytes()) == 32


@pytest.mark.parametrize("inner", [False, True], ids=["base", "group"])
async def test_a_directory_that_others_may_enter_is_refused(make: Make, base: Path, inner: bool) -> None:
    place = base / "group" if inner else base
    (base / "group").mkdir(parents=True)
    (base / "group").chmod(0o700)
    base.chmod(0o700)
    place.chmod(0o755)
    with pytest.raises(CannotOpen, match=r"can be read or written by others \(mode 0755\).*chmod go= "):
        await make().join(Member("here:1"))


@pytest.mark.needs("root")
async def test_a_directory_of_somebody_else_is_refused(make: Make, base: Path) -> None:
    base.mkdir(0o700)
    os.chown(base, 12345, 12345)
    with pytest.raises(CannotOpen, match=r"belongs to user 12345, not to you .*local://name\?directory="):
        await make().join(Member("here:1"))


async def test_a_symbolic_link_is_refused(make: Make, base: Path, tmp_path: Path) -> None:
    (tmp_path / "bait").mkdir(0o700)
    base.symlink_to(tmp_path / "bait")
    with pytest.raises(CannotOpen, match="Remove what is in the way"):
        await make().join(Member("here:1"))
    assert list((tmp_path / "bait").iterdir()) == []


async def test_without_a_writable_place_the_error_names_the_remedy(make: Make) -> None:
    with pytest.raises(CannotOpen, match=r"choose another place: local://name\?directory="):
        await make(directory="/proc/nowhere").join(Member("here:1"))
    with pytest.raises(CannotOpen, match=r"choose another place"):
        make(directory="/proc/nowhere").group_key()


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
async def test_a_key_of_the_wrong_length_is_refused(make: Make, base: Path, content: bytes) -> None:
    make().group_key()
    (base / "group" / "key").write_bytes(content)
    with pytest.raises(CannotOpen, match=f"holds {len(content)} bytes, a key has 32"):
        make().group_key()


async def test_a_key_that_others_may_read_or_that_is_a_link_is_refused(make: Make, base: Path) -> None:
    make().group_key()
    key = base / "group" / "key"
    key.chmod(0o644)
    with pytest.raises(CannotOpen, match="can be read or written by others"):
        make().group_key()
    key.rename(key.with_name("moved"))
    key.symlink_to("moved")
    with pytest.raises(CannotOpen, match="key"):
        make().group_key()


async def test_the_place_depends_on_nothing_but_the_user(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"test-{os.getpid()}-{secrets.token_hex(8)}"
    place = Path(f"/tmp/softmutex-{os.geteuid()}") / name
    here, there = LocalMembership(name), LocalMembership(name)
    try:
        await here.join(Member("here:1", id=1))
        assert place.is_dir()
        for variable in ("TMPDIR", "XDG_RUNTIME_DIR", "HOME"):
            monkeypatch.setenv(variable, "/somewhere/else")
        await until_shown(there, "here:1")
        assert there.group_key() == here.group_key()
    finally:
        await here.aclose()
        await there.aclose()
        shutil.rmtree(place)


@pytest.mark.parametrize("name", ["..", ".", "-x", "a/b", "a b", "x" * 65, "a\0b"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        LocalMembership(name)


def test_a_misspelled_option_names_the_right_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'directory'"):
        LocalMembership.from_url("local://group?dir=/tmp")


# --- who is there ----------------------------------------------------------------------------------------------------


async def test_processes_that_start_at_once_agree_on_one_key(make: Make, elsewhere: Elsewhere) -> None:
    started = [elsewhere.start(f"there:{number}") for number in range(6)]
    keys = {elsewhere.key_of(process) for process in started}
    assert keys == {make().group_key()}


@pytest.mark.alone
async def test_newcomers_are_known_in_a_third_of_a_second_and_the_killed_gone_in_one(
    make: Make, elsewhere: Elsewhere
) -> None:
    here = make()
    await here.join(Member("here:1"))
    await until_shown(here)
    known_s, gone_s = [5.0], [5.0]
    for number in range(20):  # the best of them: the machine may be busy
        newcomer = make()
        await newcomer.join(Member("new:1"))
        known_s.append(await until_shown(here, "new:1"))
        there = elsewhere.start(f"there:{number}")
        elsewhere.key_of(there)
        await until_shown(here, "new:1", f"there:{number}")
        there.kill()
        there.wait()
        gone_s.append(await until_shown(here, "new:1"))
        await newcomer.aclose()
        await until_shown(here)
        if number >= 2 and min(known_s) < 0.33 and min(gone_s) < 1.0:
            break
    assert min(known_s) < 0.33, known_s
    assert min(gone_s) < 1.0, gone_s


async def test_a_killed_process_is_gone_though_a_child_that_it_forked_lives_on(
    make: Make, elsewhere: Elsewhere
) -> None:
    here = make()
    there = elsewhere.start("there:1", fork=True)
    elsewhere.key_of(there)
    await until_shown(here, "there:1")
    there.kill()
    there.wait()
    await until_shown(here)
    os.kill(elsewhere.children[0], 0)


async def test_all_of_many_that_die_at_once_are_found_by_one_that_lives(make: Make, elsewhere: Elsewhere) -> None:
    here = make()
    await here.join(Member("here:1"))
    started = [elsewhere.start(f"there:{number}") for number in range(5)]
    for process in started:
        elsewhere.key_of(process)
    await until_shown(here, *(f"there:{number}" for number in range(5)))
    for process in started:
        process.kill()
        process.wait()
    await until_shown(here)
    assert here.statistics()["dead_removed"] == 5


async def test_who_comes_first_after_a_crash_finds_nobody(make: Make, elsewhere: Elsewhere, base: Path) -> None:
    there = elsewhere.start("there:1")
    elsewhere.key_of(there)
    there.kill()
    there.wait()
    newcomer = make()
    await newcomer.join(Member("here:1"))
    assert list(await newcomer.watch()) == []
    assert {path.suffix for path in (base / "group").iterdir()} == {"", ".lock", ".member"}


FORK_AND_JOIN = """
import asyncio, os, sys
from softmutex_adapters.memberships.local import LocalMembership
from softmutex.ports import Member

base, group = sys.argv[1], sys.argv[1] + "/group"

async def join(address):
    membership = LocalMembership("group", directory=base)
    await membership.join(Member(address))
    return membership

parent = asyncio.run(join("parent:1"))
before = os.listdir(group)

async def child():
    await parent.aclose()
    assert os.listdir(group) == before, "the child removed files of its parent"
    own = await join("child:1")
    assert [member.address for member in await own.watch()] == ["parent:1"]
    await own.aclose()

if os.fork() == 0:
    asyncio.run(child())
    os._exit(0)
status = os.waitstatus_to_exitcode(os.wait()[1])
assert os.listdir(group) == before
sys.exit(status)
"""


def test_a_forked_child_leaves_its_parent_alone_and_can_be_a_member_of_its_own(base: Path) -> None:
    assert subprocess.run([sys.executable, "-c", FORK_AND_JOIN, str(base)], check=False).returncode == 0


async def test_what_was_removed_under_a_living_member_is_put_back(make: Make, base: Path) -> None:
    here, there = make(), make()
    key = here.group_key()
    await here.join(Member("here:1"))
    await there.join(Member("there:1"))
    await until_shown(here, "there:1")
    for path in (base / "group").iterdir():
        path.unlink()
    (base / "group").rmdir()
    waiting = asyncio.ensure_future(here.watch())
    await eventually(lambda: here.statistics()["repaired"] > 0, "nobody puts it back")
    assert sorted(path.suffix for path in (base / "group").iterdir()) == ["", ".lock", ".member", ".member"]
    assert (base / "group" / "key").read_bytes() == key
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[]", b'{"address": 1, "id": 2, "name": ""}', b"[" * 4000, b'{"address": "a:1"}', b"null"],
)
async def test_a_record_that_is_none_is_counted_and_ignored(make: Make, base: Path, content: bytes) -> None:
    here, onlooker = make(), make()
    await here.join(Member("here:1"))
    [lock] = (base / "group").glob("*.lock")
    lock.with_name(f"{lock.stem}.999.member").write_bytes(content)
    await until_shown(onlooker, "here:1")
    assert onlooker.statistics()["garbage"] == 1


async def test_strange_files_are_left_alone(make: Make, base: Path) -> None:
    here, onlooker = make(), make()
    await here.join(Member("here:1"))
    strange = ["README", "x.lock", "1-2.lock", "notes.member", "123-0123456789abcdef.1.member"]
    for name in strange:
        (base / "group" / name).write_text(json.dumps({"address": "x:1", "id": 0, "name": ""}))
    await until_shown(onlooker, "here:1")
    assert set(strange) <= set(os.listdir(base / "group"))


# --- what it costs ---------------------------------------------------------------------------------------------------


async def test_a_thousand_members_of_one_process_share_two_descriptors_and_see_each_other(make: Make) -> None:
    await make().watch()
    before = len(os.listdir("/proc/self/fd"))
    members = [make() for _ in range(1000)]
    for number, membership in enumerate(members):
        await membership.join(Member(f"here:{number}", id=number + 1))
    everybody = {f"here:{number}" for number in range(1000)}
    await asyncio.gather(*(until_shown(one, *(everybody - {f"here:{n}"})) for n, one in enumerate(members)))
    assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_while_nothing_changes_nothing_is_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RACY_NS", 0), ("POLL_S", 0.01)):
        monkeypatch.setattr(rundir, name, value)
    monkeypatch.setattr("softmutex_adapters.memberships.local.POLL_S", 0.01)
    polled: list[object] = []
    stat = os.stat

    def looking(path: Any, **how: Any) -> os.stat_result:
        polled.append(path)
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", looking)
    here = make()
    await here.join(Member("here:1"))
    await until_shown(here)
    waiting = asyncio.ensure_future(here.watch())
    await eventually(lambda: len(polled) > 5, "nobody looks")
    before = here.statistics()["scans"]
    await eventually(lambda: len(polled) > 15, "nobody looks")
    assert here.statistics()["scans"] == before
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_after_aclose_nothing_can_be_asked(make: Make) -> None:
    membership = make()
    await membership.join(Member("here:1"))
    await membership.aclose()
    with pytest.raises(Closed):
        membership.group_key()
    assert membership.statistics()["garbage"] == 0


async def test_one_that_joined_can_leave_and_join_again(make: Make) -> None:
    here, onlooker = make(), make()
    await here.join(Member("here:1"))
    with pytest.raises(RuntimeError, match="joined before"):
        await here.join(Member("here:2"))
    await here.leave()
    await here.join(Member("here:2"))
    await until_shown(onlooker, "here:2")


async def test_directories_of_groups_that_nobody_uses_are_removed_and_no_others(tmp_path: Path):
    base = tmp_path / "runtime"

    async def use(group: str) -> None:
        membership = LocalMembership(group, directory=str(base))
        membership.group_key()
        await membership.join(Member("127.0.0.1:1"))
        await membership.aclose()

    for group in ("old", "young", "lived", "strange"):
        await use(group)
    (base / "strange" / "letters").write_text("not ours")
    living = LocalMembership("lived", directory=str(base))
    key = living.group_key()
    await living.join(Member("127.0.0.1:2"))
    (base / "old" / f"4711-{'0' * 16}.lock").touch()  # of somebody who was killed
    for group in ("old", "lived", "strange"):
        for path in (*(base / group).iterdir(), base / group):
            os.utime(path, (1, 1))
    await use("another")
    assert sorted(each.name for each in base.iterdir()) == ["another", "strange", "young"]
    other = LocalMembership("lived", directory=str(base))
    watching = asyncio.create_task(living.watch())
    await eventually(lambda: (base / "lived" / "key").exists(), "it is not put back")
    assert other.group_key() == key, "whoever was there all the same puts it back, and the key as it was"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await other.aclose()
    await living.aclose()
