"""Which setting is in force, and who said so: keyword > environment > file > URL query > default.

The naive way, `os.environ.get` where a value is needed, turns a typing error into a default that nobody notices, and
two members of one group then differ. So every setting is declared once (`options.py`), an unknown one is an error that
names the nearest right one, and each value knows its origin (`softmutex doctor` prints them).

    resolve(transport="udp://0.0.0.0:9431?advertise=ftp1:9431")["advertise"]              -> "ftp1:9431"
    resolve(transport="udp://0.0.0.0:9431?advertise=ftp1:9431").origin("advertise")       -> "query of transport"

The file is the one that `SOFTMUTEX_CONFIG` names, else `softmutex.toml`, else the table `[tool.softmutex]` of
`pyproject.toml`, in the working directory, else `~/.config/softmutex/softmutex.toml`, else
`/etc/softmutex/softmutex.toml`: the first one that there is, and no other. One that is found counts where nobody else
can have written it (`softmutex.files`). Settings of one mutex only stand in a table `[mutex.NAME]`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from softmutex.core.errors import ConfigError
from softmutex.files import read_found, whose
from softmutex.runtime.options import PREFIX, SETTINGS, read_one, refuse_unknown

# Variables of ours that are no settings: what a child of `softmutex run` is told, where the file and the agent are.
NOT_SETTINGS = frozenset({"SOFTMUTEX_HELD", "SOFTMUTEX_EPOCH", "SOFTMUTEX_CONFIG", "SOFTMUTEX_AGENT"})
SAFE = "/:,[]@"  # stay readable in a query
# Schedulers that start jobs on many hosts, and what they set in each of them.
JOBS: Final = {"Slurm": "SLURM_JOB_ID", "HTCondor": "_CONDOR_JOB_AD", "Kubernetes": "KUBERNETES_SERVICE_HOST"}
FILE_MAX: Final = 1 << 20
SYSTEM_FILE: Final = Path("/etc/softmutex/softmutex.toml")


class Settings(Mapping[str, Any]):
    """The values in force. `origin(name)` tells who set one."""

    def __init__(
        self,
        values: dict[str, Any],
        origins: dict[str, str],
        mutexes: Mapping[str, Mapping[str, Any]],
        file: str | None,
    ) -> None:
        self._values = values
        self._origins = origins
        self._mutexes = mutexes
        self.file = file

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def origin(self, name: str) -> str:
        return self._origins[name]

    def given(self, name: str) -> bool:
        return self._origins[name] != "default"

    def for_mutex(self, mutex: str, keywords: Mapping[str, Any]) -> Settings:
        """These settings as they apply to one mutex: its keywords, then what was said to the node, then its table."""
        values, origins = dict(self._values), dict(self._origins)
        for name, raw in self._mutexes.get(mutex, {}).items():
            if origins[name].startswith(("file", "query", "default")):
                where = f"{self.file} [mutex.{mutex}]"
                values[name], origins[name] = read_one(SETTINGS[name], raw, where), f"file {where}"
        for name, raw in keywords.items():
            values[name], origins[name] = read_one(SETTINGS[name], raw, "keyword"), "keyword"
        return Settings(values, origins, {}, self.file)


# --- putting it together ---------------------------------------------------------------------------------------------


def resolve(
    keywords: Mapping[str, Any] | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    **more: Any,
) -> Settings:
    """All settings, each from the strongest who gave it. A keyword that is None counts as not given."""
    given = {**(keywords or {}), **more}
    for name in given:
        if name not in SETTINGS:
            refuse_unknown(name, SETTINGS, "keyword", "setting")
    environ = os.environ if environ is None else environ
    source, table = read_file(file, environ)
    mutexes = take_mutex_tables(table, source)
    # The weakest first: each later one overwrites. The queries come last to be read, since URLs are settings, too.
    values = {name: setting.default for name, setting in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, "default")
    layers: list[tuple[str, Iterable[tuple[str, Any]]]] = [
        (f"file {source}", flatten(table, source)),
        ("environment", from_environment(environ)),
        ("keyword", [(name, raw) for name, raw in given.items() if raw is not None]),
    ]
    for origin, items in layers:
        for name, raw in items:
            where = f"environment {SETTINGS[name].variable}" if origin == "environment" else origin
            values[name], origins[name] = read_one(SETTINGS[name], raw, where), where
    for role in ("transport", "membership"):
        if isinstance(values[role], str):
            values[role], in_query = split_query(values[role])
            for name, raw in in_query:
                if origins[name] == "default":
                    values[name] = read_one(SETTINGS[name], raw, f"query of {role}")
                    origins[name] = f"query of {role}"
    if values["membership"] is None:
        own_group = values["group"] != SETTINGS["group"].default
        values["membership"] = f"local://{values['group'] if own_group else ''}"
    return Settings(values, origins, mutexes, source)


def with_places(settings: Settings) -> Settings:
    """Fills in what follows from the rest where nothing was said: how the node reaches others, and they it. Here the
    membership is loaded, since it knows whether its members are all on this host."""
    values, origins = dict(settings), {name: settings.origin(name) for name in settings}
    if values["insecure"] and str(values["membership"]).startswith("registry+http:"):  # it was taken out of the query
        values["membership"] = add_to_query(values["membership"], "insecure", "yes")
    if values["transport"] is None:
        values["transport"] = "udp://127.0.0.1:0" if stays_on_this_host(values["membership"]) else "udp://0.0.0.0:0"
    if values["advertise"] is not None and isinstance(values["transport"], str):
        values["transport"] = add_to_query(values["transport"], "advertise", values["advertise"])
    return Settings(values, origins, settings._mutexes, settings.file)


def stays_on_this_host(membership: Any) -> bool:
    """Of a URL, or an instance. What cannot be loaded is told of when the node opens."""
    from softmutex import plugins  # and with it the adapter: a command that asks an agent does without
    from softmutex.ports import is_on_this_host

    try:
        return is_on_this_host(plugins.membership(membership))
    except ConfigError:
        return False


def add_to_query(url: str, name: str, value: str) -> str:
    base, _, query = url.partition("?")
    pairs = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != name]
    return f"{base}?{urlencode([*pairs, (name, value)], safe=SAFE)}"


def from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    known = {setting.variable: setting for setting in SETTINGS.values() if not setting.keyword_only}
    for variable, raw in environ.items():
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable not in known:
            refuse_unknown(variable, known, "environment", "variable")
        if raw:
            yield known[variable].name, raw


def split_query(url: str) -> tuple[str, list[tuple[str, str]]]:
    """Takes our own settings out of a URL's query; the rest is the adapter's."""
    base, mark, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    ours = [pair for pair in pairs if pair[0] in SETTINGS and SETTINGS[pair[0]].in_query]
    if not mark or not ours:
        return url, []
    rest = urlencode([pair for pair in pairs if pair not in ours], safe=SAFE)
    return f"{base}?{rest}" if rest else base, ours


def read_file(file: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> tuple[str | None, dict[str, Any]]:
    """The file that is in force, and its table. One that was named must be there; one that is looked for need not."""
    named = file or environ.get("SOFTMUTEX_CONFIG") or None
    if named is not None:
        return os.fspath(named), read_toml(Path(named), must_exist=True)
    for candidate in places_of_files(environ):
        table = read_toml(candidate, must_exist=False)
        if table:
            check_found(candidate)
            return str(candidate.resolve()), table
    return None, {}


def places_of_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where a file is looked for, in this order."""
    yield Path("softmutex.toml")
    yield Path("pyproject.toml")
    if own := environ.get("XDG_CONFIG_HOME") or (environ.get("HOME") and f"{environ['HOME']}/.config"):
        yield Path(own, "softmutex", "softmutex.toml")
    yield SYSTEM_FILE


