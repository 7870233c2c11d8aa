"""examples/ftp_throttler against a real FTP server: they take turns, keep a deadline, go on where they broke off."""

import asyncio
import os
import re
import runpy
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from softmutex_adapters.demo.plan import Plan

from tests.cli.processes import but_for_standstills
from tests.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples" / "ftp_throttler"
SCRIPT = str(EXAMPLES / "subscriber.sh")
PATIENCE_S = 100.0
# It would take 16 s, so that the deadline comes in the midst of it, however slow the login; the next run is over soon.
SIZE, MBIT_S, DEADLINE_S, LATER_MBIT_S = 4_000_000, 2, 3.0, 400
PYTHON = [["subscriber.py"], ["subscriber_sync.py"]]


@dataclass
class Server:
    url: str
    served: Path
    environ: dict[str, str]  # in which subscribers find each other, and nobody else

    def subscribe(
        self, incoming: Path, words: Sequence[str], url: str = "", out: Any = subprocess.PIPE
    ) -> "subprocess.Popen[str]":
        """One that runs beside this test; `words` is an example's name and its options."""
        command = ["sh", SCRIPT] if words[0] == "subscriber.sh" else [sys.executable, str(EXAMPLES / words[0])]
        return subprocess.Popen(
            [*command, *words[1:], url or self.url, str(incoming)],
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environ,
        )


def wait_until(condition: Callable[[], object], what: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.02)


def ends(subscriber: "subprocess.Popen[str]") -> tuple[int, str]:
    try:
        said = subscriber.communicate(timeout=PATIENCE_S)[0]
    finally:
        subscriber.kill()
    return subscriber.returncode, said


