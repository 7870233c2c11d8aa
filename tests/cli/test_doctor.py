"""`softmutex doctor`: what it finds, the remedy it names, and how it ends."""

import asyncio
import base64
import copy
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from softmutex import Node, plugins
from softmutex.cli import checks, doctor
from softmutex.cli.checks import CheckVerdict
from softmutex.cli.survey import Survey, SurveyAnswer
from softmutex.ports import Member
from softmutex.testing import MemoryNetwork
from tests import prepared
from tests.adapters.certificates import make_certificates
from tests.cli.processes import children_of, read_number, started
from tests.runtime.group import node_on, shown, until

SOFTMUTEX = Path(sys.executable).with_name("softmutex")
Findings = list[dict[str, str]]


def examine(environ: dict[str, str], *flags: str, cwd: Path | None = None) -> tuple[int, dict[str, Any]]:
    run = prepared.run(
        [SOFTMUTEX, "doctor", "--json", *flags], env=environ, cwd=cwd, capture_output=True, text=True, timeout=100
    )
    assert run.stderr == ""
    return run.returncode, json.loads(run.stdout)


def the_failure(report: dict[str, Any], besides: str = "") -> dict[str, str]:
    """The one thing that failed, but for what was said to fail besides."""
    [failed] = [each for each in report["findings"] if each["verdict"] == "fail" and each["check"] != besides]
    return failed


def assert_passes(code: int, report: dict[str, Any]) -> None:
    failed = [f"{each['check']}: {each['says']}" for each in report["findings"] if each["verdict"] == "fail"]
    assert not failed, "; ".join(failed)
    assert (code, report["ok"]) == (0, True)


def about(report: dict[str, Any], check: str) -> str:
    return "\n".join(each["says"] for each in report["findings"] if each["check"] == check)


# --- where nothing is wrong ------------------------------------------------------------------------------------------


def test_a_sound_place_passes(environ: dict[str, str]):
    code, report = examine(environ)
    assert_passes(code, report)
    assert {each["verdict"] for each in report["findings"]} == {"ok"}
    assert "the key that local://" in about(report, "key")


def test_each_line_has_a_verdict(environ: dict[str, str]):
    said = prepared.run([SOFTMUTEX, "doctor"], env=environ, capture_output=True, text=True, timeout=100).stdout
    *findings, last = said.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "fail", "->") for line in findings)
    assert last == "=> all is well"


async def test_members_clocks_and_terms_are_compared(no_leaks: None, environ: dict[str, str]):
    where = environ["SOFTMUTEX_MEMBERSHIP"]
    async with Node(name="a", membership=where) as a, Node(name="b", membership=where) as b:
        async with a.mutex("x"):
            pass
        await until(lambda: a.peers() and b.peers())  # the first one learns of the second when it looks again
        code, report = await asyncio.to_thread(examine, environ)
    assert_passes(code, report)
    assert re.search(
        r"a at 127.0.0.1:\d+ answers in \d+\.\d ms and knows 1 other$", about(report, "members"), re.MULTILINE
    )
    assert about(report, "clocks").count("agrees to 0.") == 2
    assert "x: " in about(report, "agreement") and "by the same terms" in about(report, "agreement")


def test_installed_adapters_are_listed(environ: dict[str, str]):
    said = about(examine(environ)[1], "installation")
    for role in plugins.Role:
        assert f"{role.value}s: {', '.join(plugins.installed(role)) or 'none'}" in said


def test_the_object_has_the_documented_form(environ: dict[str, str]):
    documented = re.search(r"^    (\{\"ok\".*?\})\n\n", doctor.__doc__ or "", re.DOTALL | re.MULTILINE)
    assert documented
    promised, report = json.loads(documented[1]), examine(environ)[1]
    assert list(report) == list(promised)
    assert {frozenset(each) for each in report["findings"]} == {frozenset(promised["findings"][0])}
    assert {frozenset(each) for each in report["settings"].values()} == {frozenset(promised["settings"]["transport"])}


# --- settings --------------------------------------------------------------------------------------------------------


