"""Pods on one machine: each is a network namespace and a process namespace, wired as examples/kubernetes says.

    10.77.0.1 the cluster's name server        10.77.0.2, .3, ... pods; their resolv.conf is as the kubelet writes it

What runs in a pod is PID 1 there, with the command and the environment of the manifest. It is ended as by the kubelet:
SIGTERM to PID 1, SIGKILL to all of it when the grace period is over.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.faults.lan import Lan, lan
from tests.schedulers.contract import ROOT, may_end, wait_until

MANIFESTS = ROOT / "examples" / "kubernetes"
RESOLV_CONF = """\
search transfers.svc.cluster.local svc.cluster.local cluster.local
nameserver 10.77.0.1
options ndots:5
"""


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def pod_spec(name: str) -> dict[str, Any]:
    (manifest,) = manifests(name)
    spec = manifest["spec"].get("jobTemplate", manifest)["spec"]
    pod: dict[str, Any] = spec["template"]["spec"]
    return pod


class Pod:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process  # unshare, whose child is PID 1 of the pod

    @property
    def first(self) -> int:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        wait_until(lambda: children.read_text().split(), "the pod does not start")
        return int(children.read_text().split()[0])

    def ended(self) -> int | None:
        return self._process.poll()

    def delete(self, grace_s: float) -> int:
        """As `kubectl delete pod`; the exit code of PID 1."""
        os.kill(self.first, signal.SIGTERM)
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """At once, as where its node loses power: with PID 1 ends all that is in the pod."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.first, signal.SIGKILL)
        return self._process.wait(100)


class Pods:
    def __init__(self, net: Lan, here: Path, log: Path) -> None:
        self._net, self._here, self._log = net, here, log
        self._addresses = here / "addresses"
        self._started: list[Pod] = []
        self.key = here / "group.key"

    def set_up(self) -> None:
        subprocess.run(
            [sys.executable, "-m", "softmutex", "key", "new", str(self.key)], check=True, capture_output=True
        )
        self._addresses.write_text("")
        for number in range(1, 6):
            place = Path("/etc/netns", self._net.host(number))
            place.mkdir(parents=True, exist_ok=True)
            (place / "resolv.conf").write_text(RESOLV_CONF)
        (config,) = (each for each in manifests("group.yaml") if each["kind"] == "ConfigMap")
        self._config: dict[str, str] = config["data"]
        name = self._config["SOFTMUTEX_MEMBERSHIP"].removeprefix("dns://").partition(":")[0]
        command = [sys.executable, "-m", "tests.schedulers.cluster_dns", "10.77.0.1", name, str(self._addresses)]
        self._dns = subprocess.Popen([*self._net.prefix(1), *command], cwd=ROOT)

    def tear_down(self) -> None:
        for pod in self._started:
            pod.kill()
        self._dns.kill()
        self._dns.wait()
        for number in range(1, 6):
            shutil.rmtree(Path("/etc/netns", self._net.host(number)), ignore_errors=True)

    def serve(self, *numbers: int) -> None:
        """The endpoints of the headless service."""
        self._addresses.write_text(" ".join(f"10.77.0.{number}" for number in numbers))

    def environ(self, number: int, spec: Mapping[str, Any]) -> dict[str, str]:
        (container,) = spec["containers"]
        known = {"POD_IP": f"10.77.0.{number}"}
        found = dict(self._config) if "envFrom" in container else {}
        for each in container.get("env", []):
            value = each.get("value", known.get(each["name"], ""))
            found[each["name"]] = value.replace("$(POD_IP)", known["POD_IP"])
        if "SOFTMUTEX_KEY_FILE" in found:
            found["SOFTMUTEX_KEY_FILE"] = str(self.key)
        bare = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/root"}
        return {**bare, "SOFTMUTEX_AGENT": "off", **found}

    def start(self, number: int, manifest: str, *does: str, **more: str) -> Pod:
        """The pod of that manifest, at that address; `does` stands for what the image would do."""
        spec = pod_spec(manifest)
        (container,) = spec["containers"]
        command: list[str] = container["command"]
        if "--" in command:
            command = [*command[: command.index("--") + 1], *does]
        command = [word.replace("/run/softmutex", f"{self._here}/run") for word in command]
        environ = {**self.environ(number, spec), **more}
        environ = {name: value.replace("/run/softmutex/", f"{self._here}/run/") for name, value in environ.items()}
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command]
        with (self._here / "said").open("ab") as out:
            process = subprocess.Popen([*self._net.prefix(number), *inside], cwd=ROOT, env=environ, stderr=out)
        pod = Pod(process)
        self._started.append(pod)
        return pod

    def transfer(self, how: str = "ends at once") -> list[str]:
        code = f"from tests.schedulers.pods import on_sigterm; on_sigterm({str(self._log)!r}, {how!r})"
        return [sys.executable, "-c", code]

    def said(self) -> str:
        return (self._here / "said").read_text()


def on_sigterm(log: str, how: str) -> None:
    """A transfer until somebody lets it end: on SIGTERM it finishes what it is at, or does not care."""
    told = False

    def tell(number: int, frame: object) -> None:
        nonlocal told
        told = how == "finishes"

    signal.signal(signal.SIGTERM, tell)
    begin = time.monotonic()
    with Path(log).open("a") as file:
        file.write(f"in {begin}\n")
    while not told and how != "is short" and not may_end(log).exists():
        time.sleep(0.02)
    time.sleep(0.3 if told else 0.05)
    with Path(log).open("a") as file:
        file.write(f"out {begin} {time.monotonic()}\n")


@contextmanager
def cluster(here: Path, log: Path) -> Iterator[Pods]:
    with lan(5, ipv6=False) as net:
        pods = Pods(net, here, log)
        try:
            pods.set_up()
            yield pods
        finally:
            pods.tear_down()
