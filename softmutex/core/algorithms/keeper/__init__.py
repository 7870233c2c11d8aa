"""The second generation of the default algorithm: one keeper, one lease. A preview, chosen by `algorithm="keeper"`.

The first one (`wandering`) computes who watches from each node's own view of the group, lets several parties replace a
token, and has several clocks that say "I may have been replaced". Views differ, and clocks get renewed by the wrong
thing. Here one member, the keeper, has a role with a term, keeps the register, lends the token, and alone makes one.

    application --request--> waiter --CLAIM--> keeper's register --FED--> token's queue
    application <--grant---- holder <--COMMIT (at once)-- the holder before          '--BEAT--> keeper --LEASE--> holder
    nobody answers --> installer --PROPOSE--> all --REPORT--> a keeper is installed, confirmed, or followed

Each rule, where it lives, what it is for:

    rule        where       what it does                                                     promise
    claim       waiter      one a node, to the keeper, repeated until it is ENTERED            liveness
    way         waiter      who knows no keeper asks the hint, two homes, anybody            liveness
    register    office      first come, first served; what a BEAT does not show comes back   office.O3, fairness
    queue       holder      up to 31 tickets travel along; FED follows the token             few messages
    hand-over   holder      to the head of the queue, in one message (`core/handover.py`)    one delay
    park        holder      it stays where it was used last                                  no traffic
    lease       holder      from the sending of an answered beat; travels with the token     holder.H1, bounded overlap
    roll call   office      who lends reaches half of the group, or more                     office.O1, isolation
    confirm     office      who slept or was cut off asks a majority before it lends again   office.O1
    install     installer   term + 1, by a majority of the largest membership reported       installer.I1, installer.I2
    search      installer   who answers takes no token meanwhile; then one is made           office.O2, one token
    follow      desk        the higher (term, keeper); whoever kept before is told           one keeper
    replaced    holder      a higher epoch, or an older stamp: discarded, its hold told      holder.H3
    waking      machine     who slept beats before it grants, and keeps nothing it promised  one token
    leaving     machine     first the tokens, then the role (LEGACY), then `Depart`         no regeneration
    evidence    ledger      all are asked for their holds; both sides of each pair are told  ledger.E1

What it is not yet: see `docs/explanation/keeper.md`.
"""

from softmutex.core.algorithms.keeper.machine import Keeper

__all__ = ["Keeper"]
