"""`softmutex run -n NAME -- COMMAND ...`: what cron, timers, shell scripts and batch jobs put before a command.

    softmutex run -n nightly-ftp --timeout 2h -- rsync -a /data backup:

The exit code is the command's own. Otherwise:

    64   usage: a flag, a name, a setting that cannot be; or NAME is held by this very command's ancestors
    69   the node could not start (the port is in use, all members refuse its key, ...)
    75   not acquired: not in time, or in use with --on-busy fail
    126  COMMAND is there but cannot be executed        127  there is no such command; both are found out first
    128+n  killed by signal n, the command or the waiting. Of SIGINT `softmutex run` dies itself, as shells want it.

The command is executed without a shell, in a process group of its own. What is signalled to `softmutex run` reaches all
of that group, SIGKILL too; nothing of the group is left running after a signal. SOFTMUTEX_HELD names the mutexes that
the command holds (by spaces), SOFTMUTEX_EPOCH the generation of the last one's token. Where the hold is traced
(`cli/tracing.py`), TRACEPARENT is its span, below the one that TRACEPARENT named.

Where an agent of this user or of this host is there (`softmutex agent`), in the group that is wanted, it is asked.
Else, or with --no-agent, the command has a node of its own. What the flags, the environment or the file say of the
group counts; where they say nothing, the agent's group is the one.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from softmutex.agent import place, traced
from softmutex.cli import Mistake, command, supervise
from softmutex.cli.settings import add_mutex_flags, add_node_flags, group_settings, mutex_keywords
from softmutex.core.errors import ConfigError
from softmutex.core.names import check_name, printable
from softmutex.runtime.options import BY_JOB, SETTINGS, read_one

AS_THE_LIBRARY_SAYS = {"warn": "continue", "term": "cancel"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "softmutex run -n NAME [flags] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("-n", "--name", required=True, help="the mutex: the same name on all hosts of the group")
    parser.add_argument("--timeout", metavar="2h", help="how long to wait for it; for ever where not given")
    parser.add_argument("--on-busy", choices=("wait", "fail"), default="wait", help="fail: do not wait at all")
    parser.add_argument("--on-lost", choices=("warn", "term"), help="when others may hold it, too; warn by default")
    parser.add_argument("--on-overrun", choices=("warn", "term", "release"), help="after --max-hold; warn by default")
    parser.add_argument("--grace", metavar="10s", default="10s", help="between SIGTERM and SIGKILL")
    parser.add_argument("--no-agent", action="store_true", help="have a node of its own, also where an agent is there")
    parser.add_argument("--wait-progress", action="store_true", help="on a terminal: show who is in the way")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but why the command did not run")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what happens")
    add_mutex_flags(parser)
    add_node_flags(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")


def main(arguments: argparse.Namespace) -> int:
    plug_standard_descriptors()
    argv = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not argv:
        raise Mistake("softmutex run: there is no command. Write it behind '--': softmutex run -n NAME -- rsync -a ...")
    name = check_name(arguments.name)
    node, keywords = group_settings(arguments), mutex_keywords(arguments, timeout=arguments.timeout)
    mutex = node.for_mutex(name, keywords)
    grace_s = read_one(SETTINGS["leave_timeout"], arguments.grace, "--grace")
    held = os.environ.get("SOFTMUTEX_HELD", "").split()
    if name in held and mutex["slots"] == 1:
        raise ConfigError(
            f"{name} is held already by what this command was started from (SOFTMUTEX_HELD={' '.join(held)}), so it "
            "would wait for itself. If that hold is over or another one's: unset SOFTMUTEX_HELD."
        )

    def environ(epoch: int, trace: Mapping[str, str]) -> Mapping[str, str]:
        ours = {"SOFTMUTEX_HELD": " ".join([*held, name]), "SOFTMUTEX_EPOCH": str(epoch)}
        return {**os.environ, **ours, **traced.for_environment(trace)}

    say = speaker(name)
    try:
        file = command.find(argv[0])
    except command.CannotRun as error:
        say(str(error))
        return error.code
    job = supervise.Job(
        argv,
        file,
        environ,
        end_when_lost=AS_THE_LIBRARY_SAYS.get(arguments.on_lost, mutex["on_lost"]) == "cancel",
        grace_s=grace_s,
        say=say,
        warn=silent if arguments.quiet else say,
        whisper=say if arguments.verbose else silent,
        show=shower(name),
    )
    timeout_s = 0.0 if arguments.on_busy == "fail" else mutex["timeout"]
    on_overrun = {"warn": "warn", "term": "cancel"}.get(
        arguments.on_overrun, arguments.on_overrun or mutex["on_overrun"]
    )
    purpose = os.path.basename(argv[0])[:64] if mutex["purpose"] is None else mutex["purpose"]
    progress = arguments.wait_progress and sys.stderr.isatty()
    give_up_at, since_s = time.monotonic() + (timeout_s or 0), time.time()

    def left_s() -> float | None:
        return max(0.001, give_up_at - time.monotonic()) if timeout_s else timeout_s

    def serve(link: supervise.Socket) -> None:
        from softmutex.cli.lazily import load_on_use  # after the fork: the front itself needs none of it

        load_on_use()
        from softmutex.agent.session import JobWish
        from softmutex.cli import agent

        trace = traced.of_environment(os.environ)
        wish = JobWish(name, keywords, left_s(), timeout_s, on_overrun, trace, purpose=purpose, progress=progress)
        agent.serve(link, wish, node, "ERROR" if arguments.quiet else "INFO" if arguments.verbose else "WARNING")

    told: dict[str, Exception] = {}  # it is called again and again, after an agent that was killed

    def call() -> supervise.Socket | None:
        alone = arguments.no_agent or has_own_place(arguments)
        paths = [] if alone else place.paths_of()
        if not paths:
            return None
        options = {key: mutex[key] for key in sorted(BY_JOB) if mutex.given(key)}
        where = {key: node[key] for key in ("group", "membership") if node.given(key)}
        want = {"name": name, "timeout": left_s(), "said": timeout_s, "on_overrun": on_overrun, "options": options}
        want |= {"since": since_s, "place": where, "trace": traced.of_environment(os.environ)}
        want |= {"purpose": purpose, "progress": progress}
        try:
            return place.call_any(paths, want)
        except (place.NoAgent, place.Elsewhere) as error:
            if any(map(os.path.exists, paths)) and str(error) not in told:
                told[str(error)] = error
                job.whisper(f"{error}; joining alone")
            return None

    return supervise.run(job, serve, call, lambda: may_come_back(arguments, timeout_s, told.values())).die()


def may_come_back(arguments: argparse.Namespace, timeout_s: float | None, said: Iterable[Exception]) -> bool:
    """Whether it is worth it to wait for an agent: for who waits for long anyway, where none serves another group."""
    if any(isinstance(error, place.Elsewhere) for error in said):
        return False
    alone = arguments.no_agent or has_own_place(arguments)
    is_patient = timeout_s is None or timeout_s > supervise.CALL_PATIENCE_S
    return is_patient and not alone and place.was_there_lately(place.paths_of())


def has_own_place(arguments: argparse.Namespace) -> bool:
    """Whether a node is described that only a node of its own can be."""
    return any((arguments.transport, arguments.advertise, arguments.node_name, arguments.key_file, arguments.insecure))


def speaker(name: str) -> Callable[[str], None]:
    def say(text: str) -> None:
        try:
            sys.stderr.write(printable(f"softmutex: {name}: {text}") + "\n")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):  # nobody listens
            pass

    return say


def shower(name: str) -> Callable[[str], None]:
    """On the last line of the terminal, which the next text takes away again."""

    def show(text: str) -> None:
        import shutil  # slow to import, and few have a terminal

        with suppress(OSError, ValueError, AttributeError):
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\x1b[K" + printable(f"softmutex: {name}: {text}" if text else "")[:width])
            sys.stderr.flush()

    return show


def silent(text: str) -> None:
    """For those who do not want to know."""


def plug_standard_descriptors() -> None:
    """A closed standard descriptor would be given to the next file that is opened, and the command would use that."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
