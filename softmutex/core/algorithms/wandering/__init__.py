"""The wandering token, fit for use on demand: the default algorithm.

The seeds' token visits everybody in turn, wanted or not: a request waits for N visits, and a lost token for hours.
Here it goes where it is wanted and stays where it was used last; it is watched while it is used, and looked for
before it is replaced. Safety still rests on the token alone: a grant needs one in hand (`tokens.S1`). Everything
else is a hint, and a run in which every hint is lost is the seeds' own (`hints=False`).

    application --request--> node --WANT--> home's register --FEED/HEARD--> holder's queue
                                                                                  |  OFFER ACCEPT (early) COMMIT DONE
    application <--grant---- token <----------------------------------------------'
                              '--SEEN--> watchers --silence--> inquiry --nobody has it--> a token of a higher epoch

Each rule, where it lives, what it is for, and where the papers have it:

    rule        where         what it does                                         serves            papers
    want        requests      one ticket a node to the home, until it is answered  liveness          003, "cheap"
    patience    home          asked again when 1.25 rounds are over, as seen here  few messages
    register    home          the home keeps who waits: first come, first served   fairness          004, 002 central
    yielding    home          who had it lately lets others go first               fairness          000 section 3
    reminders   home          who was told to wait is asked at an idle token       liveness
    queue       home          32 tickets travel; the last one asks for more   O(1) messages     004, at the owner
    borrowing   home          who waits behind a long turn comes to an idle slot   no idle slot
    come by     home          a token with the home's own ticket comes by: others wait there   O(1) messages
    ahead       tokens        who is fed too late is kept where the token comes by   fairness
    hand-over   tokens        to the head of the queue                             one delay         000 section 4
    early       tokens        asked while A still runs                             one delay         000 section 4
    attempts    tokens        who cannot be reached keeps its ticket for a while   fairness
    row         tokens        what waited here when our turn began, 20 ms long     fairness
    park        tokens        it stays where it was used last, until fed           no traffic        003, rotation
    watch       watch         a beat each 1.6 to 6 s of use, by the age of A       recovery          003, neighbours
    lease       watch         renewed by answered beats only, from their sending   bounded overlap
    roll call   watch         who lends a lease reaches more than half, or stops   bounded overlap
    inquiry     search        ask near, then wide with a ballot, then all, make    one token         000 section 5
    ballots     search        one asker at a time, the first home that is there    one token
    given up    context       what was said to be nowhere is looked into if it comes  one token
    watched     search        what somebody hears lives, and none is made          one token
    suspicion   context       who does not answer: the group finds out, or a way   liveness
    census      requests      a waiter whom no home answers inquires itself        liveness
    last resort requests      adaptive time-out, without hints or census           liveness          000 section 5
    deafness    search        who says that it hears nobody is not waited for      liveness
    rivals      search        higher epoch, then older key; inquire, then discard  one token         000, 001 sandwich
    reunion     machine       who was silent and returns is told of the token      one token
    doubt       watch         out of touch: neither grant nor pass before asking   one token
    waking      machine       who slept looks into what it has before it is used   one token
    ledger      evidence      holds of two tokens that met: both sides are told    evidence
    ghosts      search        who was silent when one was made is told of it       one token
    joining     search        a newcomer makes nothing; a new home looks around    one token
    leaving     machine       token first, then register and places, then `Depart` no regeneration
    isolation   search        not more than half of those asked answer             `when_isolated`
    priorities  precedence    each step counts as a wait; the home alone orders    nobody starves
    slots       home          k tokens, each with its own post, watch and epoch    soft semaphore
    settings    tokens        a fingerprint travels along; a mismatch is told      evidence

Time constants and their reasons: `settings.py`. Decisions: `docs/decisions/0011` to `0013`, `0024`.
"""

from softmutex.core.algorithms.wandering.machine import Wandering

__all__ = ["Wandering"]
