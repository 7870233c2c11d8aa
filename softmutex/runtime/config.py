"""Which setting is in force, and who said so: keyword > environment > file > URL query > default.

The naive way, `os.environ.get` where a value is needed, turns a typing error into a default that nobody notices, and
two members of one group then differ. So every setting is declared here once, an unknown one is an error that names the
nearest right one, and each value knows its origin (`softmutex doctor` prints them).

    resolve(transport="udp://0.0.0.0:9431?advertise=ftp1:9431")["advertise"]              -> "ftp1:9431"
    resolve(transport="udp://0.0.0.0:9431?advertise=ftp1:9431").origin("advertise")       -> "query of transport"

The file is the one that `SOFTMUTEX_CONFIG` names, else `softmutex.toml`, else the table `[tool.softmutex]` of
`pyproject.toml`, in the working directory; one that is found there counts where nobody else can have written it
(`softmutex.files`). Settings of one mutex only stand in a table `[mutex.NAME]`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode

from softmutex.core.errors import ConfigError
from softmutex.files import whose
from softmutex.urls import without_secrets

PREFIX = "SOFTMUTEX_"
# Variables of ours that are no settings: what a child of `softmutex run` is told, where the file and the agent are.
NOT_SETTINGS = frozenset({"SOFTMUTEX_HELD", "SOFTMUTEX_EPOCH", "SOFTMUTEX_CONFIG", "SOFTMUTEX_AGENT"})
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
SAFE = "/:,[]@"  # stay readable in a query
PART = r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)\s*"  # of a duration: a number and its unit
UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


# --- what a value may look like --------------------------------------------------------------------------------------


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("wants a text that is not empty")
    return value


def duration_s(value: Any) -> float:
    """Seconds: a number, or a text with units: `90`, `1.5`, `500ms`, `30s`, `10m`, `2h`, `1h30m`, `1d`."""
    if isinstance(value, str):
        parts = re.findall(PART, value)
        alone = len(parts) == 1
        if not re.fullmatch(rf"({PART})+", value) or not all(
            unit in UNITS_S or (alone and not unit) for _, unit in parts
        ):
            raise ValueError("wants seconds, or numbers with the units ms, s, m, h, d: 90, 30m, 1h30m")
        value = sum(float(number) * UNITS_S[unit or "s"] for number, unit in parts)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError("wants a number of seconds between 0 and 1e9")
    return float(value)


def duration_or_none_s(value: Any) -> float | None:
    """As `duration_s`; None or the word `none` where there is no limit."""
    return None if value is None or (isinstance(value, str) and value.lower() == "none") else duration_s(value)


def count(value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = 0
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 1_000_000:
        raise ValueError("wants a whole number from 1 to 1,000,000")
    return number


def flag(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in TRUE_WORDS | FALSE_WORDS:
        return value.lower() in TRUE_WORDS
    if not isinstance(value, bool):
        raise ValueError("wants true or false")
    return value


def adapter(value: Any) -> Any:
    """A URL, or an instance."""
    return text(value) if isinstance(value, str) else value


def names(value: Any) -> tuple[Any, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else tuple(value)


def key(value: Any) -> Any:
    """Bytes of the key itself, or the path of a file that holds it."""
    if isinstance(value, str | os.PathLike):
        return Path(value).expanduser()
    if not isinstance(value, bytes | bytearray):
        raise ValueError("wants the key as bytes, or the path of a file that holds it")
    return bytes(value)


def path(value: Any) -> Path:
    return Path(text(os.fspath(value))).expanduser()


def choice(*allowed: str, or_callable: bool = False) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if (or_callable and callable(value)) or (isinstance(value, str) and value in allowed):
            return value
        raise ValueError(f"wants {' or '.join(allowed)}{' or a function' if or_callable else ''}")

    return read


# --- what can be set -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    read: Callable[[Any], Any]
    default: Any
    of: str  # "node", "mutex" or "timing" (a table of its own in a file)
    help: str
    in_query: bool = False  # may stand in the query of the transport's or the membership's URL
    keyword_only: bool = False  # cannot be written in a file or in the environment

    @property
    def variable(self) -> str:
        return PREFIX + self.name.replace(".", "_").upper()


SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("transport", adapter, None, "node", "how frames travel: a URL or an instance"),
        Setting("membership", adapter, None, "node", "who else is there: a URL or an instance"),
        Setting("key", key, None, "node", "the group key as bytes, or the path of a file", keyword_only=True),
        Setting("key_file", path, None, "node", "the file that holds the group key", in_query=True),
        Setting("insecure", flag, False, "node", "without a key beyond this host, after all", in_query=True),
        Setting("identity", path, None, "node", "the file that holds this member's own key; signs its hand-overs"),
        Setting("authority", adapter, None, "node", "who gives certificates: a registry's URL; else the membership"),
        Setting("require_identity", flag, False, "node", "take in only members for whom the authority vouches"),
        Setting("group", text, "default", "node", "members of different groups never meet", in_query=True),
        Setting("name", text, None, "node", "what people call this node; host-pid where not given", in_query=True),
        Setting("advertise", text, None, "node", "host:port under which others reach this node", in_query=True),
        Setting("thread", flag, False, "node", "run the node on a thread of its own"),
        Setting("leave_timeout", duration_s, 5.0, "node", "how long a leaving node may take to hand everything over"),
        Setting("observers", names, None, "node", "who is told what happens; all that are installed where not given"),
        Setting("timeout", duration_or_none_s, None, "mutex", "how long to wait for the mutex; none: for ever; 0: try"),
        Setting("slots", count, 1, "mutex", "how many may hold it at once"),
        Setting("max_hold", duration_or_none_s, None, "mutex", "a hold that takes longer without touch() overruns"),
        Setting("on_overrun", choice("warn", "release", "cancel", or_callable=True), "warn", "mutex", "what then"),
        Setting("on_lost", choice("continue", "cancel", or_callable=True), "continue", "mutex", "when a hold is lost"),
        Setting("when_isolated", choice("wait", "proceed", "raise"), "wait", "mutex", "when too few others answer"),
        Setting("algorithm", adapter, "wandering", "mutex", "which machine decides"),
        Setting("options", dict, {}, "mutex", "switches of the algorithm's own", keyword_only=True),
        Setting("min_interval", duration_or_none_s, None, "mutex", "a node that held it less than that ago yields"),
        Setting("timing.op", duration_s, 4.0, "timing", "how long a hold typically takes"),
        Setting("timing.nodes_max", count, 300, "timing", "how many nodes saturate the resource"),
        Setting("timing.skip", duration_or_none_s, None, "timing", "how long a token rests where it is not wanted"),
        Setting("timing.min_interval", duration_or_none_s, None, "timing", "the papers' min, where not by formula"),
        Setting("timing.max_interval", duration_or_none_s, None, "timing", "the papers' max, where not by formula"),
    )
}


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


def read_one(setting: Setting, raw: Any, where: str) -> Any:
    try:
        return setting.read(raw)
    except (ValueError, TypeError) as error:
        shown = "..." if setting.name == "key" else without_secrets(raw) if isinstance(raw, str) else raw
        raise ConfigError(f"{setting.name}={shown!r} ({where}): {error}. It means: {setting.help}.") from None


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
    return Settings(values, origins, mutexes, source)


def with_places(settings: Settings) -> Settings:
    """Fills in what follows from the rest where nothing was said: where the node meets others, how they reach it."""
    values, origins = dict(settings), {name: settings.origin(name) for name in settings}
    if values["membership"] is None:
        own_group = values["group"] != SETTINGS["group"].default
        values["membership"] = f"local://{values['group'] if own_group else ''}"
    local = isinstance(values["membership"], str) and values["membership"].startswith("local:")
    if values["transport"] is None:
        values["transport"] = "udp://127.0.0.1:0" if local else "udp://0.0.0.0:0"
    if values["insecure"] and str(values["membership"]).startswith("registry+http:"):  # it was taken out of the query
        values["membership"] = add_to_query(values["membership"], "insecure", "yes")
    if values["advertise"] is not None and isinstance(values["transport"], str):
        values["transport"] = add_to_query(values["transport"], "advertise", values["advertise"])
    return Settings(values, origins, settings._mutexes, settings.file)


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
    for candidate in ("softmutex.toml", "pyproject.toml"):
        table = read_toml(Path(candidate), must_exist=False)
        if table:
            check_found(Path(candidate).resolve())
            return str(Path(candidate).resolve()), table
    return None, {}


def check_found(file: Path) -> None:
    """Who merely starts a program in a stranger's directory must not take part in a stranger's group."""
    if why := whose(file):
        raise ConfigError(
            f"the configuration file {file} is not believed for lying here: {why}. If you trust what is in it, name "
            f"it: SOFTMUTEX_CONFIG={file}"
        )


def read_toml(file: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        content = file.read_text(encoding="utf-8")
    except OSError as error:
        if not must_exist:
            return {}
        raise ConfigError(f"the configuration file {file} cannot be read ({error.strerror}).") from None
    in_project = file.name == "pyproject.toml"
    if in_project and "tool.softmutex" not in content:
        return {}
    import tomllib  # only where there is a file

    try:
        table = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration file {file} is not TOML: {error}.") from None
    return dict(table.get("tool", {}).get("softmutex", {})) if in_project else table


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


def refuse_unknown(name: str, known: Iterable[str], where: str, what: str) -> NoReturn:
    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(options)}."
    raise ConfigError(f"there is no {what} {name!r} ({where}). {hint}")