def test_each_setting_is_shown_with_who_said_it(environ: dict[str, str], tmp_path: Path):
    (tmp_path / "softmutex.toml").write_text("leave_timeout = 2\n[mutex.x]\nslots = 3\n")
    environ |= {"SOFTMUTEX_NAME": "me"}
    flags = ("--group", "reds", "--transport", "udp://127.0.0.1:0?insecure=true", "-n", "x")
    settings = examine(environ, *flags, cwd=tmp_path)[1]["settings"]
    origins = {name: settings[name]["origin"] for name in ("group", "name", "insecure", "timeout")}
    assert origins == {
        "group": "flag",
        "name": "environment SOFTMUTEX_NAME",
        "insecure": "query of transport",
        "timeout": "default",
    }
    assert settings["leave_timeout"]["value"] == "2.0"
    assert settings["leave_timeout"]["origin"] == f"file {tmp_path}/softmutex.toml"
    assert settings["slots"]["value"] == "3" and "[mutex.x]" in settings["slots"]["origin"]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SOFTMUTEX_TRANSPRT", "udp://:0", "SOFTMUTEX_TRANSPORT"),
        ("SOFTMUTEX_TRANSPORT", "pigeon://", "no transport named 'pigeon'"),
        ("SOFTMUTEX_SLOTS", "many", "slots='many'"),
    ],
)
def test_an_impossible_setting_fails_with_the_right_one(environ: dict[str, str], variable: str, value: str, said: str):
    code, report = examine(environ | {variable: value})
    assert code == 1
    assert the_failure(report)["check"] == "settings"
    assert said in the_failure(report)["says"]


# --- the key and the runtime directory -------------------------------------------------------------------------------


def test_a_key_file_that_others_can_read_fails_with_the_remedy(environ: dict[str, str], tmp_path: Path):
    key = tmp_path / "key"
    key.write_bytes(base64.b64encode(os.urandom(32)))
    key.chmod(0o644)
    code, report = examine(environ, "--key-file", str(key))
    assert code == 1
    assert the_failure(report)["check"] == "key" and "chmod 600" in the_failure(report)["says"]
    key.chmod(0o600)
    code, report = examine(environ, "--key-file", str(key))
    assert_passes(code, report)
    assert f"sealed with {key}" in about(report, "key")


def test_no_key_where_strangers_can_send_fails(environ: dict[str, str]):
    code, report = examine(environ, "--transport", "udp://0.0.0.0:0", "--membership", "static://127.0.0.1:1")
    assert code == 1
    failed = the_failure(report, besides="members")  # nobody answers at that address
    assert failed["check"] == "key" and "key_file" in failed["remedy"]
    assert "softmutex key new FILE" in failed["remedy"]


def test_no_key_is_only_a_warning_where_that_was_wanted(environ: dict[str, str]):
    flags = ("--transport", "udp://0.0.0.0:0", "--membership", "static://127.0.0.1:1", "--insecure")
    warned = [each for each in examine(environ, *flags)[1]["findings"] if each["verdict"] == "warn"]
    assert any(each["check"] == "key" and "insecure" in each["says"] for each in warned)


def test_a_key_file_that_is_not_there_fails(environ: dict[str, str]):
    code, report = examine(environ, "--key-file", "/no/such/key")
    assert code == 1
    assert "/no/such/key" in the_failure(report)["says"]


def test_a_runtime_directory_that_others_can_write_fails_with_the_remedy(environ: dict[str, str], tmp_path: Path):
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime").chmod(0o777)
    code, report = examine(environ)
    assert code == 1
    assert "chmod go=" in the_failure(report)["says"]


# --- the port --------------------------------------------------------------------------------------------------------


def test_a_port_that_somebody_else_has_fails(environ: dict[str, str]):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        port = stranger.getsockname()[1]
        code, report = examine(environ, "--transport", f"udp://127.0.0.1:{port}")
    assert code == 1
    assert the_failure(report)["check"] == "port" and f"ss -lnp | grep ':{port}'" in the_failure(report)["remedy"]


async def test_a_port_that_a_node_of_the_group_has_is_as_it_should_be(no_leaks: None, environ: dict[str, str]):
    async with Node(name="a", membership=environ["SOFTMUTEX_MEMBERSHIP"]) as a:
        code, report = await asyncio.to_thread(examine, environ, "--transport", f"udp://{a.address}")
    assert_passes(code, report)
    assert "by the node a of this group" in about(report, "port")


def test_an_address_that_does_not_lead_back_here_is_a_warning(environ: dict[str, str]):
    code, report = examine(environ, "--advertise", "127.0.0.1:9")
    assert_passes(code, report)
    assert "what is sent to 127.0.0.1:9 does not come in here" in about(report, "port")


