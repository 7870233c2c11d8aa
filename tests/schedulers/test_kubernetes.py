"""examples/kubernetes: the manifests are what the published schemas say, and what they wire together takes turns.

Nobody has a cluster in a test. What there is: network and process namespaces for pods, a name server for the headless
service, the commands and settings of the manifests as they stand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.schedulers.contract import have_come, is_in, may_end, overlaps, visits, wait_until
from tests.schedulers.pods import MANIFESTS, Pods, cluster, manifests, pod_spec

FILES = sorted(path.name for path in MANIFESTS.glob("*.yaml"))
pytestmark = pytest.mark.slow
in_namespaces = pytest.mark.needs("root", "netns", "unshare")
RECOVERY_S = 20.0  # a token that was lost is made anew; on a busy machine


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "visits"


@pytest.fixture
def pods(tmp_path: Path, log: Path) -> Iterator[Pods]:
    with cluster(tmp_path, log) as made:
        yield made


# --- the manifests ----------------------------------------------------------------------------------------------------


@pytest.mark.needs("recipes")
@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_the_manifests_are_valid_by_the_published_schemas(version: str):
    paths = [str(MANIFESTS / name) for name in FILES]
    environ = {**os.environ, "PYTHONPATH": os.environ["RECIPES_DIR"]}
    checked = subprocess.run(
        [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", version, *paths],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("passed") >= sum(len(manifests(name)) for name in FILES), checked.stdout


def test_what_belongs_together_has_the_same_names():
    objects = {(each["kind"], each["metadata"]["name"]): each for name in FILES for each in manifests(name)}
    service, config = objects["Service", "softmutex"], objects["ConfigMap", "softmutex"]["data"]
    assert {each["metadata"]["namespace"] for each in objects.values()} == {"transfers"}
    (port,) = service["spec"]["ports"]
    assert config["SOFTMUTEX_MEMBERSHIP"].startswith(f"dns://softmutex.transfers.svc.cluster.local:{port['port']}")
    assert config["SOFTMUTEX_TRANSPORT"] == f"udp://0.0.0.0:{port['port']}"
    for name in ("cronjob.yaml", "agent.yaml"):
        (manifest,) = manifests(name)
        template = manifest["spec"].get("jobTemplate", manifest)["spec"]["template"]
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        for container in [*template["spec"]["initContainers"], *template["spec"]["containers"]]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    agent, job = pod_spec("agent.yaml"), pod_spec("job.yaml")
    assert agent["securityContext"]["runAsUser"] == job["securityContext"]["runAsUser"]
    assert f"--socket={job['containers'][0]['env'][0]['value']}" in agent["containers"][0]["command"]


# --- what they wire together ------------------------------------------------------------------------------------------


@in_namespaces
def test_pods_find_each_other_by_the_headless_service_and_take_turns(pods: Pods, log: Path):
    numbers = (2, 3, 4)
    pods.serve(*numbers)
    started = [pods.start(number, "cronjob.yaml", *pods.transfer("is short")) for number in numbers]
    wait_until(lambda: all(pod.ended() is not None for pod in started), "they do not end")
    assert [pod.ended() for pod in started] == [0, 0, 0], pods.said()
    assert len(visits(log)) == 3
    assert not overlaps(visits(log))


@in_namespaces
def test_a_pod_that_starts_later_is_found_by_those_that_wait(pods: Pods, log: Path):
    pods.serve(2)
    first = pods.start(2, "cronjob.yaml", *pods.transfer())
    wait_until(lambda: is_in(log), "the first does not begin")
    pods.serve(2, 3)
    second = pods.start(3, "cronjob.yaml", *pods.transfer("is short"))
    pods.serve(2, 3, 4)
    third = pods.start(4, "cronjob.yaml", *pods.transfer("is short"))
    may_end(log).touch()
    wait_until(lambda: None not in (first.ended(), second.ended(), third.ended()), "they do not end")
    assert len(visits(log)) == 3
    assert not overlaps(visits(log))


@in_namespaces
def test_a_pod_that_is_deleted_finishes_within_its_grace_period_and_then_the_next_comes_in(pods: Pods, log: Path):
    pods.serve(2, 3)
    first = pods.start(2, "cronjob.yaml", *pods.transfer("finishes"))
    wait_until(lambda: is_in(log), "the first does not begin")
    second = pods.start(3, "cronjob.yaml", *pods.transfer("is short"))
    grace_s = pod_spec("cronjob.yaml")["terminationGracePeriodSeconds"]
    assert first.delete(grace_s) == 0, "the transfer's own exit code"
    wait_until(lambda: second.ended() == 0, "the second does not get its turn")
    assert len(visits(log)) == 2, "the first was cut off"
    assert not overlaps(visits(log))


@in_namespaces
def test_a_pod_that_outlives_its_grace_period_is_killed_and_replaced(pods: Pods, log: Path):
    pods.serve(2, 3)
    first = pods.start(2, "cronjob.yaml", *pods.transfer("does not care"))
    wait_until(lambda: is_in(log), "the first does not begin")
    second = pods.start(3, "cronjob.yaml", *pods.transfer("is short"))
    assert first.delete(1.0) != 0
    pods.serve(3)
    wait_until(lambda: second.ended() == 0, "the second does not get its turn", RECOVERY_S)
    assert have_come(log) == 2


@in_namespaces
@pytest.mark.parametrize("who", ["another member", "a stranger"])
def test_the_address_of_a_pod_that_was_killed_is_used_again_at_once(pods: Pods, log: Path, who: str):
    pods.serve(2, 3, 4)
    first = pods.start(2, "cronjob.yaml", *pods.transfer())
    wait_until(lambda: is_in(log), "the first does not begin")
    second = pods.start(3, "cronjob.yaml", *pods.transfer("is short"))
    first.kill()
    if who == "another member":
        again = pods.start(2, "cronjob.yaml", *pods.transfer("is short"))
    else:  # of another group, with another key, at the very port
        other = pods.key.with_name("other.key")
        subprocess.run([sys.executable, "-m", "softmutex", "key", "new", str(other)], check=True, capture_output=True)
        again = pods.start(2, "cronjob.yaml", "true", SOFTMUTEX_KEY_FILE=str(other), SOFTMUTEX_GROUP="strangers")
    third = pods.start(4, "cronjob.yaml", *pods.transfer("is short"))
    wait_until(lambda: None not in (second.ended(), third.ended()), "they do not get their turns", 2 * RECOVERY_S)
    wait_until(lambda: again.ended() is not None, "the new pod does not end", 2 * RECOVERY_S)
    ends = second.ended(), third.ended(), again.ended()
    if who == "another member":
        assert ends == (0, 0, 0), pods.said()
        assert len(visits(log)) == 3
    else:  # who finds nobody but a stranger where a member is listed does not begin beside it in silence
        assert ends in {(0, this, that) for this in (0, 69) for that in (0, 69)}, pods.said()
        assert 69 not in ends or "is there and refuses this node" in str(pods.said())
        assert len(visits(log)) == 1 + (third.ended() == 0)
    assert not overlaps(visits(log))


@in_namespaces
def test_jobs_ask_the_agent_of_their_node_without_key_and_network(pods: Pods, log: Path, tmp_path: Path):
    (tmp_path / "run" / "transfers").mkdir(parents=True, mode=0o700)
    pods.serve(2, 3)
    agent = pods.start(2, "agent.yaml")
    socket = tmp_path / "run" / "transfers" / "agent.sock"
    wait_until(socket.exists, "the agent is not ready")
    outside = pods.start(3, "cronjob.yaml", *pods.transfer())
    wait_until(lambda: is_in(log), "the other member does not begin")
    jobs = [pods.start(5, "job.yaml", *pods.transfer("is short")) for _ in range(3)]
    may_end(log).touch()
    wait_until(lambda: all(job.ended() is not None for job in [*jobs, outside]), "they do not end")
    assert [job.ended() for job in [*jobs, outside]] == [0, 0, 0, 0], pods.said()
    assert len(visits(log)) == 4
    assert not overlaps(visits(log))
    assert agent.delete(pod_spec("agent.yaml")["terminationGracePeriodSeconds"]) == 0
