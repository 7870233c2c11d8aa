"""Where a Redis is and how it lets us in, for the store and for the membership alike.

    redis://[user[:password]@]host:6379/...?password_file=PATH&db=0
    rediss://...?ca=FILE&cert=FILE&key=FILE          by TLS; `tls=yes` says the same. `cert` and `key`: who we are

What it decides: a password is best in a file of its own, and is never shown, wherever it was written.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

from softmutex.files import read_secret
from softmutex.urls import Url, join_address, split_address

SCHEMES = ("redis", "rediss")


class RedisPlace(NamedTuple):
    url: str  # for redis-py; with the password
    shown: str  # for people
    options: dict[str, Any]  # for redis-py
    tail: str  # what follows the address


def read_place(parts: Url, *, database_is_tail: bool = False) -> RedisPlace:
    """Takes what it knows out of `parts`."""
    place, _, tail = parts.place.partition("/")
    login, _, place = place.rpartition("@")
    try:
        host, port = split_address(place, default_host="127.0.0.1", default_port=6379)
    except ValueError as error:
        parts.refuse(str(error))
    if file := parts.text("password_file"):
        password = read_secret(file, "password file").decode("utf-8", "replace").strip()
        login = f"{login.partition(':')[0]}:{quote(password, safe='')}"
    is_tls = parts.flag("tls") or parts.scheme == "rediss"
    files = {"ssl_ca_certs": parts.text("ca"), "ssl_certfile": parts.text("cert"), "ssl_keyfile": parts.text("key")}
    options: dict[str, Any] = {name: file for name, file in files.items() if file is not None}
    if options and not is_tls:
        parts.refuse("ca, cert and key are for TLS. Write rediss://")
    if is_tls:
        options["ssl_check_hostname"] = True
    database = tail if database_is_tail else str(parts.integer("db", 0, high=10_000))
    if database and not database.isdecimal():
        parts.refuse(f"{database!r} is no number of a data base")
    scheme, there = ("rediss" if is_tls else "redis"), join_address(host, port)
    url = f"{scheme}://{login + '@' if login else ''}{there}/{database or 0}"
    return RedisPlace(url, f"{scheme}://{there}", options, tail)
