"""The registry in numbers, as Prometheus reads them. No names of groups: this page is open."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from softmutex_adapters.registry.hub import Hub

HELP = {
    "members": ("gauge", "members that are listed, in all groups"),
    "groups": ("gauge", "groups"),
    "streams": ("gauge", "watchers that follow a stream"),
    "connections": ("gauge", "open connections"),
    "store_ok": ("gauge", "0 while the store fails"),
    "requests_total": ("counter", "requests, by method and status"),
    "cpu_seconds_total": ("counter", "processor time of this process"),
    "memory_peak_bytes": ("gauge", "the most memory that this process had"),
}
COUNTERS = {
    "joined": "members that joined",
    "left": "members that left, or whose lease was over",
    "expired": "leases that were over",
    "replaced": "members that were replaced by another one at their address",
    "addresses_refused": "requests for the address or the id of another member that may live",
    "commits": "changes written to the store, many members in one",
    "store_failures": "times that the store failed",
    "set_back": "times that a store was found to be older than what clients had seen",
    "broadcasts": "times that watchers were told",
    "broadcast_microseconds": "time that telling them took",
    "reports": "reports of members for the page",
    "enrolled": "identities that enrolled themselves with a one-time token",
    "refused_tokens": "requests without a right token",
    "refused_hosts": "requests by another name than this registry's, or by pages of elsewhere",
    "slowed_address": "requests beyond the rate of an address",
    "slowed_group": "requests beyond the rate of a group",
    "connections_refused": "connections that were closed since there were too many, the idlest first",
    "connections_closed": "connections that asked nothing in time",
    "breakdowns": "mistakes of the registry itself",
}


def render(hub: Hub, connections: int) -> str:
    used = resource.getrusage(resource.RUSAGE_SELF)
    values: dict[str, float] = {
        "members": sum(len(group.entries) for group in hub.groups.values()),
        "groups": len(hub.groups),
        "streams": sum(map(len, hub.streams.values())),
        "connections": connections,
        "store_ok": int(not hub.trouble),
        "cpu_seconds_total": round(used.ru_utime + used.ru_stime, 3),
        "memory_peak_bytes": used.ru_maxrss * 1024,
    }
    return "\n".join([*_lines(hub, values), ""])


def _lines(hub: Hub, values: dict[str, float]) -> Iterator[str]:
    for name, (kind, meaning) in HELP.items():
        yield from _head(name, kind, meaning)
        if name in values:
            yield f"softmutex_registry_{name} {values[name]}"
            continue
        for key, count in sorted(hub.counts.items()):
            if key.startswith("requests_"):
                _, method, status = key.split("_")
                yield f'softmutex_registry_{name}{{method="{method}",status="{status}"}} {count}'
    for name, meaning in COUNTERS.items():
        yield from _head(f"{name}_total", "counter", meaning)
        yield f"softmutex_registry_{name}_total {hub.counts[name]}"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP softmutex_registry_{name} {meaning}"
    yield f"# TYPE softmutex_registry_{name} {kind}"
