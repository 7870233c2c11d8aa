"""`softmutex demo`, as a newcomer runs it, only smaller: real servers, real processes, and what they say is checked."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from softmutex_adapters.demo.plan import Plan
from softmutex_adapters.demo.summary import sentences
from softmutex_adapters.demo.tally import Tally, percentile

from tests.cli.processes import children_of, eventually, group_is_empty
from tests.cli.screen import at_terminal

SOFTMUTEX = str(Path(sys.executable).with_name("softmutex"))
KEYS = {
    *("clients", "finished", "goodput_mbit_s", "wasted_bytes"),
    *("completion_mean_s", "completion_p99_s", "makespan_s", "overlap_s"),
}
# Twenty clients that want twice what the link carries within a deadline, which is five times what a transfer of two
# takes: in 12 s what the real one shows in 60, and it holds on a busy machine, too.
SMALL = ["--clients", "20", "--capacity", "24", "--size", "0.4", "--deadline", "1.4"]


def run_demo(report: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [SOFTMUTEX, "demo", "--report", str(report), *words], capture_output=True, text=True, timeout=100
    )


def figures(run: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert run.returncode == 0, run.stderr
    seen: dict[str, Any] = json.loads(run.stdout)
    assert list(seen) == ["uncoordinated", "coordinated", "ideal"]
    assert all(set(one) == KEYS for one in seen.values())
    return seen


def test_with_a_deadline_uncoordinated_transfers_are_thrown_away_and_coordinated_ones_are_not(tmp_path: Path):
    seen = figures(run_demo(tmp_path, *SMALL, "--json"))
    without, with_it, ideal = seen["uncoordinated"], seen["coordinated"], seen["ideal"]
    assert with_it["finished"] == ideal["finished"] == 20
    assert without["finished"] < 20 and without["wasted_bytes"] > 20 * 400_000
    assert with_it["wasted_bytes"] * 4 < without["wasted_bytes"]
    assert with_it["goodput_mbit_s"] > without["goodput_mbit_s"]  # how much, the real demo tells
    assert without["overlap_s"] > 1 and ideal["overlap_s"] == 0
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert not outside(tmp_path / "demo.html")


def outside(page: Path) -> list[str]:
    """What a browser would fetch for it."""
    found: list[str] = []

    class Finder(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            found.extend(f"{tag} {name}" for name, _ in attributes if name in ("src", "href", "srcset", "data"))

    text = page.read_text()
    Finder().feed(text)
    assert text.count("<rect") >= 3 * 20, "each client has a strip in each run"
    return found + re.findall(r"url\(|@import", text)


@pytest.mark.slow
def test_a_server_that_limits_logins_refuses_who_does_not_wait(tmp_path: Path):
    words = ["--scenario", "connections", "--clients", "20", "--capacity", "24", "--size", "0.3"]
    run = run_demo(tmp_path, *words)
    assert run.returncode == 0, run.stderr
    rows = {line[:20].strip(): line[20:].split() for line in run.stdout.splitlines()}
    assert int(rows["refused logins"][0]) > 5
    assert rows["refused logins"][1:] == ["0", "0"]
    assert rows["finished"][3:] == ["20", "of", "20", "20", "of", "20"]
    assert f"{tmp_path}/demo.html" in run.stderr


@pytest.mark.slow
def test_plain_sharing_does_not_collapse_and_the_demo_says_so(tmp_path: Path):
    run = run_demo(tmp_path, "--scenario", "plain", "--clients", "6", "--capacity", "40", "--size", "0.5")
    assert run.returncode == 0, run.stderr
    assert "does not make it collapse" in run.stdout
    assert run.stdout.count("6 of 6") == 3


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_what_is_in_the_way_is_said_before_the_run(tmp_path: Path, busy_port: int):
    (tmp_path / "file").touch()
    for words, said in (
        (["--port", str(busy_port)], f"port {busy_port} is in use. Give another --port"),
        (["--report", str(tmp_path / "file" / "report")], "nothing can be written to"),
        (["--clients", "0"], "--clients 0 is not between 1 and 500"),
        (["--scenario", "deadlines"], "did you mean 'deadline'?"),
    ):
        run = run_demo(tmp_path, *words)
        assert (run.returncode, run.stdout) == (64, "")
        assert said in run.stderr
        assert "clients, " not in run.stderr, "it began all the same"


def test_without_the_extra_the_error_names_what_to_install(tmp_path: Path):
    code = (
        "import sys; sys.modules['aioftp'] = None\n"  # what `import aioftp` finds where it is not installed
        "from importlib import util\n"
        "util.find_spec = lambda name: None if name == 'aioftp' else name\n"
        "from softmutex.cli import main; sys.exit(main(['demo']))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert run.returncode == 64
    assert 'the demo needs aioftp. Install it: pip install "softmutex[demo]"' in run.stderr


def test_ctrl_c_at_a_terminal_tells_what_was_measured_and_leaves_no_process(tmp_path: Path):
    # A terminal that can be drawn on, without colours to read through. Behind `&` a shell has SIGINT ignored: not here.
    live = ["env", "--default-signal=INT", "TERM=xterm", "NO_COLOR=1"]
    with at_terminal(*live, SOFTMUTEX, "demo", "--report", str(tmp_path), *SMALL) as screen:
        screen.shows("█")  # a transfer is under way
        groups = children_of(screen.pid)  # each leads a group of its own: the server, and the subscribers
        screen.type("\x03")
        screen.shows("interrupted; ")
        screen.shows("uncoordinated (part)")
        screen.shows("nothing is left running")
        assert screen.ends() == 130
    assert len(groups) == 2
    assert all(group_is_empty(group) for group in groups)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_whatever_ends_the_demo_ends_its_processes(tmp_path: Path, number: signal.Signals):
    demo = subprocess.Popen(
        [SOFTMUTEX, "demo", "--report", str(tmp_path), *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert demo.stderr is not None
    groups = eventually(lambda: len(found := children_of(demo.pid)) == 2 and found, "the server and the subscribers")
    assert groups
    demo.send_signal(number)
    demo.communicate(timeout=100)
    assert demo.returncode == (130 if number == signal.SIGTERM else -number)
    eventually(lambda: all(group_is_empty(group) for group in groups), "nobody is left")


# --- the figures -----------------------------------------------------------------------------------------------------


def told(tally: Tally, who: int, *story: tuple[float, str, dict[str, Any]]) -> None:
    for at, what, more in story:
        tally.hear({"who": who, "at": at, "what": what, **more})


def test_the_figures_count_whole_files_and_what_was_thrown_away():
    tally = Tally(Plan(clients=3, slots=1, size_mb=1.0), "uncoordinated")
    out = {"lost": False}
    told(
        tally, 0, (10, "wants", {}), (10, "waits", {}), (10, "in", {}), (14, "out", {"why": "done", "got": 1e6, **out})
    )
    told(tally, 0, (14, "end", {"ok": True}))
    told(tally, 1, (11, "wants", {}), (11, "waits", {}), (12, "in", {}), (12.5, "bytes", {"got": 3}))
    assert [client.state for client in tally.clients] == ["finished", "transfers", "idle"]
    told(tally, 1, (13, "out", {"why": "deadline", "got": 400_000, **out}), (13, "waits", {}), (15, "in", {}))
    told(tally, 1, (20, "out", {"why": "done", "got": 1e6, **out}), (20, "end", {"ok": True}))
    told(tally, 2, (12, "wants", {}), (12, "waits", {}), (18, "in", {}))
    told(tally, 2, (18, "out", {"why": "refused", "got": 0, "lost": True}), (18, "end", {"ok": False}))
    assert tally.figures() == {
        "clients": 3,
        "finished": 2,
        "goodput_mbit_s": 1.6,  # 2 MB in the 10 s from the first wish to the last end
        "wasted_bytes": 400_000,
        "completion_mean_s": 6.5,
        "completion_p99_s": 9,
        "makespan_s": 10,
        "overlap_s": 1.0,  # 12 to 13; the refused login took no time
    }
    assert (tally.failed_logins, tally.lost) == (1, 1)


def test_where_nobody_finished_there_is_no_completion_and_no_ratio():
    tallies = [Tally(Plan(clients=1), stage) for stage in ("uncoordinated", "coordinated", "ideal")]
    for tally in tallies:
        story = [
            (1, "wants", {}),
            (1, "waits", {}),
            (1, "in", {}),
            (2, "out", {"why": "broken", "got": 1, "lost": False}),
        ]
        told(tally, 0, *story, (2, "end", {"ok": False}))
        tally.complete = True
        assert tally.figures()["completion_p99_s"] is None
    assert sentences(tallies) == ["Without coordination nobody finished; with it 0 of 1."]


def test_a_percentile_is_a_value_that_was_measured():
    assert [percentile(list(range(1, 101)), share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([7.0], 0.99) == 7.0
