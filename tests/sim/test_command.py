"""`softmutex sim`: the promised flags and JSON, and one clear line for whatever cannot be."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from softmutex.cli import main
from softmutex.sim import Churn, Clog, Kill, Partition, Scenario, TokenLoss, simulate
from softmutex.sim.report import command

PROMISED = {
    "algorithm", "nodes", "duration", "seed", "settings", "concurrency", "acquisitions", "intervals", "wait",
    "fairness", "messages", "tokens", "recoveries", "events", "wall_seconds", "events_per_second", "digest",
}  # fmt: skip
SMALL = ["--nodes", "6", "--duration", "100", "--delay", "0.05"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["sim", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_run_json_is_the_promised_object(capsys: pytest.CaptureFixture[str]):
    flags = ["--algorithm", "sandwich", "--nodes", "30", "--duration", "3e3", "--seed", "3", "--nodes-max", "30"]
    code, out, err = run(capsys, "run", *flags, "--token-loss-every", "700", "--json")
    shown = json.loads(out)
    assert (code, err) == (0, "")
    assert shown.keys() >= PROMISED
    assert (shown["algorithm"], shown["nodes"], shown["duration"], shown["seed"]) == ("sandwich", 30, 3000.0, 3)
    assert shown["settings"].keys() >= {"skip", "op", "min_interval"}
    assert sum(shown["concurrency"].values()) == pytest.approx(3000)
    assert sum(shown["tokens"]["time_with"].values()) == pytest.approx(3000)
    assert shown["tokens"].keys() == {"generated", "discarded", "lost", "time_with"}
    assert shown["tokens"]["lost"] >= 1
    assert shown["intervals"].keys() == {"count", "edges", "bucket", "p50", "p90", "p99", "max"}
    assert shown["intervals"]["count"] == sum(shown["intervals"]["edges"].values())
    assert shown["wait"].keys() == {"count", "p50", "p90", "p99", "max"}
    assert shown["wait"]["count"] == shown["acquisitions"]
    assert shown["messages"].keys() == {"total", "per_acquisition", "idle_per_second", "by_kind"}
    assert shown["messages"]["total"] == sum(shown["messages"]["by_kind"].values())
    assert len(shown["digest"]) == 64


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("run --skip 5 --op 4", "--skip 5 is longer than --op 4"),
        ("run --nodes 1", "give at least 2"),
        ("run --nodes 2.5", "'2.5' is no whole number"),
        ("run --loss 1.5", "--loss is 1.5: give a share from 0 to 1"),
        ("run --loss -0.1", "--loss is -0.1"),
        ("run --loss nan", "--loss is nan"),
        ("run --duration 0", "--duration is 0"),
        ("run --duration inf", "'inf' is no duration"),
        ("run --duration soon", "'soon' is no duration"),
        ("run --delay -1", "--delay"),
        ("run --max-interval 5 --min-interval 6", "--max-interval 5 is below --min-interval 6"),
        ("run --algorithm wanderin", "Did you mean 'wandering'?"),
        ("run --algoritm wandering", "did you mean '--algorithm'?"),
        ("run --nodes", "expected one argument"),
        ("run 12", "'12' is one word too many"),
        ("run --demand often", "demand 'often' is not one of saturated"),
        ("run --demand poisson:0", "is not one of"),
        ("run --hold uniform:3:2", "hold 'uniform:3:2' is not one of"),
        ("run --partition 10:20", "is not START:END:SHARE"),
        ("run --partition 20:10:0.5", "START before END"),
        ("run --partition 10:20:2", "a share between 0 and 1"),
        ("run --churn 0", "--churn is 0"),
        ("run --kill-holder-every 0", "--kill-holder-every is 0"),
        ("run --slots 2 --algorithm sandwich", "slots"),
        ("run --option hints", "NAME=VALUE"),
        ("run --option speed=9", "speed"),
        ("run --settings {", "--settings is not JSON"),
        ("run --settings []", "give a JSON object"),
        ('run --settings {"nods":3}', "nods"),
        ('run --settings {"nodes":"many"}', "no scenario"),
        ('run --settings {"faults":[{"kind":"rain"}]}', "no fault named 'rain'"),
        ("run --plot /nowhere/at/all.png", "cannot write /nowhere/at/all.png"),
        ("run --plot picture.doc", ".png"),
        ("run --trace /nowhere/at/all.trace", "cannot write /nowhere/at/all.trace"),
        ("run --watch --nodes 5000", "--watch shows up to"),
        ("run --show yesterday", "not FROM:TO"),
        ("reproduce 000-table9", "000-table"),
        ("compare --algorithms sandwich,bakery", "bakery"),
        ("compare --nodes 1", "give at least 2"),
        ("check --scenario kill-holdr", "did you mean 'kill-holder'?"),
        ("rnu", "did you mean 'run'?"),
        ("", "required"),
    ],
)
def test_an_impossible_wish_ends_in_one_line_and_64(capsys: pytest.CaptureFixture[str], words: str, complaint: str):
    code, out, err = run(capsys, *words.split())
    assert (code, out) == (64, "")
    assert complaint in err
    assert err.startswith("softmutex") and err.count("\n") == 1 and "Traceback" not in err


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert main(["simm"]) == 64
    assert "did you mean 'sim'?" in capsys.readouterr().err


def test_a_file_that_is_no_trace_ends_in_one_line_and_65(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "run.trace"
    path.write_bytes(b"softmutex trace 99\n{}\n")
    code, out, err = run(capsys, "replay", str(path))
    assert (code, out) == (65, "")
    assert "has trace format 99, and this version reads 1" in err and err.count("\n") == 1


def test_a_picture_without_matplotlib_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = run(capsys, "run", *SMALL, "--plot", "x.png")
    assert code == 64
    assert 'pip install "softmutex[plot]"' in err and err.count("\n") == 1


def test_an_interrupted_run_ends_with_130_and_one_line():
    command = [sys.executable, "-c", "import sys, softmutex.cli; sys.exit(softmutex.cli.main())", "sim", "run", *SMALL]
    run = subprocess.Popen(
        [*command, "--duration", "1e9", "--show", "0:1e9"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with run:
        assert run.stdout is not None and run.stderr is not None
        assert "1 starts" in run.stdout.readline()
        run.send_signal(signal.SIGINT)
        run.stdout.read()
        assert run.stderr.read() == "softmutex: interrupted\n"
    assert run.returncode == 130


def test_a_reader_that_goes_away_is_no_error():
    command = [sys.executable, "-c", "import sys, softmutex.cli; sys.exit(softmutex.cli.main())", "sim", "run", *SMALL]
    command += ["--duration", "3000", "--show", "0:1e9"]  # far more than the pipe takes
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with run:
        assert run.stdout is not None and run.stderr is not None
        assert "1 starts" in run.stdout.readline()
        run.stdout.close()
        assert run.stderr.read() == ""
    assert run.returncode == 141


def test_a_run_is_traced_and_replayed_to_the_byte(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = str(tmp_path / "run.trace")
    flags = [
        "--loss",
        "0.01",
        "--kill-holder-every",
        "20",
        "--partition",
        "40:60:0.3",
        "--churn",
        "0.3",
        "--settle",
        "60",
    ]
    assert run(capsys, "run", *SMALL, *flags, "--trace", path)[0] in (0, 1)
    code, out, err = run(capsys, "replay", path)
    assert "the same run, to the byte" in out
    assert code == 0, err


def test_show_prints_events_and_effects(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "run", *SMALL, "--show", "0:5")
    assert code == 0
    assert "     0.000  1 starts, as the founder\n" in out
    assert "                grants #1 e1/h1\n" in out


def test_a_picture_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "run.png"
    assert run(capsys, "run", *SMALL, "--plot", str(path))[0] == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_watching_shows_where_the_token_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("softmutex.sim.watch.FRAME_S", 0.0)
    code, out, err = run(capsys, "run", *SMALL, "--watch")
    assert code == 0
    assert "token" in err and err.count("\x1b[K\n") >= 300
    assert "acquisitions" in out


def test_compare_measures_every_algorithm_that_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    flags = ["--nodes", "5", "8", "--algorithms", "sandwich,wandering", "--entries", "40"]
    code, out, _ = run(capsys, "compare", *flags, "--json", "--plot", str(tmp_path / "compare.png"))
    rows = json.loads(out)["rows"]
    assert code == 0
    assert [(row["algorithm"], row["nodes"]) for row in rows] == [
        ("sandwich", 5), ("wandering", 5), ("sandwich", 8), ("wandering", 8),
    ]  # fmt: skip
    assert all(row["messages_busy"] > 0 and row["delay_busy"] >= 0 for row in rows)
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = run(capsys, "compare", *flags)
    assert code == 0 and len(out.splitlines()) == 6


def test_check_runs_a_scenario_of_the_matrix(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "check", "--scenario", "nothing", "--seeds", "2")
    assert (code, err) == (0, "")
    assert out.startswith("holds   nothing") and "2 runs" in out


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(nodes=6, duration_s=50.0, seed=9),
        Scenario(nodes=6, duration_s=50.0, delay_s=0.05, loss=0.1, demand="poisson:0.5", settle_s=30.0, op_s=2.0),
        Scenario(nodes=6, duration_s=90.0, delay_s=0.05, faults=(Kill(20.0), Churn(0.5), TokenLoss(30.0))),
        Scenario(nodes=6, duration_s=90.0, delay_s=0.05, faults=(Partition(20.0, 40.0, 0.25), Clog(5.0, 1.0))),
        Scenario(nodes=6, duration_s=50.0, delay_s=0.05, own_views=True, options={"hints": False}, grace_s=5.0),
    ],
)  # fmt: skip
def test_the_printed_command_is_the_same_run(capsys: pytest.CaptureFixture[str], scenario: Scenario):
    words = shlex.split(command(scenario))
    assert words[:3] == ["softmutex", "sim", "run"]
    code, out, err = run(capsys, *words[2:], "--json")
    assert code in (0, 1), err
    assert json.loads(out)["digest"] == simulate(scenario).digest
