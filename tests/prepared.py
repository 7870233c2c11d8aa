"""Our programs as processes of their own, without the 0.15 s of computing in which Python starts and imports them.

    this process -- one that has imported all that they need, and waits (`main` below)
                          `-- forks, and that forks: the program, which is this process's child when the middle one ends

What a test sees is a `subprocess.Popen`: descriptors, group, environment and directory are as it asked for, and the
program is what stands in the file. Whatever is asked for beyond that is started the usual way, and so is what tests of
starting itself use (`tests/cli/test_front.py`, `.ci/odd`).

The naive way, a fork of the process that runs the tests, has its threads, its descriptors and 160 megabytes.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from softmutex import plugins
from tests import leaks
from tests.network import CLONE_NEWNET

ROOT = Path(__file__).parent.parent
SOFTMUTEX = Path(sys.executable).with_name("softmutex")
PR_SET_CHILD_SUBREAPER = 36
HEAD = 4
MODULES = """
softmutex.cli.run softmutex.cli.supervise softmutex.cli.agent softmutex.cli.agent_command softmutex.cli.status
softmutex.cli.survey softmutex.agent.server softmutex.client softmutex.runtime.node softmutex.runtime.sealing
softmutex.runtime.keyfile softmutex.runtime.sessions softmutex.core.algorithms.wandering tests.leaks
softmutex_adapters.memberships.local softmutex_adapters.memberships.static softmutex_adapters.transports.udp
csv email.message encodings.idna concurrent.futures.thread pkgutil pwd zipfile
""".split()  # noqa: SIM905
# What one command alone needs is imported when that is asked for first.
MODULES_OF = {
    "registry": ["softmutex_adapters.registry.command", "softmutex_adapters.registry.sqlite_store", "uvloop"],
    "doctor": ["softmutex.cli.doctor"],
    "init": ["softmutex.cli.init"],
    "identity": ["softmutex_adapters.registry.identity_command"],
    "ban": ["softmutex_adapters.registry.ban_command"],
    "redis": ["softmutex_adapters.memberships.redis", "redis.asyncio"],
    "etcd": ["softmutex_adapters.memberships.etcd", "aiohttp"],
    "registry+http": ["softmutex_adapters.memberships.registry", "aiohttp"],
}
IS_POSSIBLE = sys.platform.startswith("linux")
OF_US = (
    "SOFTMUTEX_",
    "PYTEST_CURRENT_TEST",
)  # variables that are read when they are needed; others, when Python starts
HARMLESS = {"HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"}


class Preparation:
    """The process that waits, of this one."""

    def __init__(self) -> None:
        ours, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.prepared", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                process_group=0,
            )
        ours.settimeout(100.0)
        self._control = ours
        self._lock = Lock()
        atexit.register(self._end, os.getpid())
        leaks.SPARED.add(f"child process {self._process.pid}")
        leaks.SPARED.add(leaks.descriptor(ours.fileno()))

    def _end(self, of: int) -> None:
        """So that its computing counts as ours (`tests/costs.py`)."""
        if os.getpid() == of:
            self._control.close()
            self._process.wait(20)

    def start(self, order: dict[str, Any], descriptors: Sequence[int]) -> int:
        """The process id of a child of ours."""
        text = json.dumps(order).encode()
        prctl = ctypes.CDLL(None).prctl
        with self._lock:
            prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._control, [len(text).to_bytes(HEAD)], list(descriptors))
                self._control.sendall(text)
                pid = int.from_bytes(exactly(self._control, HEAD))
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not pid:
            raise OSError("the prepared process could not fork")
        return pid


PREPARATIONS: dict[int, Preparation] = {}  # by process: what a fork inherits is not its own


ONE_AT_A_TIME = Lock()  # two, and one ends the adoption of orphans while the other waits for its own


def preparation() -> Preparation:
    with ONE_AT_A_TIME:
        if os.getpid() not in PREPARATIONS:
            PREPARATIONS[os.getpid()] = Preparation()
        return PREPARATIONS[os.getpid()]


class Popen(subprocess.Popen[Any]):
    """Of `softmutex ...`, `python FILE ...` or `python -c CODE ...`; of anything else as ever."""

    def _execute_child(self, *arguments: Any) -> None:
        start = super()._execute_child  # type: ignore[misc]
        names = start.__code__.co_varnames[1 : start.__code__.co_argcount]
        given = dict(zip(names, arguments, strict=True))
        words = [os.fspath(word) for word in given["args"]] if not isinstance(given["args"], str | bytes) else []
        within = words[3] if words[:3] == IN_A_NAMESPACE and len(words) > 4 else ""
        words = words[4:] if within else words
        program = words[1:] if words[:1] == [sys.executable] else words
        ends = [(given["p2cread"], 0), (given["c2pwrite"], 1), (given["errwrite"], 2)]
        streams = [end if end >= 0 else usual for end, usual in ends]
        if not is_simple(program, given) or not all(map(is_open, streams)) or network() != HOME_NETWORK:
            start(*arguments)
            return
        order = {
            "words": program,
            "network": f"/run/netns/{within}" if within else "",
            "where": os.fspath(given["cwd"]) if given["cwd"] is not None else os.getcwd(),
            "environ": dict(os.environ if given["env"] is None else given["env"]),
            "group": given["process_group"],
            "session": given["start_new_session"],
        }
        try:
            self.pid = preparation().start(order, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*(given[name] for name in PIPES))  # type: ignore[attr-defined]


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def network() -> str:
    """In which this thread is (`tests/network.py`)."""
    return os.readlink("/proc/thread-self/ns/net") if IS_POSSIBLE else ""


HOME_NETWORK = network()


IN_A_NAMESPACE = ["ip", "netns", "exec"]
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
UNUSUAL = ("executable", "preexec_fn", "pass_fds", "startupinfo", "shell", "gid", "gids", "uid")


def is_simple(program: Sequence[str], given: Mapping[str, Any]) -> bool:
    if not IS_POSSIBLE or not {*PIPES, *UNUSUAL, "cwd", "env", "umask", "process_group"} <= given.keys():
        return False
    if not program or not (is_code(program) or (Path(program[0]).is_absolute() and is_ours(program[0]))):
        return False
    environ = os.environ if given["env"] is None else given["env"]
    differ = {name for name in {*environ, *os.environ} if environ.get(name) != os.environ.get(name)}
    differ -= {"PYTHONPATH"} if environ.get("PYTHONPATH") == str(ROOT) else set()
    if any(not (name.startswith(OF_US) or name in HARMLESS) for name in differ):
        return False
    return given["close_fds"] and given["umask"] == -1 and not any(given[name] for name in UNUSUAL)


def is_code(program: Sequence[str]) -> bool:
    return program[0] == "-c" and len(program) > 1


def is_ours(file: str) -> bool:
    return file == str(SOFTMUTEX) or file.endswith(".py")


def run(
    words: Sequence[Any], *, timeout: float = 100.0, check: bool = False, input: str | None = None, **options: Any
) -> Any:
    """As `subprocess.run`."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


