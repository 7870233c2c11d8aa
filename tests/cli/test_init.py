"""`softmutex init`: what it writes, and that hosts come together with it."""

from __future__ import annotations

import configparser
import os
import secrets
import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from softmutex.runtime.config import resolve
from softmutex.runtime.sealing import read_keys
from tests import prepared
from tests.cli.processes import eventually, started
from tests.faults.lan import lan

SOFTMUTEX = Path(sys.executable).with_name("softmutex")


def init(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [SOFTMUTEX, "init", "--directory", where, *words]
    done: subprocess.CompletedProcess[str] = prepared.run(command, capture_output=True, text=True, cwd=where.parent)
    return done


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "group"


def test_it_writes_what_each_host_needs(where: Path):
    assert init(where, "--hosts", "a.lab,b.lab,c.lab", "--group", "lab").returncode == 0
    for host in ("a.lab", "b.lab", "c.lab"):
        assert tomllib.loads((where / "hosts" / f"{host}.toml").read_text()) == {
            "transport": "udp://0.0.0.0:9431",
            "membership": "static://a.lab:9431,b.lab:9431,c.lab:9431",
            "key_file": "/etc/softmutex/group.key",
            "group": "lab",
        }
    assert len(read_keys(where / "group.key")) == 1
    assert stat.S_IMODE(where.stat().st_mode) == 0o700
    assert stat.S_IMODE((where / "group.key").stat().st_mode) == 0o600
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(where / "softmutex-agent.service")
    started_by = unit["Service"]["ExecStart"]
    program, _, rest = started_by.partition(" ")
    assert Path(program).parent == Path(sys.executable).parent and Path(program).samefile(sys.executable)
    assert rest == "-m softmutex agent --config /etc/softmutex/softmutex.toml"
    assert (where / "inventory.ini").read_text().split() == ["[softmutex]", "a.lab", "b.lab", "c.lab"]
    assert "$" not in (where / "README").read_text() + (where / "site.yml").read_text()


def test_a_second_key_never_divides_the_group(where: Path):
    assert init(where, "--hosts", "a,b").returncode == 0
    key = (where / "group.key").read_bytes()
    again = init(where, "--hosts", "a,b")
    assert (again.returncode, (where / "group.key").read_bytes()) == (64, key)
    assert "a second key would divide the group" in again.stderr


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["--hosts", "a"], "two hosts at least"),
        (["--hosts", "a,a"], "each once"),
        (["--hosts", "a,b=no"], "'no' is no address"),
        (["--hosts", "a b,c"], "no name of a host"),
        (["--hosts", "a,b", "--port", "0"], "from 1 to 65535"),
    ],
)
def test_hosts_that_cannot_be_are_refused(where: Path, said: list[str], why: str):
    refused = init(where, *said)
    assert refused.returncode == 64
    assert why in refused.stderr
    assert not where.exists() or not list(where.iterdir())


def test_certificates_are_for_names_and_addresses(where: Path):
    assert init(where, "--hosts", "a.lab=10.0.0.1,b.lab=fd00::2", "--https").returncode == 0
    made = where / "certificates"
    assert stat.S_IMODE((made / "a.lab.key").stat().st_mode) == 0o600
    for host, names in (("a.lab", ("a.lab", "10.0.0.1")), ("b.lab", ("b.lab", "fd00::2"))):
        for name in names:
            check = [f"-verify_{'ip' if name[-1].isdigit() else 'hostname'}", name]
            command = ["openssl", "verify", "-x509_strict", "-CAfile", made / "ca.pem", *check, made / f"{host}.pem"]
            if shutil.which("openssl"):
                subprocess.run(command, check=True, capture_output=True)
        ssl.create_default_context(cafile=made / "ca.pem").load_cert_chain(made / f"{host}.pem", made / f"{host}.key")
    settings = tomllib.loads((where / "hosts" / "b.lab.toml").read_text())
    assert settings["advertise"] == "https://[fd00::2]:9431"
    assert settings["membership"] == "static://10.0.0.1:9431,[fd00::2]:9431"
    assert settings["transport"].startswith("https://0.0.0.0:9431?cert=/etc/softmutex/host.pem&key=")


