"""The same seed is the same run: under any hash seed, from a trace, looked at or not; strange files are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from softmutex.sim import Churn, Kill, Scenario, simulate
from softmutex.sim.spy import teller
from softmutex.sim.trace import Recorder, numbers_in
from softmutex.sim.tracefile import BadTrace, Writer, read, replay
from tests.sim.machines import Walk

RUN = Scenario(
    algorithm="wandering",
    nodes=8,
    duration_s=200.0,
    delay_s=0.05,
    loss=0.02,
    demand="poisson:0.1",
    hold="exponential",
    own_views=True,
    settle_s=100.0,
    faults=(Kill(31), Churn(0.5)),
)
PROGRAM = """
import json, sys
from softmutex.sim import Scenario, simulate
print(simulate(Scenario.from_json(json.loads(sys.argv[1]))).digest)
"""


@pytest.mark.parametrize("algorithm", ["wandering", "adaptive", "sandwich"])
def test_the_digest_is_the_same_under_every_hash_seed_and_switch_of_python(algorithm: str):
    run = RUN.but(algorithm=algorithm)
    digests = {simulate(run).digest}
    for hash_seed, *switches in (("0", "-W", "error"), ("random", "-O"), ("4711", "-OO")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, *switches, "-c", PROGRAM, json.dumps(run.to_json())]
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip())
    assert len(digests) == 1


def test_another_seed_is_another_run():
    assert simulate(RUN).digest != simulate(RUN.but(seed=2)).digest


def test_the_digest_of_a_known_run_does_not_change():
    """A machine of the tests, so that only a change of the simulator can change it: then traces need a new format."""
    result = simulate(Scenario(algorithm=Walk, nodes=5, duration_s=50.0, delay_s=0.1, demand="poisson:0.5", loss=0.001))
    assert result.digest == "3848c237350677a7bb054c750b68245e8351855f30bf81b61bc211dbdfad0ea2"


def test_looking_at_a_run_does_not_change_it():
    lines: list[str] = []
    looked_at = simulate(
        RUN, progress=lambda share: None, spy=teller(lines.append, 10.0, 20.0), look=lambda world: None
    )
    assert looked_at.digest == simulate(RUN).digest
    assert any(" wants #" in line for line in lines)
    times_s = [float(line.split()[0]) for line in lines if line[9].isdigit()]
    assert len(times_s) > 50 and all(10.0 <= time_s <= 20.0 for time_s in times_s)


def test_a_settled_scenario_survives_json():
    assert Scenario.from_json(json.loads(json.dumps(RUN.to_json()))) == RUN


def written(path: Path, scenario: Scenario = RUN) -> Path:
    writer = Writer(path, scenario)
    writer.close(simulate(scenario, sink=writer))
    return path


def test_a_trace_replays_to_the_byte(tmp_path: Path):
    trace = read(written(tmp_path / "run.trace"))
    assert trace.scenario == RUN
    comparison = replay(trace)
    assert comparison.difference == ""
    assert comparison.result.digest == trace.digest
    assert written(tmp_path / "again.trace").read_bytes() == (tmp_path / "run.trace").read_bytes()


def test_a_trace_that_differs_says_from_which_moment_on(tmp_path: Path):
    trace = read(written(tmp_path / "run.trace"))
    middle = len(trace.data) // 16 * 8
    other = bytes([trace.data[middle] ^ 0xFF])
    changed = trace._replace(data=trace.data[:middle] + other + trace.data[middle + 1 :])
    assert replay(changed).difference.startswith("differs from ")
    assert "events, digest" in replay(trace._replace(digest="0" * 64)).difference


def test_a_trace_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("softmutex.sim.tracefile.LIMIT", 5000)
    trace = read(written(tmp_path / "run.trace"))
    assert len(trace.data) == 5000
    assert replay(trace).difference == "", "the digest still covers all of it"


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda data: b"", "is not a trace"),
        (lambda data: b"\x89PNG\r\n\x1a\n" + data, "is not a trace"),
        (lambda data: data.replace(b"trace 1\n", b"trace 7\n", 1), "has trace format 7, and this version reads 1"),
        (lambda data: data.replace(b'"softmutex": "', b'"softmutex": "9', 1), "was written by softmutex 9"),
        (lambda data: data.replace(b'{"softmutex"', b'["softmutex"', 1), "is damaged"),
        (lambda data: data[: len(data) // 2], "ends too early"),
        (lambda data: data[:-100], "is damaged"),
        (lambda data: data.replace(b"\x78\x9c", b"\x00\x00", 1), "is damaged"),
        (lambda data: data.replace(b'"loss"', b'"gain"', 1), "gain"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_trace_of_this_version_is_refused(tmp_path: Path, spoil, complaint: str):
    path = written(tmp_path / "run.trace")
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(BadTrace, match=complaint):
        read(path)


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(BadTrace, match="No such file"):
        read(tmp_path / "none.trace")


def test_numbers_of_different_contents_differ():
    seen = set()
    for content in [(), ((),), (1,), (1, 2), ((1,), 2), ("a",), (b"a", 0), (None,), (True, False), (-1,), ((), 1)]:
        out: list[int] = []
        numbers_in(content, out)
        seen.add(tuple(out))
    assert len(seen) == 11


def test_floats_have_no_place_in_a_trace():
    with pytest.raises(TypeError, match="float"):
        numbers_in((0.5,), [])


def test_the_digest_does_not_depend_on_when_it_is_flushed():
    one, other = Recorder(), Recorder()
    for number in range(100):
        one.words += (number, number + 1)
        other.words += (number, number + 1)
        if number % 7 == 0:
            other.flush()
    assert one.digest() == other.digest()