# --- the process that waits ------------------------------------------------------------------------------------------


def import_all(names: Iterable[str]) -> None:
    for name in names:
        with suppress(ImportError):  # it has another name by now: then whoever needs it imports it
            import_module(name)


def exactly(control: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        chunk = control.recv(size - len(text))
        if not chunk:
            raise EOFError
        text += chunk
    return text


def which(words: Sequence[str]) -> str:
    """The command; of code, the scheme of the URL that it is given."""
    return " ".join(words[2:3]).partition(":")[0] if is_code(words) else " ".join(words[1:2])


def wait_for_orders(control: socket.socket) -> dict[str, Any] | None:
    """Returns an order in the process that follows it; None where there are no more."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(control, HEAD, 3)
        if not head:
            return None
        size = int.from_bytes(head + exactly(control, HEAD - len(head)))
        order: dict[str, Any] = json.loads(exactly(control, size))
        import_all(MODULES_OF.get(which(order["words"]), []))
        said, says = os.pipe()
        middle = os.fork()
        if middle == 0:
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == middle:
                time.sleep(0.0002)
            take_its_place(order)
            os.write(says, array.array("i", [os.getpid()]).tobytes())  # who started it may signal its group now
            become(order, descriptors)
            return order
        os.close(says)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(middle, 0)
        number = array.array("i", os.read(said, array.array("i").itemsize) or array.array("i", [0]).tobytes())[0]
        os.close(said)
        control.sendall(number.to_bytes(HEAD))


def take_its_place(order: Mapping[str, Any]) -> None:
    """The session or group that it was ordered to be in; else that of whoever ordered it."""
    if order["session"]:
        os.setsid()
    elif order["group"] >= 0:
        os.setpgid(0, order["group"])
    else:
        os.setpgid(0, os.getpgid(os.getppid()))


def become(order: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if order["network"]:
        network_file = os.open(order["network"], os.O_RDONLY)
        if ctypes.CDLL(None).setns(network_file, CLONE_NEWNET) != 0:
            os._exit(126)
        os.close(network_file)
    os.chdir(order["where"])
    os.environ.clear()
    os.environ.update(order["environ"])
    for place, name in enumerate(("stdin", "stdout", "stderr")):
        was = getattr(sys, name)
        new = open(place, "w" if place else "r", encoding=was.encoding, errors=was.errors, closefd=False)  # noqa: SIM115
        new.reconfigure(line_buffering=place == 2 or new.isatty(), write_through=was.write_through)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def main() -> None:
    import_all(MODULES)
    for role in plugins.Role:
        plugins.installed(role)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        order = wait_for_orders(control)
        if order is not None:
            control.detach()
    if order is not None:
        sys.argv = list(order["words"])
        if is_code(sys.argv):
            code = sys.argv.pop(1)
            exec(code, {"__name__": "__main__", "__builtins__": __builtins__})
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
