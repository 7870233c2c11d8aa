"""What could not be opened: who is to know of it, on both sides.

    a frame that the seal refuses --> the user here, where the list of members names its sender    (once, by a budget)
                                  '-> a hint to its sender, where the list names its host          (`core/hint.py`)
    a hint from an address that is listed --> the user here; a mutex does not begin here alone

What it decides: what is worth a word. The naive ways: to tell of all that strangers send fills the disk; to tell only
those whose key is right lets the one that has a wrong one run alone, with exit code 0.

D1  Only frames from listed addresses bring a word, one for each address; all is counted by the seal.
D2  Hints are bounded: HINTS_A_SECOND, none to hosts that no list names, none for a hint.
D3  A hint counts for TOLD_FOR: whoever sees our frames can forge one, and stops nobody for longer than he is there.
D4  Who is turned away, and heard by nobody, makes no first token: where a list names members, one of them is there and
    none understands us, "alone" is a mistake. Where neighbours can write the list (mDNS), all that are on it must say
    so. Who is there to write it could put himself on the path by ARP just as well, and say what he likes from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from softmutex.core.events import Instant, from_seconds
from softmutex.core.hint import Hint, Why, read_hint, write_hint
from softmutex.core.wire import VERSION
from softmutex.ports import Datagram, Explaining
from softmutex.runtime.budgets import Quota

if TYPE_CHECKING:
    from softmutex.runtime.node import RunningNode
    from softmutex.runtime.sealing import Refused

HINTS_A_SECOND: Final = 20
TOLD_MAX: Final = 256  # addresses of which is noted why they refuse us
TOLD_FOR: Final = from_seconds(15.0)  # who refuses us says so to each HELLO; nothing proves a hint
NOT_UNDERSTOOD: Final = ("unknown_key", "forged", "not_sealed", "sealed")  # another key, or another group


class Doorstep:
    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._hints = Quota(HINTS_A_SECOND)
        self._turned_away: dict[
            str, tuple[str, Instant]
        ] = {}  # addresses, why they do not listen, until when it counts
        self._listing: object = None
        self._hosts: frozenset[str] = frozenset()  # of that listing

    def refused(self, refused: Refused, datagram: Datagram) -> None:
        """Counted by the seal; some of the reasons are for the user to know."""
        node, source, reason = self._node, datagram.source, refused.reason
        if reason == "version" and (hint := read_hint(datagram.payload)) is not None:
            node.seal.refusals[reason] -= self._hinted(hint, source)  # that is none, after all
        elif reason == "version":
            if node.driver.is_listed(source):
                node.warn("version", f"{source} speaks {refused.detail}", once=f"version {source}")
            self._hint(Why.VERSION, datagram)
        elif reason == "unvouched" or (reason == "unsigned" and refused.sender):
            node.driver.expel(refused.sender, source, refused.detail)
        elif reason in NOT_UNDERSTOOD:
            if node.driver.is_listed(source):
                what = f"{source} is a member by the list, and its frames are refused: {refused.detail}."
                node.warn("other key", f"{what} Give all members the same key and group.", once=f"key {source}")
            self._hint(Why.KEY, datagram)
        elif reason == "epoch":
            node.warn("epoch", f"{source} {refused.detail}: it lies, or is broken.", once=f"epoch {source}")
        elif reason == "reflected":
            node.warn("own id", f"{source} sends in the name of this node: {refused.detail}.", once="own id")

    # --- the other side ---------------------------------------------------------------------------------------------

    def _hint(self, why: Why, datagram: Datagram) -> None:
        node = self._node
        listing = node.driver.group.listing
        if listing is not None and listing is not self._listing:
            self._listing, self._hosts = listing, frozenset(host_of(place.address) for place in listing.places)
        hint = write_hint(why, datagram.payload)
        if hint and host_of(datagram.source) in self._hosts and node.is_mine() and self._hints.take(node.now()):
            node.transport.send(datagram.source, hint)

    def _hinted(self, hint: Hint, source: str) -> bool:
        """Whether it is one: of a member by the list, about a frame of ours."""
        node = self._node
        if not node.driver.is_listed(source):
            source = source.rpartition("://")[2]  # as lists may have it
        if hint.sender != node.id or not node.driver.is_listed(source):
            return False
        now = node.now()
        self._turned_away = {each: told for each, told in self._turned_away.items() if told[1] > now}
        if source in self._turned_away or len(self._turned_away) < TOLD_MAX:
            why = explain(hint, node.seal.key_ids, node.settings["group"])
            self._turned_away[source] = why, now + TOLD_FOR
            text = f"{source} is there and refuses what this node sends: {why}"
            node.warn("turned away", text, once=f"turned away {source}")
            node.driver.fail_those_shut_out()
            node.something_changed()
        return True

    # --- who begins -------------------------------------------------------------------------------------------------

    def refusing(self) -> Mapping[str, str]:
        """Addresses of the list at which somebody is who does not listen to us, and why. Empty where anybody does."""
        node, driver = self._node, self._node.driver
        if any(peer.heard_at for peer in driver.peers.values()):
            return {}
        troubles = node.transport.troubles() if isinstance(node.transport, Explaining) else {}
        for source, why in troubles.items():
            if driver.is_listed(source):
                node.warn("turned away", f"{source} is there, and cannot be talked to: {why}", once=f"trouble {source}")
        told = {source: why for source, (why, until) in self._turned_away.items() if until > node.now()}
        each = {**troubles, **told}
        return {source: why for source, why in each.items() if driver.is_listed(source)}

    def is_shut_out(self) -> bool:
        """All of the list refuse us, but for ports at which nobody listens: there is nobody to be waited for (D5)."""
        group, refusing = self._node.driver.group, self.refusing()
        if not refusing or group.listing is None or self._node.seal.is_right:
            return False
        others = [place.address for place in group.listing.places if not group.greeter.is_own(place.address)]
        return all(address in refusing or group.greeter.state(address) == "refused" for address in others)

    def why_not_alone(self) -> str:
        """Why no mutex begins here, where that would be a group of its own beside one that does not hear us (D4)."""
        listing, refusing = self._node.driver.group.listing, self.refusing()
        if not refusing or listing is None:
            return ""
        if listing.may_be_late and not listing.complete and not self.is_shut_out():
            return ""
        (source, why), *others = refusing.items()
        more = f", and {len(others)} more do" if others else ""
        return f"{source} is there and refuses this node{more}: {why} To go on alone: when_isolated=proceed."


def explain(hint: Hint, key_ids: tuple[int, ...], group: str) -> str:
    """For who is turned away."""
    if hint.why is Why.VERSION:
        return f"it speaks version {hint.version} of the protocol, and this node {VERSION}. Update the older side."
    sealed = f"is sealed with key {key_ids[0]}" if key_ids else "is not sealed"
    what = f"it cannot open what {sealed} for the group {group!r}"
    return f"{what}. Give all members the same key and group; softmutex key list shows a key's id."


def host_of(address: str) -> str:
    """`10.0.0.1:9431`, `[::1]:9431`, `https://a.lab:8443/prefix`: without scheme, port and path."""
    place = address.rpartition("://")[2].partition("/")[0].partition("#")[0]
    return place.rpartition(":")[0] or place