# --- members ---------------------------------------------------------------------------------------------------------


def test_a_member_that_does_not_answer_fails(environ: dict[str, str], tmp_path: Path):
    command = ("run", "-n", "x", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
    with started(SOFTMUTEX, *command, env=environ, cwd=tmp_path) as run:
        read_number(tmp_path / "pid")
        agent = next(child for child in children_of(run.pid) if os.getsid(child) == child)
        os.kill(agent, signal.SIGSTOP)
        code, report = examine(environ)
        os.kill(agent, signal.SIGCONT)
    assert code == 1
    assert "does not answer" in the_failure(report)["says"] and "firewall" in the_failure(report)["remedy"]


def test_causes_are_told_apart_and_the_last_line_sums_up(environ: dict[str, str], tmp_path: Path):
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed,
    ):
        for each in (silent, closed):
            each.bind(("127.0.0.1", 0))
        at = [f"127.0.0.1:{each.getsockname()[1]}" for each in (silent, closed)]
        closed.connect(("127.0.0.1", 1))  # for others nobody listens there, and nobody else gets the port meanwhile
        (tmp_path / "group.key").write_text(base64.b64encode(bytes(32)).decode() + "\n")
        (tmp_path / "group.key").chmod(0o600)
        environ = {
            **environ,
            "SOFTMUTEX_MEMBERSHIP": f"static://{at[0]},{at[1]},nowhere.invalid:9431",
            "SOFTMUTEX_KEY_FILE": str(tmp_path / "group.key"),
        }
        code, report = examine(environ, "--slots", "2")
        said = prepared.run([SOFTMUTEX, "doctor"], env=environ, capture_output=True, text=True, timeout=100).stdout
    assert code == 1
    told = about(report, "members")
    assert f"{at[0]} does not answer" in told
    assert f"{at[1]} is reached, and nobody listens at that port" in told
    assert "nowhere.invalid:9431 cannot be resolved" in told
    assert report["settings"]["slots"] == {"value": "2", "origin": "flag"}
    assert re.match("=> 3 failed.*; first of all: ", said.splitlines()[-1])


def test_a_doctor_that_listens_is_found_by_another(environ: dict[str, str]):
    with started(
        SOFTMUTEX, "doctor", "--listen", "--node-name", "over-there", env=environ, stdout=subprocess.PIPE
    ) as one:
        assert one.stdout
        assert "listening as over-there" in one.stdout.readline()
        code, report = examine(environ)
        assert code == 0
        assert "over-there" in about(report, "members")
        with started(SOFTMUTEX, "run", "-n", "x", "--", "sleep", "60", env={**environ, "SOFTMUTEX_AGENT": "off"}):
            assert one.stdout.readline().startswith("+ ")


def test_a_group_of_several_hosts_in_which_nobody_is_shown_is_a_warning():
    from softmutex.runtime.config import resolve

    settings = resolve(membership="static://nobody:1", environ={})
    [finding] = checks.check_members(settings, [])
    assert finding.verdict is CheckVerdict.WARN


@pytest.fixture
async def two(no_leaks: None, network: MemoryNetwork) -> list[SurveyAnswer]:
    """What two nodes that take part in the mutex `x` say of themselves."""
    async with node_on(network, name="a") as a, node_on(network, name="b") as b:
        async with a.mutex("x"):
            pass
        async with b.mutex("x"):
            pass
        told = [(node, await shown(node, network.transport()) | {"loop_lag_max": 0.0}) for node in (a, b)]
        return [
            SurveyAnswer(Member(node.address, node.id, node.name), document, rtt_s=0.001) for node, document in told
        ]


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork(seed=1)


def changed(answer: SurveyAnswer, **changes: Any) -> SurveyAnswer:
    document = copy.deepcopy(answer.document)
    return SurveyAnswer(answer.member, {**(document or {}), **changes}, answer.rtt_s, answer.offset_s)


def worst(findings: Any) -> tuple[CheckVerdict, str]:
    [found] = [each for each in findings if each.verdict is not CheckVerdict.OK]
    return found.verdict, found.says


async def test_a_node_that_does_not_know_all_others_fails(two: list[SurveyAnswer]):
    from softmutex.runtime.config import resolve

    settings = resolve(environ={})
    verdict, says = worst(checks.check_members(settings, [two[0], changed(two[1], peers=0)]))
    assert verdict is CheckVerdict.FAIL and "b at " in says and "knows 0 others, 1 are there" in says


