"""Every setting, declared once: its type, how it is read, its default, what it means.

    MutexOptions, NodeOptions     the keywords of `SoftMutex`, `Node` and `Node.mutex`, as a type checker sees them
      '-- Setting                 in each of them: all the rest
            '--> config.SETTINGS --> environment, files, URLs, the flags of commands, the wishes of jobs, the docs

What it decides: a setting is added in one place. The naive way, a list for each who reads settings, has an option that
Python knows and the command does not, and two defaults.

What a type checker has to read stands here as written, without `from __future__ import annotations`: the declarations
are looked at while the program runs, and a string would have to be evaluated for that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TypeAlias, TypedDict, get_args

from softmutex.core.errors import ConfigError
from softmutex.core.tuples import NamedTuple
from softmutex.urls import without_secrets
from softmutex.values import (
    adapter,
    choice,
    count,
    duration_or_never_s,
    duration_or_none_s,
    duration_s,
    flag,
    key,
    names,
    path,
    priority,
    text,
    text_or_nothing,
)

if TYPE_CHECKING:
    from softmutex.core.machine import Algorithm
    from softmutex.core.timing import Timing
    from softmutex.ports import Membership, Observer, Transport
else:  # quoted, each of them would be compiled when this is imported
    Algorithm = Timing = Membership = Observer = Transport = object

OnOverrun: TypeAlias = Literal["warn", "release", "cancel"] | Callable[..., Any]
OnLost: TypeAlias = Literal["continue", "cancel"] | Callable[..., Any]
WhenIsolated: TypeAlias = Literal["wait", "proceed", "raise"]

PREFIX: Final = "SOFTMUTEX_"


class Setting(NamedTuple):
    read: Callable[[Any], Any]
    default: Any
    help: str
    flag: bool = False  # commands that join a group have one
    in_query: bool = False  # may stand in the query of the transport's or the membership's URL
    keyword_only: bool = False  # cannot be written in a file or in the environment
    none_counts: bool = False  # a keyword that is None is not one that was left out
    since: str = "0.1"  # the first version that has it
    by_job: bool = True  # a job may tell an agent; what it may not, it sees to by itself
    name: str = ""
    of: str = ""  # "node", "mutex" or "timing" (a table of its own in a file)

    @property
    def variable(self) -> str:
        return PREFIX + self.name.replace(".", "_").upper()


class MutexOptions(TypedDict, total=False):
    """Durations in seconds."""

    timeout: Annotated[
        float | None,
        Setting(duration_or_none_s, None, "how long to wait for the mutex; none: for ever; 0: try", by_job=False),
    ]
    slots: Annotated[int, Setting(count, 1, "how many may hold it at once; the same for all members", flag=True)]
    weight: Annotated[
        int | None,
        Setting(count, None, "so many slots at once for one hold; who says one comes in by turn", flag=True),
    ]
    priority: Annotated[
        int,
        Setting(
            priority, 0, "from 0 to 9: each step counts as a wait of `ageing`, so that nobody waits for ever", flag=True
        ),
    ]
    ageing: Annotated[
        float | None,
        Setting(
            duration_or_none_s, None, "the wait that a step of priority is worth; the same for all members", flag=True
        ),
    ]
    max_hold: Annotated[
        float | None,
        Setting(duration_or_none_s, None, "a hold that takes longer without touch() overruns", flag=True),
    ]
    on_overrun: Annotated[
        OnOverrun,
        Setting(
            choice("warn", "release", "cancel", or_callable=True),
            "warn",
            "what then: warn, release it, cancel the body, or a function that is given the Hold",
            by_job=False,
        ),
    ]
    on_lost: Annotated[
        OnLost,
        Setting(
            choice("continue", "cancel", or_callable=True),
            "continue",
            "when a hold is lost: continue, cancel the body, or a function that is given the Hold",
            by_job=False,
        ),
    ]
    when_isolated: Annotated[
        WhenIsolated,
        Setting(
            choice("wait", "proceed", "raise"),
            "wait",
            "when too few others answer: wait for them, proceed, or raise Isolated",
            flag=True,
        ),
    ]
    isolated_timeout: Annotated[
        float | None,
        Setting(
            duration_or_never_s,
            600.0,
            "how long members that are silent still count; never: until somebody says that they are gone",
            flag=True,
            none_counts=True,
        ),
    ]
    min_members: Annotated[
        int, Setting(count, 1, "the first token is made only where so many are there, this one included", flag=True)
    ]
    algorithm: Annotated[
        str | type[Algorithm],
        Setting(adapter, "wandering", "which machine decides; the same for all members", flag=True),
    ]
    timing: Timing
    min_interval: Annotated[
        float | None,
        Setting(duration_or_none_s, None, "a node that held it less than that ago yields to others", flag=True),
    ]
    purpose: Annotated[
        str | None,
        Setting(
            text_or_nothing,
            None,
            "what others see of who holds it or waits; none: nothing; else the program's name",
            flag=True,
            by_job=False,
        ),
    ]
    options: Annotated[Mapping[str, Any], Setting(dict, {}, "switches of the algorithm's own", keyword_only=True)]


class SharedNodeOptions(TypedDict, total=False):
    transport: Annotated[str | Transport, Setting(adapter, None, "how frames travel: a URL or an instance", flag=True)]
    membership: Annotated[
        str | Membership, Setting(adapter, None, "who else is there: a URL or an instance", flag=True)
    ]
    key: Annotated[
        bytes | str | PathLike[str],
        Setting(key, None, "the group key as bytes, or the path of a file", keyword_only=True),
    ]
    key_file: Annotated[
        str | PathLike[str], Setting(path, None, "the file that holds the group key", in_query=True, flag=True)
    ]
    key_group: Annotated[
        str | None, Setting(text, None, "users of this group may read the key file, too: mode 0640", in_query=True)
    ]
    insecure: Annotated[
        bool, Setting(flag, False, "without a key beyond this host, after all", in_query=True, flag=True)
    ]
    identity: Annotated[
        str | PathLike[str], Setting(path, None, "the file that holds this member's own key; signs its hand-overs")
    ]
    authority: Annotated[str, Setting(adapter, None, "who gives certificates: a registry's URL; else the membership")]
    require_identity: Annotated[bool, Setting(flag, False, "take in only members for whom the authority vouches")]
    group: Annotated[str, Setting(text, "default", "members of different groups never meet", in_query=True, flag=True)]
    advertise: Annotated[
        str, Setting(text, None, "host:port under which others reach this node", in_query=True, flag=True)
    ]
    thread: Annotated[
        bool, Setting(flag, False, "run the node on a thread of its own: a blocked loop does not hurt it")
    ]
    leave_timeout: Annotated[
        float, Setting(duration_s, 5.0, "how long a leaving node may take to hand everything over", flag=True)
    ]
    evictors: Annotated[
        Sequence[str],
        Setting(names, (), "with require_identity: the members that may end holds here (softmutex evict)"),
    ]
    observers: Annotated[
        Sequence[str | Observer],
        Setting(names, None, "who is told what happens; all that are installed where not given"),
    ]
    config: str | PathLike[str]  # the configuration file


class NodeOptions(SharedNodeOptions, total=False):
    name: Annotated[str, Setting(text, None, "what people call this node; host-pid where not given", in_query=True)]


class OneShotOptions(SharedNodeOptions, MutexOptions, total=False):
    node_name: str  # `name` of the node


# The fields of `Timing`, which is one keyword and a table of its own in a file.
TIMING: Final = {
    "op": Setting(duration_s, 4.0, "how long a hold typically takes"),
    "nodes_max": Setting(count, 300, "how many nodes saturate the resource"),
    "skip": Setting(duration_or_none_s, None, "how long a token rests where it is not wanted"),
    "min_interval": Setting(duration_or_none_s, None, "the papers' min, where not by formula"),
    "max_interval": Setting(duration_or_none_s, None, "the papers' max, where not by formula"),
}


def declared(options: Any, of: str) -> list[Setting]:
    """Those of the keywords that are settings, with their names."""
    return [
        each._replace(name=name, of=of)
        for name, kind in options.__annotations__.items()
        for each in get_args(kind)
        if isinstance(each, Setting)
    ]


SETTINGS: Final[Mapping[str, Setting]] = {
    each.name: each
    for each in (
        *declared(NodeOptions, "node"),
        *declared(MutexOptions, "mutex"),
        *(each._replace(name=f"timing.{name}", of="timing") for name, each in TIMING.items()),
    )
}
# What a job may tell an agent of the mutex; what it leaves out is as the agent has it.
BY_JOB: Final = frozenset(name for name, each in SETTINGS.items() if each.of != "node" and each.by_job)


def read_mutex_options(given: Mapping[str, Any]) -> dict[str, Any]:
    return read(given, MutexOptions)


def read_node_options(given: Mapping[str, Any]) -> dict[str, Any]:
    return read(given, NodeOptions)


def read_one_shot_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of the node, and those of the mutex."""
    refuse_strangers(given, OneShotOptions)
    mutex = {name: value for name, value in given.items() if name in MutexOptions.__annotations__}
    node = {name: value for name, value in given.items() if name not in MutexOptions.__annotations__}
    if "node_name" in node:
        node["name"] = node.pop("node_name")
    return read(node, NodeOptions), read(mutex, MutexOptions)


