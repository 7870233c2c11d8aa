"""What seed 004's three algorithms have in common: n replicas of a mutex, each with one vote, and m votes to run A.

What it decides: who votes, for whom, for how long, and what happens when nobody wins. A replica is a key: whoever is
nearest to it on the ring (`core/routing.py`) has its vote. What is asked of a replica goes there hop by hop, what it
answers comes straight back. Who in between may answer, and where the queue is, is what the three differ in.

    wanted --REQUEST_VOTE--> n replicas --RESPONSE(owner)--> m of them name me: A runs --RELEASE_VOTE--> the next
                                              |--> m name another, or may yet: wait, for T_cs * (P + 1/2)
                                              '--> nobody can have m: YIELD to those that named me, each votes anew

The naive way keeps each vote for ever, and one holder that dies takes the mutex with it. So votes are leased: who runs
A renews them, and is told that it may not be alone when fewer than m can be valid. And whoever gets a replica's key has
no memory of its vote: the naive way votes at once, which is a second vote of one replica. It is quiet for the length of
a lease: by then whoever has the vote has renewed it (and so told it), or has lost it. Only so that this costs no time,
who had the key before bequeaths what it knows (HEIR), and a founder says that there is nothing to know.

A YIELD takes back a vote that may be told once more by a message on its way. So each has a round, and a vote of an
earlier round than the last YIELD there is none.

Invariants
    S1  A runs only with m votes of this very request, none older than half a lease. Since 2m > n, no two have m.
    S2  A replica votes for nobody while the vote that it gave is neither given back nor older than a lease, and for
        nobody within a lease of getting its key, unless it was told what was before.
    S3  Whoever runs A with fewer than m votes that are younger than nine tenths of a lease was told so.
    L1  Each replica has voted while somebody waits there, and asks again who does not answer; a lost request, vote or
        release is made good by asking again, a lease at the latest.
"""

from softmutex.core.algorithms.quorum.machine import Quorum, QuorumOptions

__all__ = ["Quorum", "QuorumOptions"]
