"""Which setting is in force, and who said so."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from softmutex import ConfigError, Node, SoftMutex, Timing
from softmutex.runtime.config import Settings, resolve, with_places
from softmutex.runtime.options import SETTINGS
from softmutex.testing import MemoryNetwork
from softmutex.values import duration_s
from tests.runtime.group import mutex_shown, node_on

FILE = """
transport = "udp://0.0.0.0:1?name=query-name"
group = "file"
max_hold = "2h"
[timing]
op = 2.5
[mutex.db-load]
slots = 3
max_hold = 60
"""


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def resolved(environ: dict[str, str] | None = None, **keywords: Any) -> Settings:
    return resolve(keywords, environ=environ or {})


def test_keyword_goes_before_environment_before_file_before_query_before_default(tmp_path: Path):
    (tmp_path / "softmutex.toml").write_text('group = "file"\n')
    url = "udp://0.0.0.0:1?group=query&name=query"
    everything = {"SOFTMUTEX_GROUP": "environment"}
    assert SETTINGS["group"].default == "default"
    for keyword, environ, file, said, origin in (
        ("keyword", everything, True, "keyword", "keyword"),
        (None, everything, True, "environment", "environment SOFTMUTEX_GROUP"),
        (None, {}, True, "file", f"file {tmp_path / 'softmutex.toml'}"),
        (None, {}, False, "query", "query of transport"),
    ):
        if not file:
            (tmp_path / "softmutex.toml").unlink()
        settings = resolved(environ, group=keyword, transport=url)
        assert (settings["group"], settings.origin("group")) == (said, origin)
    assert resolved()["group"] == "default"
    assert resolved().origin("group") == "default"


def test_our_own_settings_are_taken_out_of_a_url_and_the_adapters_stay():
    settings = resolved(transport="https://0.0.0.0:1?cert=a.pem&insecure=yes&key=k.pem&ca=/x,y")
    assert settings["transport"] == "https://0.0.0.0:1?cert=a.pem&key=k.pem&ca=/x,y"
    assert settings["insecure"] is True
    assert settings["key"] is None


def test_a_file_has_tables_for_timing_and_for_single_mutexes(tmp_path: Path):
    (tmp_path / "softmutex.toml").write_text(FILE)
    settings = resolved()
    assert (settings["max_hold"], settings["timing.op"], settings["name"]) == (7200.0, 2.5, "query-name")
    one = settings.for_mutex("db-load", {})
    assert (one["slots"], one["max_hold"], one["timing.op"]) == (3, 60.0, 2.5)
    assert one.origin("slots") == f"file {tmp_path / 'softmutex.toml'} [mutex.db-load]"
    other = settings.for_mutex("another", {})
    assert (other["slots"], other["max_hold"]) == (1, 7200.0)


def test_the_keyword_and_the_environment_go_before_the_table_of_a_mutex(tmp_path: Path):
    (tmp_path / "softmutex.toml").write_text(FILE)
    assert resolved({"SOFTMUTEX_SLOTS": "5"}).for_mutex("db-load", {})["slots"] == 5
    assert resolved().for_mutex("db-load", {"slots": 7})["slots"] == 7


def test_the_table_of_a_project_is_read_where_there_is_no_file_of_its_own(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text('[tool.softmutex]\ngroup = "project"\n[tool.other]\nx = 1\n')
    assert resolved()["group"] == "project"
    (tmp_path / "softmutex.toml").write_text('group = "own"\n')
    assert resolved()["group"] == "own"


def test_the_environment_names_another_file(tmp_path: Path):
    (tmp_path / "else.toml").write_text('group = "elsewhere"\n')
    assert resolved({"SOFTMUTEX_CONFIG": str(tmp_path / "else.toml")})["group"] == "elsewhere"
    with pytest.raises(ConfigError, match="cannot be read"):
        resolved({"SOFTMUTEX_CONFIG": "missing.toml"})


@pytest.mark.parametrize(
    ("keywords", "environ", "file", "said"),
    [
        ({"grop": "x"}, {}, "", "no setting 'grop' (keyword). Did you mean 'group'?"),
        ({}, {"SOFTMUTEX_TRANSPROT": "x"}, "", "Did you mean 'SOFTMUTEX_TRANSPORT'?"),
        ({}, {}, "tranport = 'x'", "no setting 'tranport' (file "),
        ({}, {}, "[timing]\nopp = 1", "Did you mean 'timing.op'?"),
        ({}, {}, "[mutex.x]\nslot = 1", "Did you mean 'slots'?"),
        ({}, {}, "[mutex.x]\ntransport = 'udp://'", "no setting 'transport' (file "),
        ({}, {}, "key = 'x'", "Did you mean 'key_file'?"),
        ({}, {}, "mutex = 3", "'mutex' wants tables"),
        ({}, {}, "timing = 3", "'timing' wants a table"),
        ({}, {}, "= 3", "is not TOML"),
        ({"slots": 0}, {}, "", "slots=0 (keyword): wants a whole number from 1"),
        ({"slots": True}, {}, "", "slots=True"),
        ({}, {"SOFTMUTEX_SLOTS": "many"}, "", "slots='many' (environment SOFTMUTEX_SLOTS)"),
        ({}, {"SOFTMUTEX_MAX_HOLD": "soon"}, "", "max_hold='soon' (environment SOFTMUTEX_MAX_HOLD): wants seconds, or"),
        ({}, {"SOFTMUTEX_THREAD": "perhaps"}, "", "wants true or false"),
        ({"on_overrun": "shout"}, {}, "", "wants warn or release or cancel or a function"),
        ({"when_isolated": print}, {}, "", "wants wait or proceed or raise"),
        ({"max_hold": float("nan")}, {}, "", "wants a number of seconds"),
        ({"key": 5}, {}, "", "key='...' (keyword): wants the key as bytes, or the path"),
        ({"group": ""}, {}, "", "wants a text that is not empty"),
        ({"transport": "udp://x?slots=3"}, {}, "", None),  # the adapter's to refuse
    ],
)
def test_what_is_wrong_is_told_with_the_place_and_the_remedy(
    keywords: dict[str, Any], environ: dict[str, str], file: str, said: str | None, tmp_path: Path
):
    (tmp_path / "softmutex.toml").write_text(file)
    if said is None:
        resolved(environ, **keywords)
        return
    with pytest.raises(ConfigError) as raised:
        resolved(environ, **keywords)
    assert said in str(raised.value)


def test_an_empty_variable_counts_as_not_set_and_what_a_child_of_run_sees_is_no_setting():
    told = {"SOFTMUTEX_GROUP": "", "SOFTMUTEX_HELD": "x", "SOFTMUTEX_EPOCH": "3"}
    assert resolved(told)["group"] == "default"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90", 90.0),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("30s", 30.0),
        ("10m", 600.0),
        ("2 h", 7200.0),
        ("1d", 86400.0),
        (7, 7.0),
    ],
)
def test_durations_have_units(written: str | int, seconds: float):
    assert duration_s(written) == seconds


@pytest.mark.parametrize(
    "written", ["1" * 4000 + "+", "1.5" * 2000 + "x", "1 " * 2000 + "!", "1h" * 2000 + "-", " ", "h"]
)
def test_what_is_no_duration_is_refused_in_a_single_pass(written: str):
    with pytest.raises(ValueError, match="wants seconds"):
        duration_s(written)


def test_no_limit_can_be_written():
    assert resolved({"SOFTMUTEX_MAX_HOLD": "none"})["max_hold"] is None


def test_every_setting_has_a_variable_a_help_text_and_a_default_that_it_accepts():
    for setting in SETTINGS.values():
        assert setting.variable.startswith("SOFTMUTEX_")
        assert setting.help
        if setting.default is not None:
            assert setting.read(setting.default) == setting.default
    assert len({setting.variable for setting in SETTINGS.values()}) == len(SETTINGS)


# --- what follows from the rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "transport", "membership"),
    [
        ({}, "udp://127.0.0.1:0", "local://"),
        ({"group": "lab"}, "udp://127.0.0.1:0", "local://lab"),
        ({"membership": "local://x"}, "udp://127.0.0.1:0", "local://x"),
        ({"membership": "mdns://lab"}, "udp://0.0.0.0:0", "mdns://lab"),
        ({"transport": "udp://0.0.0.0:9"}, "udp://0.0.0.0:9", "local://"),
        (
            {"transport": "udp://0.0.0.0:9?queue=99&advertise=a:1", "advertise": "b:2"},
            "udp://0.0.0.0:9?queue=99&advertise=b:2",
            "local://",
        ),
        ({"transport": "udp://0.0.0.0:9?advertise=a:1"}, "udp://0.0.0.0:9?advertise=a:1", "local://"),
    ],
)
def test_places_that_nobody_named_follow_from_the_rest(given: dict[str, Any], transport: str, membership: str):
    settings = with_places(resolved(**given))
    assert (settings["transport"], settings["membership"]) == (transport, membership)


# --- where the keywords come in --------------------------------------------------------------------------------------


def test_a_node_reads_the_environment_when_it_is_used_not_when_it_is_made(monkeypatch: pytest.MonkeyPatch):
    node = Node()
    monkeypatch.setenv("SOFTMUTEX_GROUP", "late")
    assert node.settings()["group"] == "late"


def test_from_env_and_from_config_give_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOFTMUTEX_MEMBERSHIP", "static://127.0.0.1:9")
    assert Node.from_env(group="x").settings()["membership"] == "static://127.0.0.1:9"
    (tmp_path / "my.toml").write_text('group = "mine"\n')
    node = Node.from_config(tmp_path / "my.toml", name="n")
    assert (node.settings()["group"], node.settings()["name"]) == ("mine", "n")


@pytest.mark.parametrize("make", [Node, lambda **k: SoftMutex("x", **k), lambda **k: Node().mutex("x", **k)])
def test_what_can_be_judged_at_once_is_refused_at_once(make: Any):
    with pytest.raises(ConfigError, match="there is no setting 'membershipp'"):
        make(membershipp="x")


async def in_force(node: Node, network: MemoryNetwork, name: str, **options: Any) -> dict[str, Any]:
    """By which terms the mutex is run, as the node tells whoever asks."""
    async with node, node.mutex(name, **options):
        seen = await mutex_shown(node, network, name)
    return {"slots": seen["slots"], **seen["terms"]}


async def test_a_timing_counts_as_given_whole(monkeypatch: pytest.MonkeyPatch):
    network = MemoryNetwork()
    monkeypatch.setenv("SOFTMUTEX_TIMING_NODES_MAX", "17")
    terms = await in_force(node_on(network), network, "x", timing=Timing(op=9.0))
    assert terms == {"slots": 1, **asdict(Timing(op=9.0))}


async def test_a_mutex_learns_its_settings_from_the_node_and_its_table(tmp_path: Path):
    (tmp_path / "softmutex.toml").write_text(FILE)
    network = MemoryNetwork()
    node = node_on(network, config=tmp_path / "softmutex.toml")
    terms = await in_force(node, network, "db-load", min_interval=3)
    assert (terms["slots"], terms["op"], terms["min_interval"]) == (3, 2.5, 3.0)
    assert terms == {**asdict(Timing(op=2.5)), "min_interval": 3.0, "slots": 3, "each": 3}


# --- files of others -------------------------------------------------------------------------------------------------


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("name", "content"),
    [("softmutex.toml", 'group = "theirs"'), ("pyproject.toml", '[tool.softmutex]\ngroup = "theirs"')],
)
def test_a_file_in_the_directory_of_another_user_is_not_believed_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
):
    (tmp_path / name).write_text(content)
    os.chown(tmp_path, 54_321, -1)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"belongs to user 54321.* name it: SOFTMUTEX_CONFIG={tmp_path / name}"):
        resolve({}, environ={})
    assert resolve({}, environ={"SOFTMUTEX_CONFIG": str(tmp_path / name)})["group"] == "theirs"
    os.chown(tmp_path, 0, -1)
    assert resolve({}, environ={})["group"] == "theirs"


@pytest.mark.needs("root")
def test_a_strangers_project_that_says_nothing_of_softmutex_is_nobodys_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'theirs'")
    os.chown(tmp_path, 54_321, -1)
    monkeypatch.chdir(tmp_path)
    assert resolve({}, environ={})["group"] == "default"


@pytest.mark.needs("root")
def test_a_strangers_link_to_a_file_of_ones_own_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    for folder in (own, theirs):
        folder.mkdir(mode=0o755)
    (own / "softmutex.toml").write_text('group = "mine"')
    (theirs / "softmutex.toml").symlink_to(own / "softmutex.toml")
    monkeypatch.chdir(theirs)
    assert resolve({}, environ={})["group"] == "mine"
    os.chown(theirs, 54_321, -1)
    with pytest.raises(ConfigError, match="belongs to user 54321"):
        resolve({}, environ={})
    os.chown(theirs, 0, -1)
    theirs.chmod(0o1777)  # as /tmp is, with a link that a stranger made
    os.chown(theirs / "softmutex.toml", 54_321, -1, follow_symlinks=False)
    with pytest.raises(ConfigError, match="belongs to user 54321"):
        resolve({}, environ={})


@pytest.mark.parametrize("name", ["softmutex.toml", "pyproject.toml"])
def test_a_pipe_that_somebody_has_put_there_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    os.mkfifo(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert resolve({}, environ={})["group"] == "default"


def test_of_a_file_without_an_end_little_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with open("softmutex.toml", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ConfigError, match="has more than 1048576 bytes"):
        resolve({}, environ={})
    os.unlink("softmutex.toml")
    os.symlink("/dev/zero", "softmutex.toml")
    assert resolve({}, environ={})["group"] == "default"


@pytest.mark.parametrize("content", ["tool = 5 # tool.softmutex", "[tool]\nsoftmutex = 5 # tool.softmutex"])
def test_a_project_whose_table_is_none_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str):
    (tmp_path / "pyproject.toml").write_text(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is no table"):
        resolve({}, environ={})