def meets_nobody_else(settings: Settings) -> str:
    """Why it is strange that this node meets only this user's processes on this host; empty where it is not.

    The naive way, to believe whoever sets a key file and no membership, lets the members of three hosts run side by
    side, each alone, and end well.
    """
    if not str(settings["membership"]).startswith("local:"):
        return ""
    remedy = "Say who else is there: SOFTMUTEX_MEMBERSHIP=static://a.lab:9431,b.lab:9431 (softmutex init writes it)."
    only = f"{settings['membership']} is this user on this host, and nobody else"
    if settings.given("key_file") or settings.given("key"):
        return f"a group key is set, and {only}. {remedy}"
    scheduler = next((name for name, variable in JOBS.items() if os.environ.get(variable)), None)
    if scheduler is not None and not settings.given("membership"):
        return f"in a job of {scheduler}, {only}: jobs of other users or hosts do not wait for each other. {remedy}"
    return ""


def check_found(candidate: Path) -> None:
    """Who merely starts a program in a stranger's directory must not take part in a stranger's group."""
    file = candidate.resolve()
    if why := whose(candidate.absolute()) or whose(file):
        raise ConfigError(
            f"the configuration file {file} is not believed for lying here: {why}. If you trust what is in it, name "
            f"it: SOFTMUTEX_CONFIG={file}"
        )


def read_toml(file: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        found = file.read_bytes() if must_exist else read_found(file, FILE_MAX)
    except OSError as error:
        raise ConfigError(f"the configuration file {file} cannot be read ({error.strerror}).") from None
    in_project = file.name == "pyproject.toml"
    if found is None or (in_project and b"tool.softmutex" not in found):
        return {}
    if len(found) > FILE_MAX:
        raise ConfigError(f"the configuration file {file} has more than {FILE_MAX} bytes. Is it the right one?")
    import tomllib  # only where there is a file

    try:
        table = tomllib.loads(found.decode())
    except ValueError as error:  # TOMLDecodeError is one, and what is no UTF-8
        raise ConfigError(f"the configuration file {file} is not TOML: {error}.") from None
    except RecursionError:
        raise ConfigError(f"the configuration file {file} is not TOML: it is nested too deeply.") from None
    for name in ("tool", "softmutex") if in_project else ():
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"the configuration file {file}: {name!r} is no table. Write [tool.softmutex].")
    return table


def take_mutex_tables(table: dict[str, Any], source: str | None) -> dict[str, dict[str, Any]]:
    """Cuts the tables `[mutex.NAME]` out of the file, checked."""
    mutexes = table.pop("mutex", {})
    where = f"file {source}"
    if not isinstance(mutexes, dict) or not all(isinstance(each, dict) for each in mutexes.values()):
        raise ConfigError(f"{where}: 'mutex' wants tables, one a mutex: [mutex.NAME].")
    return {name: dict(flatten(each, f"{source} [mutex.{name}]", of_node=False)) for name, each in mutexes.items()}


def flatten(table: Mapping[str, Any], source: str | None, *, of_node: bool = True) -> Iterator[tuple[str, Any]]:
    """The settings of a table and of its inner table `timing`, by name. What is not one is an error."""
    timing = table.get("timing", {})
    if not isinstance(timing, dict):
        raise ConfigError(f"file {source}: 'timing' wants a table: [timing].")
    allowed = {name for name, each in SETTINGS.items() if not each.keyword_only and (of_node or each.of != "node")}
    dotted = [(f"timing.{name}", raw) for name, raw in timing.items()]
    for name, raw in [*dotted, *((name, raw) for name, raw in table.items() if name != "timing")]:
        if name not in allowed:
            refuse_unknown(name, allowed, f"file {source}", "setting")
        yield name, raw
