"""Who is there, and who makes the first token: the rules of a group, without I/O, for runtime and simulator alike.

    membership: (address, id), complete ---> member      local, registry, memory: of two that join one sees the other
    membership: (address, id or 0) --------> greeted --WELCOME--> member
    a frame for this very life, or a proven HELLO --------------> member      it knows us; the list will follow
    member --suspected, or a list that may err drops it--> pinged --> there, dead, or silent
    member --BYE, a ban, a complete list drops it, dead, an operator, silent for isolated_timeout--> left

What it decides: who counts. Members are those that are not known to be gone. Silence is no such knowledge: who is
silent still counts, is looked for, and is asked by way of others; so both sides of a cut know how large their group is.
The naive way, to remove whoever does not answer, makes two whole groups of it.

    module       what it decides
    group        who is a member; which message is whose
    company      nothing: the members, their addresses, a digest of who they are
    porter       who proves to be where it says; another process under one's own id
    greeter      when enough was tried to say who is at an address; which addresses are one's own
    suspicion    whether who does not answer is dead, silent, or there
    search       how often who is missing is looked for
    ways         how a member is reached where the direct link is dead
    rosters      asking others whom they know
    roll_call    whether more than half of the members are reached
    founding     who makes the first token of a mutex; inquiry: what it has asked
    effects      what comes out

One `Group` a node, for all its mutexes. After every call the driver performs and removes what is in `group.out`, in
order, until there is nothing (`effects.py`).

    group = Group(Ego(...), alone_after=..., isolated_timeout=..., door=...)
    group.listed(Listing(...), now)                       the membership shows something new
    group.heard(sender, source, now)                      a frame for this very life; False: it is not to be handled
    group.relayed(sender, by, now)                        ... that came in an `Unwrap`
    group.received(sender, mutex, message, source, to_me, now, by)     a message of the node kinds (48 to 63)
    group.refused(address, now)                           the transport says that nobody listens there
    group.suspect(node, now), group.call_roll(asker, wide, now)        effects of a machine
    group.route(node, now)                                where a frame for it goes: (address, by), or None
    group.fired(timer, now)                               a `SetTimer` of `out` is due
    group.founding.open(mutex, terms, now, ...)           ends with `Start` or `Refuse`
    group.founding.keep(mutex, Received(...), now)        a message about a mutex that nobody opened here
    group.founding.closed(mutex), group.founding.joined(mutex, terms)
    group.members                                         sorted, shared with the machines, live

`Suspicion` and `RollCall` may be used alone, with one `members` sequence for many nodes: each takes an owner (see
`SuspicionOwner`, `RollCallOwner`) and costs nothing before it is first asked something.
"""

from softmutex.core.group.effects import Listed, Listing
from softmutex.core.group.greeter import Ego
from softmutex.core.group.group import Group

__all__ = ["Ego", "Group", "Listed", "Listing"]
