"""`softmutex demo`: many subscribers, one plain FTP server, one link; without softmutex, with it, and with an ideal.

    command.py   what is asked for, what may be in the way, what is said at the end
    plan.py      the scenario, in numbers
    server.py    the FTP server, in a process of its own; all its connections share one bucket of bytes
    crowd.py     the subscribers, each a process of its own (forked from one that has imported everything)
    run.py       starts both, hears what they tell, leaves nothing behind
    tally.py     from what they told to the figures
    screen.py    who holds, who waits, goodput, while it runs
    picture.py   the same in the end, as a PNG and as a page

Nothing is staged: the one difference between the three runs is what a subscriber does before a transfer. It does
nothing, it enters a `SoftMutex`, or it takes one of K bytes from a pipe, which costs nothing and needs all of them to
be children of one process: the ideal.
"""
