"""What a member says to one registry, and what can be wrong with the answer, in words for the one who can mend it.

What it decides: every failure has a name, a remedy, and says whether trying again can help. The naive way, whatever the
HTTP library raises, tells the user "Cannot connect to host" where the operator forgot to renew a certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from softmutex.core.errors import ConfigError
from softmutex.files import read_secret
from softmutex.ports import Member, Proofs
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.pins import Pins

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 3.0
ANSWER_S = 8.0
SILENCE_S = 25.0  # the registry says something every ten seconds
LEAVE_S = 0.8
CLOCK_OFF_S = 3600.0
RETRY_AFTER_MAX_S = 60.0


class Trouble(Exception):
    """`kind`: told once of each. `is_final`: only somebody's hand can help. `wait_s`: the registry asks for so long."""

    def __init__(self, kind: str, text: str, *, is_final: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.kind, self.is_final, self.wait_s = kind, is_final, wait_s


class RegistryClient:
    """Made on the loop that uses it. `base` is http(s)://host:port of a registry.

    `pins`: where keys are kept that were met first; None where they are not. `fresh`: the newest version that a
    registry has signed for a nonce of this client, and when that was.
    """

    def __init__(
        self,
        group: str,
        *,
        token_file: str | None = None,
        public_key: str | None = None,
        ca: str | None = None,
        pins: Pins | None = None,
        bases: Sequence[str] = (),
    ) -> None:
        import aiohttp  # here, since it costs more time than all the rest

        self._group, self._token_file, self._given, self._ca = group, token_file, public_key, ca
        self._pins, self._bases, self._first = pins, bases, ""
        self.fresh, self.fresh_at = 0, 0.0
        self.clock_off_s = 0.0
        connector = aiohttp.TCPConnector(ssl=self._trusted(), keepalive_timeout=5.0)
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, read_bufsize=1 << 18
        )

    def _trusted(self) -> ssl.SSLContext | bool:
        if self._ca is None:
            return True
        try:
            return ssl.create_default_context(cafile=self._ca)
        except OSError as error:
            raise Trouble("ca", f"ca={self._ca} cannot be used ({error}). Name a PEM file.", is_final=True) from None

    async def aclose(self) -> None:
        await self._session.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def put(self, base: str, lease: str, me: Member, proofs: Proofs | None) -> tuple[int, float]:
        """Joins, or renews. The version at which it is listed, and how long the lease is."""
        body = {"address": me.address, "id": f"{me.id:016x}", "name": printable(me.name)}
        if proofs is not None:
            body["proof"] = proofs.prove(wire.proved(self._group, wire.key_of(lease), me))
        told = await self._call("PUT", base, lease, ANSWER_S, body)
        try:
            return int(told["version"]), min(max(1.0, float(told["ttl_s"])), 3600.0)
        except (TypeError, KeyError, ValueError):
            raise self._nonsense(base, f"{told!r:.60}") from None

    async def drop(self, base: str, lease: str) -> None:
        await self._call("DELETE", base, lease, LEAVE_S, None)

    async def report(self, base: str, lease: str, report: object, within_s: float = ANSWER_S) -> tuple[bool, float]:
        """Whether this registry knew of this member before, and when it wants the next one."""
        told = await self._call("POST", base, f"{lease}/report", within_s, report)
        try:
            return bool(told["known"]), min(max(0.1, float(told["again_s"])), 3600.0)
        except (TypeError, KeyError, ValueError):
            raise self._nonsense(base, f"{told!r:.60}") from None

    async def certify(self, base: str, name: str, public: bytes, proof: bytes, invitation: str = "") -> bytes:
        body = {"name": name, "public_key": wire.to_text(public), "proof": wire.to_text(proof)}
        body |= {"invitation": invitation} if invitation else {}
        told = await self._call("POST", base, "", ANSWER_S, body, what="certificates")
        try:
            written = str(told["certificate"])
            return wire.from_text(written, len(written) * 3 // 4)
        except (TypeError, KeyError, ValueError):
            raise self._nonsense(base, f"{told!r:.60}") from None

    async def administer(self, method: str, base: str, what: str, body: object) -> Any:
        """`what` follows the group in the path."""
        return await self._call(method, base, "", ANSWER_S, body, what)

    async def _call(
        self, method: str, base: str, lease: str, within_s: float, body: object, what: str = "members/"
    ) -> Any:
        import aiohttp

        url = f"{base}/v1/groups/{self._group}/{what}{lease}"
        patience = aiohttp.ClientTimeout(total=within_s, sock_connect=CONNECT_S)
        headers = self._headers()
        nonce = headers[wire.NONCE_HEADER] if (method, what) == ("PUT", "members/") else ""
        with self._explained(base):
            async with self._session.request(
                method, url, json=body, headers=headers, timeout=patience, allow_redirects=False
            ) as answer:
                await self._check(base, answer, "application/json")
                if nonce:
                    self._check_fresh(base, answer, nonce)
                return await answer.json()

    async def follow(self, base: str, after: int, lease: str) -> AsyncGenerator[wire.MemberList | None, None]:
        """Lists and changes whose signature is right; None when the registry says that it is there."""
        import aiohttp

        url = f"{base}/v1/groups/{self._group}/events"
        asked = {"after": str(after)} | ({"lease": lease} if lease else {})
        patience = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        headers = self._headers()
        with self._explained(base):
            async with self._session.get(
                url, params=asked, headers=headers, timeout=patience, allow_redirects=False
            ) as answer:
                await self._check(base, answer, "text/event-stream")
                public = self._check_fresh(base, answer, headers[wire.NONCE_HEADER])
                events = wire.EventReader()
                async for data in answer.content.iter_any():
                    for line, signature in events.feed(data):
                        yield self._read(base, public, line, signature)
                    yield None

    # --- what may be wrong ------------------------------------------------------------------------------------------

    def _headers(self) -> dict[str, str]:
        """The file is read each time: a new token needs no restart."""
        headers = {wire.NONCE_HEADER: secrets.token_urlsafe(16)}
        if self._token_file is None:
            return headers
        try:
            token = (
                read_secret(self._token_file, "token file", "Write the token there.", most=4096).decode().split()[-1]
            )
        except ConfigError as error:
            raise Trouble("token file", str(error), is_final=True) from None
        except (UnicodeDecodeError, IndexError):
            why = f"the token file {self._token_file} holds no token. Write it there."
            raise Trouble("token file", why, is_final=True) from None
        return headers | {"Authorization": f"Bearer {token}"}

    async def _check(self, base: str, answer: aiohttp.ClientResponse, kind: str) -> None:
        self._look_at_clock(answer)
        if answer.status == 200 and answer.content_type == kind:
            return
        said = (await answer.content.read(300)).decode("utf-8", "replace").strip()
        if answer.status == 401:
            why = "refuses this node: the token is missing or wrong. Give the group's token: ?token_file=PATH"
            raise Trouble("token", f"{base} {why}", is_final=True)
        if answer.status == 403:
            raise Trouble("banned", f"{base} does not let this node in: {said}", is_final=True)
        if answer.status in (409, 429, 503):
            asked = answer.headers.get("Retry-After", "1")
            wait_s = min(float(asked), RETRY_AFTER_MAX_S) if asked.isdecimal() else 1.0
            if answer.status == 409:
                remedy = "Give each node an address of its own (advertise=), or end one"
                raise Trouble("address", f"{base} does not list this node: {said}. {remedy}.", wait_s=wait_s)
            raise Trouble("busy", f"{base} asks to come again later: {said}", wait_s=wait_s)
        if answer.status >= 500:
            raise Trouble("failing", f"{base} fails (HTTP {answer.status}: {said[:80]!r}). Its log says why.")
        raise self._nonsense(base, f"HTTP {answer.status}, {answer.content_type}: {said[:80]!r}", is_final=True)

    def _nonsense(self, base: str, what: str, *, is_final: bool = False) -> Trouble:
        why = f"{base} answers, but not as a registry of softmutex does ({what}). Is this its address?"
        return Trouble("nonsense", why, is_final=is_final)

    def _check_fresh(self, base: str, answer: aiohttp.ClientResponse, nonce: str) -> str:
        """Whose answer this is, and that it is one to this very request. The first key that shows that, stays."""
        public = answer.headers.get(wire.KEY_HEADER, "")
        kept = self._pins.known(self._bases) if self._pins is not None and not (self._given or self._first) else None
        expected = self._given or self._first or kept
        if expected and public != expected:
            where = "public_key" if self._given else "the first time"
            why = (
                f"{base} signs with the key {public or '(none)'}, and {expected} is expected ({where}): it is another "
                "registry, or it was set up anew. If that was you, give members the new key"
            )
            kept_in = f", or remove its line from {self._pins.path}" if kept and self._pins is not None else ""
            raise Trouble("key", f"{why} ({base}/v1/key){kept_in}.", is_final=True)
        fresh = wire.read_fresh(public, self._group, nonce, answer.headers.get(wire.FRESH_HEADER, ""))
        self.fresh, self.fresh_at = max(self.fresh, fresh), asyncio.get_running_loop().time()
        if self._pins is not None and not (expected or self._first):
            self._pins.learn(base, public)
        self._first = self._first or public
        return public

    def _read(self, base: str, public: str, line: bytes, signature: str) -> wire.MemberList:
        if not wire.is_signed_by(public, line, signature):
            why = f"{base} sent a list whose signature is wrong. It is not taken; something between may have changed it"
            raise Trouble("signature", f"{why}. Use TLS, and look at what is between.")
        told = wire.read(line)
        if told.group != self._group:
            raise Trouble(
                "group", f"{base} sent the list of {told.group!r} instead of {self._group!r}. It is not taken."
            )
        return told

    def _look_at_clock(self, answer: aiohttp.ClientResponse) -> None:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            there = parsedate_to_datetime(answer.headers["Date"]).timestamp() if "Date" in answer.headers else None
            if there is not None:
                off_s = there - time.time()
                self.clock_off_s = off_s if abs(off_s) > CLOCK_OFF_S else 0.0

    @contextlib.contextmanager
    def _explained(self, base: str) -> Iterator[None]:
        import aiohttp

        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            raise explain_certificate(base, error.certificate_error) from None
        except wire.Nonsense as error:
            raise self._nonsense(base, str(error)) from None
        except aiohttp.ContentTypeError as error:
            raise self._nonsense(base, error.message) from None
        except aiohttp.ClientConnectorError as error:
            why = f"{base} cannot be reached ({error.os_error.strerror or error.os_error}). Does `softmutex registry`"
            raise Trouble("unreachable", f"{why} run there, and is a firewall between?") from None
        except aiohttp.ClientPayloadError:
            raise Trouble("lost", f"{base}: the connection broke off.") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:  # TimeoutError is an OSError
            what = (
                "it does not answer" if isinstance(error, asyncio.TimeoutError) else f"{error or type(error).__name__}"
            )
            raise Trouble("lost", f"{base}: the connection was lost ({what}).") from None


def explain_certificate(base: str, error: Exception) -> Trouble:
    said = getattr(error, "verify_message", "") or str(error)
    if "expired" in said:
        remedy = "It has expired: renew it there. If it is fresh, the clock of this host is wrong."
    elif "not yet valid" in said:
        remedy = "It is not valid yet: one of the two clocks is wrong."
    else:
        remedy = "Give its authority here (?ca=FILE), and use the name that is in the certificate."
    return Trouble("certificate", f"the certificate of {base} is not trusted ({said}). {remedy}", is_final=True)


def printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)[: wire.NAME_MAX]