@contextmanager
def serving(where: Path, *, mbit_s: float, connections: int = 0, port: int = 0) -> Iterator[Server]:
    served = where / "served"
    served.mkdir(exist_ok=True)
    plan = Plan(capacity_mbit_s=mbit_s, connections=connections).to_json()
    server = subprocess.Popen(
        [sys.executable, "-m", "softmutex_adapters.demo.server", plan, str(served), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        environ = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SOFTMUTEX_MEMBERSHIP": f"local://example?directory={where}",
        }
        yield Server(f"ftp://127.0.0.1:{int(server.stdout.readline())}/", served, environ)
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize("words", PYTHON, ids=lambda words: words[0])
def test_subscribers_take_turns_at_a_server_that_admits_one_and_get_what_is_new(tmp_path: Path, words: list[str]):
    with serving(tmp_path, mbit_s=400, connections=1) as server:
        files = {name: os.urandom(100_000) for name in ("a.bin", "b.bin")}
        for name, content in files.items():
            (server.served / name).write_bytes(content)
        (server.served / "a directory").mkdir()
        own = [tmp_path / f"incoming-{number}" for number in range(4)]
        subscribers = [server.subscribe(incoming, [*words, "--slots", "1"]) for incoming in own]
        for incoming, (code, said) in zip(own, [ends(subscriber) for subscriber in subscribers], strict=True):
            assert code == 0, said
            assert said.count("100%") == 2, said
            assert {path.name: path.read_bytes() for path in incoming.iterdir()} == files
        code, said = ends(server.subscribe(own[0], [*words, "--slots", "1"]))
        assert (code, but_for_standstills(said)) == (0, ""), "nothing was new"


@pytest.mark.parametrize("words", PYTHON, ids=lambda words: words[0])
def test_what_a_deadline_broke_off_is_resumed_by_the_next_run(tmp_path: Path, words: list[str]):
    content, incoming = os.urandom(SIZE), tmp_path / "incoming"
    with serving(tmp_path, mbit_s=MBIT_S) as server:
        (server.served / "image.bin").write_bytes(content)
        code, said = ends(server.subscribe(incoming, [*words, "--deadline", str(DEADLINE_S)]))
        assert code == 75, said
        assert "not this time" in said
    came = (incoming / "image.bin.part").stat().st_size
    assert 0 < came < SIZE
    with serving(tmp_path, mbit_s=LATER_MBIT_S) as server:
        code, said = ends(server.subscribe(incoming, words))
    assert code == 0, said
    assert f"went on at {came / SIZE:.0%}" in said
    assert [path.name for path in incoming.iterdir()] == ["image.bin"]
    assert (incoming / "image.bin").read_bytes() == content


async def test_a_deadline_that_comes_with_a_block_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`asyncio.wait_for` of Python 3.11 gives the block back, and forgets that it was cancelled."""
    monkeypatch.syspath_prepend(EXAMPLES)
    subscriber = runpy.run_path(str(EXAMPLES / "subscriber.py"))

    class Stream:
        async def iter_by_block(self, size: int) -> AsyncIterator[bytes]:
            for seconds in (3600, 0, 0):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(seconds)
                yield b"x"

    @asynccontextmanager
    async def download_stream(path: object, offset: int) -> AsyncIterator[Stream]:
        yield Stream()

    client, hold = SimpleNamespace(download_stream=download_stream), SimpleNamespace(touch=lambda: None)
    target = tmp_path / "image.bin"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await subscriber["fetch"](client, Path("image.bin"), 3, target, hold, subscriber["Link"]())
    assert [path.name for path in tmp_path.iterdir()] == ["image.bin.part"]
    assert (tmp_path / "image.bin.part").read_bytes() == b"x"


@pytest.mark.needs("lftp", "curl")
@pytest.mark.parametrize("name", ["image.bin", ""], ids=["a file by curl", "a directory by lftp"])
def test_the_script_for_a_crontab_keeps_its_deadline_and_resumes(tmp_path: Path, name: str):
    content, incoming = os.urandom(SIZE), tmp_path / "incoming"
    with serving(tmp_path, mbit_s=MBIT_S) as server:
        (server.served / "image.bin").write_bytes(content)
        server.environ["DEADLINE"] = f"{DEADLINE_S}s"
        code, said = ends(server.subscribe(incoming, ["subscriber.sh"], server.url + name))
        assert code == 124, said  # timeout's
    came = sum(path.stat().st_size for path in incoming.iterdir())
    assert came < SIZE
    with serving(tmp_path, mbit_s=LATER_MBIT_S) as server:
        server.environ["DEADLINE"] = "1m"
        code, said = ends(server.subscribe(incoming, ["subscriber.sh"], server.url + name))
    assert code == 0, said
    assert (incoming / "image.bin").read_bytes() == content


ALL = [*PYTHON, ["subscriber.sh"]]


@pytest.mark.needs("lftp")
@pytest.mark.parametrize("words", ALL, ids=lambda words: words[0])
def test_a_server_that_is_away_costs_nobody_a_file(tmp_path: Path, words: list[str]):
    """Each gives the turn back before it tries again, so that all ask, not only those who held it first."""
    content, subscribers = os.urandom(100_000), 6
    with serving(tmp_path, mbit_s=400, port=free_port()) as gone:
        (gone.served / "image.bin").write_bytes(content)
    own = [tmp_path / f"incoming-{number}" for number in range(subscribers)]
    gone.environ |= {"SLOTS": "1", "TRIES": "20"}
    more = [] if words[0] == "subscriber.sh" else ["--slots", "1"]
    with ExitStack() as files:
        said = [files.enter_context((tmp_path / f"said-{number}").open("w+")) for number in range(subscribers)]
        running = [gone.subscribe(incoming, [*words, *more], out=out) for incoming, out in zip(own, said, strict=True)]
        try:
            wait_until(lambda: all((tmp_path / f"said-{n}").stat().st_size for n in range(subscribers)), "not all ask")
            assert [subscriber.poll() for subscriber in running] == [None] * subscribers
            with serving(tmp_path, mbit_s=400, port=int(gone.url.rstrip("/").rsplit(":", 1)[1])):
                assert [subscriber.wait(PATIENCE_S) for subscriber in running] == [0] * subscribers
        finally:
            for subscriber in running:
                subscriber.kill()
                subscriber.wait()
    assert [(incoming / "image.bin").read_bytes() == content for incoming in own] == [True] * subscribers


@pytest.mark.slow
@pytest.mark.parametrize("words", PYTHON, ids=lambda words: words[0])
def test_a_server_that_stops_in_the_middle_of_a_file_and_comes_back_costs_nobody_a_file(
    tmp_path: Path, words: list[str]
):
    """All ask again and again meanwhile, and who had a part of it goes on there."""
    content, subscribers = os.urandom(SIZE // 4), 4
    own = [tmp_path / f"incoming-{number}" for number in range(subscribers)]
    with ExitStack() as files:
        said = [files.enter_context((tmp_path / f"said-{number}").open("w+")) for number in range(subscribers)]
        with serving(tmp_path, mbit_s=MBIT_S) as server:
            (server.served / "image.bin").write_bytes(content)
            running = [
                server.subscribe(at, [*words, "--slots", "1"], out=out) for at, out in zip(own, said, strict=True)
            ]
            files.callback(lambda: [subscriber.kill() for subscriber in running])
            parts = [incoming / "image.bin.part" for incoming in own]
            wait_until(lambda: any(part.exists() and part.stat().st_size for part in parts), "nobody begins")
        asks = lambda number: (tmp_path / f"said-{number}").read_text().count("asking for a turn again")  # noqa: E731
        over = sum((incoming / "image.bin").exists() for incoming in own)
        wait_until(lambda: sum(asks(n) >= 2 for n in range(subscribers)) + over == subscribers, "not all ask again")
        with serving(tmp_path, mbit_s=MBIT_S, port=int(server.url.rstrip("/").rsplit(":", 1)[1])):
            assert [subscriber.wait(PATIENCE_S) for subscriber in running] == [0] * subscribers
    told = "".join((tmp_path / f"said-{number}").read_text() for number in range(subscribers))
    assert "went on at" in told, told
    assert [(incoming / "image.bin").read_bytes() == content for incoming in own] == [True] * subscribers


@pytest.mark.needs("lftp", "curl")
@pytest.mark.parametrize(
    ("words", "path"),
    [(words, "no such directory/") for words in ALL] + [(["subscriber.sh"], "no such file")],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_the_server_refuses_is_not_asked_for_again(tmp_path: Path, words: list[str], path: str):
    with serving(tmp_path, mbit_s=400) as server:
        began = time.monotonic()
        code, said = ends(server.subscribe(tmp_path / "incoming", words, server.url + quote(path)))
        took_s = time.monotonic() - began
    assert code not in (0, 75), said
    assert "again" not in said
    assert took_s < 60.0, "it tried again and again"


@pytest.mark.parametrize("words", PYTHON, ids=lambda words: words[0])
def test_the_bar_shows_what_the_link_does(tmp_path: Path, words: list[str]):
    """Also of files that lie in buffers as a whole when they are read."""
    with serving(tmp_path, mbit_s=12) as server:
        for number, size in enumerate((1_000, 20_000, 500_000, 1_000, 1_500_000, 60_000, 10)):
            (server.served / f"{number}.bin").write_bytes(os.urandom(size))
        code, said = ends(server.subscribe(tmp_path / "incoming", words))
    assert code == 0, said
    rates = [float(rate) for rate in re.findall(r"([0-9.]+) Mbit/s", said)]
    assert len(rates) >= 3, said
    assert max(rates) <= 12 * 1.2, said
    assert max(rates) >= 12 / 4, said


def test_a_turn_is_one_trace_where_a_tracer_is_set_up(tmp_path: Path):
    """Set up here by hand; README.md shows how `opentelemetry-instrument` does it from OTEL_* variables."""
    program = tmp_path / "traced.py"
    program.write_text(
        "import runpy, sys\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor\n"
        "provider = TracerProvider()\n"
        "provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))\n"
        "trace.set_tracer_provider(provider)\n"
        f"sys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"runpy.run_path({str(EXAMPLES / 'subscriber.py')!r}, run_name='__main__')\n"
    )
    with serving(tmp_path, mbit_s=400) as server:
        (server.served / "image.bin").write_bytes(b"x" * 1000)
        run = subprocess.run(
            [sys.executable, str(program), server.url, str(tmp_path / "incoming")],
            env=server.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert run.returncode == 0, run.stderr
    names = re.findall(r'^    "name": "(.*)"', run.stdout, re.MULTILINE)
    traces = re.findall(r'^        "trace_id": "(.*)"', run.stdout, re.MULTILINE)
    assert {"ftp.turn", "ftp.fetch", "softmutex.wait", "softmutex.hold"} <= set(names)
    assert len(set(traces)) == 1, "one story"