async def test_a_node_that_has_come_just_now_is_given_a_moment_to_be_known(
    two: list[SurveyAnswer], monkeypatch: pytest.MonkeyPatch
):
    from softmutex.runtime.config import resolve

    looks = [[changed(two[0], peers=0), two[1]], two]

    async def ask(survey: Survey, patience_s: float) -> list[SurveyAnswer]:
        return looks.pop(0)

    monkeypatch.setattr(Survey, "ask", ask)
    monkeypatch.setattr(doctor, "MEETING_S", 0.0)
    settings = resolve(transport="udp://127.0.0.1:0", membership="static://127.0.0.1:1", environ={})
    findings = await doctor.examine(settings)
    assert not [each for each in findings if each.verdict is CheckVerdict.FAIL]
    assert not looks


async def test_terms_that_differ_fail_and_are_named(two: list[SurveyAnswer]):
    mutexes = copy.deepcopy((two[1].document or {})["mutexes"])
    mutexes[0]["slots"] = 2
    mutexes[0]["terms"]["op"] = 9.0
    verdict, says = worst(checks.check_agreement([two[0], changed(two[1], mutexes=mutexes)]))
    assert verdict is CheckVerdict.FAIL
    assert says == "x: op is 9.0 at b and 4.0 at a; slots is 2 at b and 1 at a"


async def test_versions_that_differ_are_a_warning(two: list[SurveyAnswer]):
    verdict, says = worst(checks.check_agreement([two[0], changed(two[1], version="9.9")]))
    assert verdict is CheckVerdict.WARN and "9.9" in says


@pytest.mark.parametrize(("offset_s", "way"), [(-7200.0, "7200.0 s behind"), (3.0, "3.0 s ahead of")])
async def test_a_clock_that_differs_is_a_warning(two: list[SurveyAnswer], offset_s: float, way: str):
    verdict, says = worst(checks.check_clocks([two[0], SurveyAnswer(two[1].member, two[1].document, 0.001, offset_s)]))
    assert verdict is CheckVerdict.WARN and way in says


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dropped": {"unknown_key": 3}}, "refused frames: unknown_key 3"),
        ({"told": {"mismatch": 1}}, "complained of 'mismatch', 1 times"),
        ({"loop_lag_max": 3.0}, "was blocked for 3.0 s"),
    ],
)
async def test_what_a_node_found_strange_is_a_warning(two: list[SurveyAnswer], change: dict[str, Any], said: str):
    verdict, says = worst(checks.check_node("a", changed(two[0], **change).document or {}))
    assert verdict is CheckVerdict.WARN and said in says


async def test_an_isolated_node_fails(two: list[SurveyAnswer]):
    mutexes = copy.deepcopy((two[0].document or {})["mutexes"])
    mutexes[0]["isolated"] = True
    assert worst(checks.check_node("a", changed(two[0], mutexes=mutexes).document or {}))[0] is CheckVerdict.FAIL


def test_an_adapter_that_cannot_be_imported_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    load = plugins.load

    def broken(role: plugins.Role, name: str) -> Any:
        if name == "http":
            raise ImportError("no module named pigeon")
        return load(role, name)

    monkeypatch.setattr(plugins, "load", broken)
    verdict, says = worst(checks.check_installation())
    assert verdict is CheckVerdict.WARN and says == "transport http: no module named pigeon"


async def test_of_a_member_whose_certificate_is_not_trusted_it_says_so(environ: dict[str, str], tmp_path: Path):
    places = [tmp_path / "ours", tmp_path / "theirs"]
    for place in places:
        place.mkdir()
    (cert, key, ca), theirs = (tuple(map(str, make_certificates(place))) for place in places)
    there = f"https://127.0.0.1:0?cert={cert}&key={key}&ca={ca}"
    async with Node(transport=there, membership="static://127.0.0.1:1", key=bytes(32)) as node:
        here = f"https://127.0.0.1:0?cert={theirs[0]}&key={theirs[1]}&ca={theirs[2]}"
        flags = ("--transport", here, "--membership", f"static://{node.address}")
        code, report = await asyncio.to_thread(examine, {**environ, "SOFTMUTEX_INSECURE": "1"}, *flags)
    assert code == 1
    assert "is there and refuses us: its certificate is not trusted" in the_failure(report)["says"]