@pytest.mark.needs("root")
def test_the_script_installs_and_knows_its_hosts(where: Path, tmp_path: Path):
    assert init(where, "--hosts", "a.lab=10.0.0.1,b.lab=10.0.0.2", "--https").returncode == 0
    environ = {**os.environ, "DESTDIR": str(tmp_path / "root")}
    subprocess.run([where / "install", "b.lab"], env=environ, check=True)
    placed = tmp_path / "root" / "etc" / "softmutex"
    assert sorted(each.name for each in placed.iterdir()) == [
        "ca.pem", "group.key", "host.key", "host.pem", "softmutex.toml",
    ]  # fmt: skip
    assert stat.S_IMODE((placed / "group.key").stat().st_mode) == 0o600
    assert (placed / "host.pem").read_bytes() == (where / "certificates" / "b.lab.pem").read_bytes()
    other = subprocess.run([where / "install", "c.lab"], env=environ, capture_output=True, text=True)
    assert (other.returncode, "c.lab is none of" in other.stderr) == (64, True)


SYSTEMCTL = """#!/bin/sh
echo "$*" >> $WHERE/called
case "$1" in
    show) echo LoadState=loaded; echo ActiveState=$(cat $WHERE/active || echo inactive) ;;
    is-enabled) test -e $WHERE/enabled ;;
    enable) touch $WHERE/enabled ;;
    start|restart) echo active > $WHERE/active ;;
esac 2> $WHERE/errors
"""


@pytest.mark.slow
@pytest.mark.needs("netns", "recipes")
@pytest.mark.parametrize("with_systemd", [True, False])
def test_the_playbook_installs_what_the_script_does_and_a_second_run_changes_nothing(
    where: Path, tmp_path: Path, with_systemd: bool
):
    """By Ansible itself. The host has an /etc and a /run of its own, and a systemctl that notes what it is told."""
    assert init(where, "--hosts", "a.lab=10.0.0.1,b.lab=10.0.0.2", "--https").returncode == 0
    own, commands = tmp_path / "own", tmp_path / "bin"
    for path in (own / "etc/systemd/system", own / "run", commands):
        path.mkdir(parents=True)
    for name in ("passwd", "group", "nsswitch.conf"):
        shutil.copy(f"/etc/{name}", own / "etc" / name)
    if with_systemd:
        (own / "run/systemd/system").mkdir(parents=True)
    (commands / "systemctl").write_text(SYSTEMCTL.replace("$WHERE", str(commands)))
    (commands / "systemctl").chmod(0o755)
    environ = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": os.environ["RECIPES_DIR"],
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
    }
    mounts = " && ".join(f"mount --rbind {own / name} /{name}" for name in ("etc", "run"))
    play = f"{sys.executable} -m ansible playbook -i inventory.ini -c local --limit a.lab site.yml"
    command = ["unshare", "--mount", "sh", "-c", f"{mounts} && {play}"]
    recaps, called = [], []
    for _ in range(2 if with_systemd else 1):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=where, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        recaps.append(done.stdout)
        called.append((commands / "called").read_text() if with_systemd else "")
    if with_systemd:
        assert "changed=0 " in recaps[1], recaps[1]
        assert "enable softmutex-agent" in called[0] and "restart softmutex-agent" in called[0]
        assert "restart" not in called[1].removeprefix(called[0])

    root = tmp_path / "root"
    subprocess.run([where / "install", "a.lab"], env={**os.environ, "DESTDIR": str(root)}, check=True)
    assert files_in(own / "etc/softmutex") == files_in(root / "etc/softmutex")
    assert (own / "etc/systemd/system/softmutex-agent.service").exists() == with_systemd


def files_in(place: Path) -> dict[str, tuple[int, bytes]]:
    return {each.name: (stat.S_IMODE(each.stat().st_mode), each.read_bytes()) for each in place.iterdir()}


