"""One node for all jobs of a user on a host: they ask it over a Unix socket, and need no node or loop of their own.

    job: softmutex.client, softmutex run --link.py--> server.py: one session a job --> one Node --> the group

The naive way, a node for each job, makes the group hear of a thousand short jobs as a thousand members that join and
leave, and each job pay for the start of a node.

`link.py` and `place.py` are all that a job loads of it: they import nothing that is slow.
"""
