"""The central registry: a small server that tells the members of a group of each other. It passes no token on.

command.py   `softmutex registry`: options, signals, logs
server.py    HTTP in and out: answers; routes.py: what a route is           guard.py    names, limits, slow connections
tokens.py    who may look, join, decide about others                description.py   OpenAPI, from the routes' own words
hub.py       the one who changes: commits, leases, streams
group.py     one group in memory: its list, its versions, its leases (pure: told the time); places.py: whose addresses
viewing.py   the page and its endpoints         page/      what the browser is given
scene.py     what the page shows of a group (pure)      report.py, reporter.py      what members tell for it
wire.py      what goes over the line, signed: shared with the client, `softmutex_adapters.memberships.registry`
store.py     what a store promises; sqlite_store.py, redis_store.py, etcd_store.py
"""
