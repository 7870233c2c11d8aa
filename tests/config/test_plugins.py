"""What a URL or a name stands for, and what is said when it stands for nothing."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest

from softmutex import ConfigError, plugins
from softmutex.core.algorithms.sandwich import Sandwich
from softmutex.plugins import Role
from softmutex.testing import MemoryNetwork


def test_a_scheme_finds_its_adapter():
    assert type(plugins.transport("udp://127.0.0.1:0")).__name__ == "UdpTransport"
    assert type(plugins.membership("static://127.0.0.1:1")).__name__ == "StaticMembership"
    assert plugins.algorithm("wandering").name == "wandering"


def test_an_instance_is_accepted_wherever_a_url_is():
    transport = MemoryNetwork().transport()
    assert plugins.transport(transport) is transport


def test_a_scheme_that_is_not_there_lists_what_is_installed_and_where_to_register():
    with pytest.raises(ConfigError) as raised:
        plugins.transport("carrier-pigeon://roof")
    said = str(raised.value)
    assert said.startswith("no transport named 'carrier-pigeon' (installed: http, https, memory, ")
    assert "entry-point group 'softmutex.transports'" in said


def test_a_near_miss_names_the_right_one():
    with pytest.raises(ConfigError, match="Did you mean 'wandering'"):
        plugins.algorithm("wanderng")


def test_what_an_extra_of_ours_would_bring_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r"Run: pip install 'softmutex\[uvloop\]'"):
        plugins.membership("uvloop://x")


def test_a_plug_in_whose_import_fails_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    broken = EntryPoint("broken", "no_such_package:Thing", Role.OBSERVER.group)
    monkeypatch.setattr(plugins, "installed", lambda role: {"broken": broken})
    with pytest.raises(ConfigError, match="is installed but cannot be imported") as raised:
        plugins.load(Role.OBSERVER, "broken")
    assert isinstance(raised.value.__cause__, ImportError)
    plugins.load.cache_clear()


# --- algorithms ------------------------------------------------------------------------------------------------------


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """As if other packages had registered these algorithms, too."""

    def forget() -> None:
        plugins.load.cache_clear()
        plugins.load_all_algorithms.cache_clear()

    def beside(**entries: str) -> None:
        others = {name: EntryPoint(name, value, Role.ALGORITHM.group) for name, value in entries.items()}
        known = {**plugins.installed(Role.ALGORITHM), **others}
        monkeypatch.setattr(plugins, "installed", lambda role: known)
        forget()

    yield beside
    forget()


def test_an_algorithm_is_a_class_derived_from_algorithm():
    for nothing in (object, Sandwich.__new__, 7):
        with pytest.raises(
            ConfigError, match=r"is no algorithm\. Name one of adaptive, .*or give a class derived from"
        ):
            plugins.algorithm(nothing)  # type: ignore[arg-type]
    assert plugins.algorithm(Sandwich) is Sandwich


def test_an_algorithm_is_registered_under_the_name_that_it_has(install: Callable[..., None]):
    install(open="softmutex.core.algorithms.sandwich:Sandwich")
    with pytest.raises(ConfigError, match=r"'open' is a class that calls itself 'sandwich'. Register it under its own"):
        plugins.algorithm("open")


def test_an_algorithm_that_is_broken_does_not_hide_the_others_and_is_named(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    install(absent="no_such_package:Thing", strange="softmutex.urls:Url")
    asked: list[str] = []
    true_one = plugins.algorithm
    monkeypatch.setattr(plugins, "algorithm", lambda name: (asked.append(name), true_one(name)))
    for _ in range(2):
        plugins.load_all_algorithms()
    assert asked == list(plugins.installed(Role.ALGORITHM))  # once
    assert "the algorithm 'absent' is installed and cannot be used" in caplog.text
    assert "the algorithm 'strange' is installed and cannot be used" in caplog.text
    assert len(caplog.records) == 2


def test_a_membership_on_redis_without_its_client_is_refused_before_the_node_opens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"redis://127.0.0.1:1: .*Run: pip install 'softmutex\[redis\]'"):
        plugins.membership("redis://127.0.0.1:1/x")


def test_a_place_without_a_scheme_is_told_which_schemes_there_are():
    with pytest.raises(ConfigError, match=r"transport='0\.0\.0\.0:9431' is not a URL.*udp"):
        plugins.transport("0.0.0.0:9431")


def test_importing_the_library_looks_for_no_plug_in_and_brings_nothing_heavy():
    script = (
        "import sys, softmutex, softmutex.sync\n"
        "heavy = 'aiohttp cryptography importlib.metadata opentelemetry tenacity tomllib zeroconf'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    assert run.stdout.strip() == "[]"