def read(given: Mapping[str, Any], options: Any) -> dict[str, Any]:
    """The settings that were given, by their names, checked as far as they can be alone."""
    refuse_strangers(given, options)
    if given.get("key") is not None and given.get("key_file") is not None:
        raise ConfigError("key and key_file are both given, and mean the same. Give one of them.")
    result = {name: value for name, value in given.items() if name not in ("timing", "config")}
    timing = given.get("timing")
    if timing is not None:
        result |= {f"timing.{name}": getattr(timing, name) for name in TIMING}
    values = {
        name: read_one(SETTINGS[name], value, "keyword")
        for name, value in result.items()
        if value is not None or SETTINGS[name].none_counts
    }
    refuse_what_never_fits(values)
    return values


def refuse_what_never_fits(keywords: Mapping[str, Any]) -> None:
    """Where both are said together, before anybody waits. What files and the environment say comes later (`plan`)."""
    weight, slots = keywords.get("weight"), keywords.get("slots")
    if weight is not None and slots is not None and weight > slots:
        raise ConfigError(f"a hold of weight {weight} never fits, for slots is {slots}. Give a smaller weight.")


def read_one(setting: Setting, raw: Any, where: str) -> Any:
    try:
        return setting.read(raw)
    except (ValueError, TypeError) as error:
        shown = "..." if setting.name == "key" else without_secrets(raw) if isinstance(raw, str) else raw
        raise ConfigError(f"{setting.name}={shown!r} ({where}): {error}. It means: {setting.help}.") from None


def refuse_strangers(given: Mapping[str, Any], options: Any) -> None:
    for name in given:
        if name not in options.__annotations__:
            refuse_unknown(name, options.__annotations__, "keyword", "setting")


def refuse_unknown(name: str, known: Iterable[str], where: str, what: str) -> NoReturn:
    import difflib  # slow to import

    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(options)}."
    raise ConfigError(f"there is no {what} {name!r} ({where}). {hint}")
