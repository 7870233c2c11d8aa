"""Debian's Prometheus really scrapes two applications; alerts and dashboard ask it for what is really there."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.processes import Prometheus, applications, eventually
from tests.telemetry.test_metrics import ALL

OPERATIONS = Path(__file__).parent.parent.parent / "docs" / "operations"
ALERTS = OPERATIONS / "alerts.yml"
pytestmark = [pytest.mark.needs("prometheus"), pytest.mark.house]

LABELS = {"softmutex_name", "softmutex_node", "softmutex_algorithm", "softmutex_outcome", "softmutex_kind"}


def in_prometheus(metric: str) -> set[str]:
    name = metric.replace(".", "_")
    if metric in ("softmutex.wait.duration", "softmutex.hold.duration", "softmutex.loop.lag"):
        return {f"{name}_seconds_{part}" for part in ("bucket", "count", "sum")}
    return {name if metric == "softmutex.members" else f"{name}_total"}


SCRAPED = {name for metric in ALL for name in in_prometheus(metric)}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    where = tmp_path_factory.mktemp("prometheus")
    with applications(2, "prometheus", f"local://scraped?directory={where / 'group'}", "5", OTHERS="1") as both:
        ports = [int(application.hear()) for application in both]
        for words in ("ready", "done"):
            assert [application.hear() for application in both] == [words, words]
            if words == "ready":
                for application in both:
                    application.go_on()
        prometheus = Prometheus(where, ALERTS, ports)
        try:
            eventually(prometheus.is_there)
            eventually(lambda: set(prometheus.ask("label/__name__/values")) >= SCRAPED)
            eventually(lambda: value(prometheus, "min(count_over_time(softmutex_members[1h]))") >= 3)
            yield prometheus
        finally:
            prometheus.close()


def value(prometheus: Prometheus, query: str) -> float:
    """By the last scrape of each that came in time: after one that did not, Prometheus takes what it knew for stale.
    Not a number where nothing is known yet: the name of a metric is, a moment before its value."""
    query = re.sub(r"(?<!by \()softmutex_\w+(?:{[^}]*})?(?=\))", r"last_over_time(\g<0>[1h])", query)
    found = prometheus.ask("query", query=query)["result"]
    return float(found[0]["value"][1]) if found else math.nan


def names_in(query: str) -> set[str]:
    return set(re.findall(r"softmutex_\w+", query))


def test_what_is_scraped_is_what_happened(prometheus: Prometheus):
    assert value(prometheus, 'sum(softmutex_acquisitions_total{softmutex_outcome="granted"})') == 2 * 6
    assert value(prometheus, 'sum(softmutex_acquisitions_total{softmutex_outcome="timeout"})') == 2
    assert value(prometheus, 'sum(softmutex_hold_duration_seconds_count{softmutex_name="nightly-ftp"})') == 2 * 6
    assert 2 * 5 <= value(prometheus, "sum(softmutex_overruns_total)") <= 2 * 6
    assert value(prometheus, "min(softmutex_members)") == value(prometheus, "max(softmutex_members)") == 2
    assert value(prometheus, 'count(count by (softmutex_node) (softmutex_handovers_total{job="applications"}))') == 2


def test_counters_that_never_counted_are_scraped_as_zero(prometheus: Prometheus):
    assert value(prometheus, "count(softmutex_overlaps_total)") == 2
    assert value(prometheus, "count(softmutex_discards_total)") == 2


def test_every_alert_asks_for_names_that_are_scraped_and_can_be_evaluated(prometheus: Prometheus):
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]

    found = eventually(lambda: (seen := rules()) and all(rule["health"] != "unknown" for rule in seen) and seen)
    assert len(found) == ALERTS.read_text().count("- alert:")
    for rule in found:
        assert rule["health"] == "ok", rule
        assert names_in(rule["query"]) - LABELS <= SCRAPED, rule["query"]


def test_an_alert_about_what_happened_is_pending_or_fires(prometheus: Prometheus):
    def firing() -> set[str]:
        return {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]}

    assert "SoftmutexOverlap" not in firing()
    assert "SoftmutexGroupSplit" not in firing()


def panels() -> list[dict[str, Any]]:
    return list(json.loads((OPERATIONS / "grafana.json").read_text())["panels"])


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_every_panel_of_the_dashboard_shows_something(prometheus: Prometheus, panel: dict[str, Any]):
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", "1h").replace("$__range", "1h").replace("$name", ".*")
        assert "$" not in query
        assert names_in(query) - LABELS <= SCRAPED
        assert eventually(lambda query=query: prometheus.ask("query", query=query)["result"])  # type: ignore[misc]
        assert names_in(target["legendFormat"]) <= LABELS


def test_the_dashboard_is_laid_out(prometheus: Prometheus):
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies on another one"
        assert max(x for x, _ in cells) < 24
        taken |= cells
    _, name = json.loads((OPERATIONS / "grafana.json").read_text())["templating"]["list"]
    metric, label = re.findall(r"softmutex_\w+", name["definition"])
    assert metric in SCRAPED
    assert prometheus.ask(f"label/{label}/values") == ["nightly-ftp"]


def test_each_alert_fires_on_what_it_is_for_and_on_nothing_else(tmp_path: Path):
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        ran = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    tested = set(re.findall(r"alertname: (\w+)", (tmp_path / "alerts_test.yml").read_text()))
    assert tested == set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))
