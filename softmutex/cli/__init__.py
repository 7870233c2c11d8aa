"""The command `softmutex`: finds the sub-command, and imports only that one, so that `softmutex run` starts fast.

A sub-command is a module with two functions, named in `COMMANDS` with the line that the help shows of it:

    add_arguments(parser)      what it understands
    main(arguments) -> int     does it, and says with which code to end

Whatever goes wrong ends in one line on stderr and a code of sysexits.h, never in a stack trace:

    64  usage: an unknown command, flag or name, an impossible setting (`ConfigError`)
    65  data: a file that is not what it should be (the sub-command says so)
    130 interrupted, 141 nobody reads what is written, as shells have it
"""

from __future__ import annotations

try:
    import argparse
    import gc
    import os
    import re
    import sys
    from collections.abc import Sequence
    from functools import partial
    from importlib import import_module
    from typing import Any, NoReturn
except KeyboardInterrupt:  # before `main` is there to say so
    raise SystemExit(130) from None

USAGE, DATA, INTERRUPTED, BROKEN_PIPE = 64, 65, 130, 141

SELDOM = 50_000  # what is imported is no garbage: to look for some each 700 objects takes a tenth of a start

# Its words stay English: `_nearest` reads them, and to look for others is to import `locale`.
argparse._ = str  # type: ignore[attr-defined]
# Argparse makes one for each flag; without a width that imports `shutil`, and with it what unpacks archives.
OF_A_WIDTH = partial(argparse.HelpFormatter, width=80)

BY_ENTRY_POINT = "softmutex.commands"  # the group in which an adapter registers its module, under the command's name

# name -> (module, what it does)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("softmutex.cli.run", "run a command while holding the mutex"),
    "lead": ("softmutex.cli.lead", "run a command on one member of the group, elsewhere when that one dies"),
    "agent": ("softmutex.cli.agent_command", "one node for all jobs of a user on this host, over a Unix socket"),
    "status": ("softmutex.cli.status", "who is there, where the token is, who waits, and for how long"),
    "evict": ("softmutex.cli.evict", "take a mutex from a holder that hangs"),
    "forget": ("softmutex.cli.forget", "say that a member which is silent is gone for good"),
    "history": ("softmutex.cli.history", "who held it lately, for how long, and what went wrong"),
    "demo": (BY_ENTRY_POINT, "the FTP throttler on this machine: with and without, a table and a picture"),
    "registry": (BY_ENTRY_POINT, "the central registry, at which members of many hosts meet"),
    "ban": (BY_ENTRY_POINT, "shut a member out, at the registry"),
    "identity": (BY_ENTRY_POINT, "enrol members at the registry, which certifies them from then on"),
    "init": ("softmutex.cli.init", "all that a group of hosts needs: key, settings, service, certificates"),
    "key": ("softmutex.cli.key", "make the group's key, and change it while everybody works"),
    "slurm": (BY_ENTRY_POINT, "jobs of Slurm that wait in the queue for their turn: release, queue, lua, unit"),
    "sim": ("softmutex.cli.sim", "the simulator: run, reproduce, compare, replay, check"),
    "bench": ("softmutex.cli.bench", "measure this machine: latency, hand-overs, messages, memory"),
    "doctor": ("softmutex.cli.doctor", "can members reach each other, do clocks and settings agree, is a key set"),
}


class Mistake(Exception):
    """The command line is not one that can be followed."""


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, with the nearest right name, where argparse prints its usage and ends with 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": OF_A_WIDTH, **options})

    def format_help(self) -> str:
        """As wide as the terminal."""
        if self.formatter_class is OF_A_WIDTH:
            self.formatter_class = argparse.HelpFormatter
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        what = _nearest(self, message)
        raise Mistake(f"{self.prog}: {what}{'' if what.endswith('?') else '.'} See {self.prog} --help")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Here, and not where it all comes together: the sub-command knows its own flags best."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, []


def _nearest(parser: argparse.ArgumentParser, message: str) -> str:
    """Argparse's own words, made plain, and with what was probably meant."""
    if unknown := re.match(r"unrecognized arguments: (\S+)", message):
        word = unknown[1].partition("=")[0]
        known = [flag for flag in parser._option_string_actions if flag.startswith("--")]
        what = f"there is no flag {word!r} here" if word.startswith("-") else f"{word!r} is one word too many"
        return what + did_you_mean(word, known)
    if choice := re.match(r"argument (\S+): invalid choice: '?([^' ]*)'? \(choose from (.*)\)", message):
        where, word, known = choice[1], choice[2], re.findall(r"[\w-]+", choice[3])
        what = f"there is no {word!r} here (there are {', '.join(known)})" + did_you_mean(word, known)
        return f"{where}: {what}" if where.startswith("-") else what
    return message


def did_you_mean(word: str, known: Sequence[str]) -> str:
    import difflib  # slow to import

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def main(argv: Sequence[str] | None = None) -> int:
    if argv is not None:
        return _run(argv)
    gc.set_threshold(SELDOM, 10, 10)  # it is the whole process
    try:
        return _run(sys.argv[1:])
    finally:
        gc.freeze()  # so that nobody looks for garbage while the interpreter ends


def _run(words: Sequence[str]) -> int:
    try:
        return _dispatch(list(words))
    except Mistake as mistake:
        return complain(str(mistake), USAGE)
    except KeyboardInterrupt:
        return complain("softmutex: interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the interpreter's own flush is silent
        return BROKEN_PIPE


def _dispatch(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        sys.stdout.write(_overview())
        return 0
    if name == "--version":
        from importlib.metadata import version  # slow to import

        sys.stdout.write(f"softmutex {version('softmutex')}\n")
        return 0
    if name not in COMMANDS:
        what = f"there is no command {name!r} (there are {', '.join(COMMANDS)})" + did_you_mean(name, list(COMMANDS))
        raise Mistake(f"softmutex: {what}")
    module_name, description = COMMANDS[name]
    from softmutex.core.errors import ConfigError

    module = _registered(name) if module_name == BY_ENTRY_POINT else import_module(module_name)
    parser = Parser(prog=f"softmutex {name}", description=f"{description[0].upper()}{description[1:]}.")
    module.add_arguments(parser)
    try:
        return int(module.main(parser.parse_args(words[1:])))
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except ConfigError as error:
        return complain(f"softmutex {name}: {error}", USAGE)


def _registered(name: str) -> Any:
    from softmutex.entries import entries

    found = entries(BY_ENTRY_POINT).get(name)
    if found is None:
        raise Mistake(f"softmutex: the command {name!r} is not installed. Install softmutex again, whole")
    return found.load()


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {description}" for name, (_, description) in COMMANDS.items()]
    return "\n".join(
        ["usage: softmutex COMMAND ...", "", *lines, "", "softmutex COMMAND --help says more; --version", ""]
    )


def complain(what: str, code: int) -> int:
    """One line on stderr, whatever is in it."""
    from softmutex.core.names import printable

    sys.stderr.write(printable(" ".join(what.split())) + "\n")
    return code