@pytest.mark.needs("netns")
@pytest.mark.parametrize("how", [[], ["--https"]], ids=["udp", "https"])
def test_three_hosts_take_turns_with_it(where: Path, tmp_path: Path, how: list[str]):
    """As the README of the directory says, but for the places of the files: these three hosts share one /etc."""
    hosts = [f"h{number}=10.77.0.{number}" for number in (1, 2, 3)]
    assert init(where, "--hosts", ",".join(hosts), *how).returncode == 0
    with lan(3, ipv6=False) as net:
        agents = []
        for number, prefix in enumerate(net.prefixes(), 1):
            root = tmp_path / f"root{number}"
            subprocess.run([where / "install", f"h{number}"], env={**os.environ, "DESTDIR": str(root)}, check=True)
            file = root / "etc" / "softmutex" / "softmutex.toml"
            file.write_text(file.read_text().replace("/etc/softmutex", str(file.parent)))
            environ = {**os.environ, "SOFTMUTEX_AGENT": str(root / "agent" / "socket")}
            agents.append((prefix, file, environ))
        running = [
            started(*prefix, SOFTMUTEX, "agent", "--config", file, env=environ, cwd="/")
            for prefix, file, environ in agents
        ]
        with running[0], running[1], running[2]:
            for prefix, file, environ in agents:
                environ["SOFTMUTEX_CONFIG"] = str(file)
                eventually(lambda environ=environ: Path(environ["SOFTMUTEX_AGENT"]).exists(), "no agent")
                command = [*prefix, SOFTMUTEX, "run", "-n", "nightly-ftp", "--timeout", "100s", "--", "echo", "mine"]
                done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd="/")
                assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
            if how:
                return  # without a default route a visitor does not know under which address it is answered
            prefix, file, environ = agents[1]
            command = [*prefix, SOFTMUTEX, "status", "--json"]

            def answering() -> int:
                shown = subprocess.run(command, env=environ, capture_output=True, text=True, cwd="/")
                return shown.stdout.count('"answers": true')

            eventually(lambda: answering() == 3, "all three answer")  # within a second, and one may stand still


def test_the_file_is_looked_for_in_the_users_and_the_systems_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path)}
    assert resolve(environ=environ).file != str(tmp_path / ".config" / "softmutex" / "softmutex.toml")
    file = tmp_path / ".config" / "softmutex" / "softmutex.toml"
    file.parent.mkdir(parents=True)
    file.write_text('group = "lab"\n')
    settings = resolve(environ=environ)
    assert (settings["group"], settings.file) == ("lab", str(file))
    (tmp_path / "softmutex.toml").write_text('group = "here"\n')
    assert resolve(environ=environ)["group"] == "here"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"SOFTMUTEX_KEY_FILE": "KEY"}, "a group key is set"),
        ({"SLURM_JOB_ID": "7"}, "in a job of Slurm"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "in a job of Kubernetes"),
    ],
)
def test_who_would_meet_nobody_is_told(tmp_path: Path, more: dict[str, str], why: str):
    prepared.run([SOFTMUTEX, "key", "new", tmp_path / "group.key"], check=True, capture_output=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith("SOFTMUTEX_")}
    group = f"init-{secrets.token_hex(8)}"  # others meet in the default one, and `tmp_path` has this name everywhere
    environ = {**own, "SOFTMUTEX_AGENT": "off", "SOFTMUTEX_GROUP": group}
    environ |= {name: value.replace("KEY", str(tmp_path / "group.key")) for name, value in more.items()}
    done = prepared.run(
        [SOFTMUTEX, "run", "-n", group, "--", "true"], env=environ, capture_output=True, text=True, cwd="/"
    )
    assert (done.returncode, why in done.stderr) == (0, True), done.stderr
    quiet = [SOFTMUTEX, "run", "-q", "-n", group, "--", "true"]
    assert prepared.run(quiet, env=environ, capture_output=True, text=True, cwd="/").stderr == ""
