"""HTTP beyond the contract: batches, certificates, and people who hold on to connections."""

import asyncio
import contextlib
import gzip
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from softmutex_adapters.transports import http, http_server
from softmutex_adapters.transports.frames import MAX_BODY, pack, read_base, unpack
from softmutex_adapters.transports.http import QUEUE_MAX, HttpTransport

from softmutex import AcquireTimeout, Node
from softmutex.core.errors import ConfigError
from softmutex.ports import CannotOpen
from softmutex.testing import MemoryNetwork
from softmutex.testing.contracts.checks import eventually
from softmutex.urls import split_address
from tests.adapters.certificates import make_certificates

Open = Callable[..., Any]


@pytest.fixture
async def opened(no_leaks: None) -> AsyncIterator[Open]:
    made: list[HttpTransport] = []

    async def open_one(*args: Any, **options: Any) -> HttpTransport:
        transport = HttpTransport(*args, **options)
        made.append(transport)
        await transport.open()
        return transport

    yield open_one
    for transport in made:
        await transport.aclose()


async def connect(transport: HttpTransport) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = split_address(transport.address.removeprefix("http://"))
    return await asyncio.open_connection(host, port)


async def all_of(transport: HttpTransport, count: int) -> list[bytes]:
    arrived: list[bytes] = []
    while len(arrived) < count:
        arrived += [datagram.payload for datagram in await asyncio.wait_for(transport.receive(), 60)]
    return arrived


# --- the body --------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=60))
def test_what_is_packed_comes_out_again_in_as_few_bodies_as_fit(frames: list[bytes]) -> None:
    queue, bodies = deque(frames), []
    while queue:
        body, count = pack(queue)
        assert len(body) <= MAX_BODY and count > 0
        assert not queue or len(body) + len(queue[0]) > MAX_BODY - 2
        bodies.append(body)
    assert [frame for body in bodies for frame in unpack(body) or []] == frames


@given(st.binary(max_size=4000))
def test_any_bytes_are_frames_or_none(body: bytes) -> None:
    frames = unpack(body)
    assert frames is None or pack(deque(frames))[0] == body


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("http://ftp1:9431", "http://ftp1:9431"),
        ("https://ftp1/prefix/", "https://ftp1/prefix"),
        ("http://[fd00::1]:80", "http://[fd00::1]:80"),
        ("ftp://ftp1", None),
        ("ftp1:9431", None),
        ("http://", None),
        ("http://ftp1:0", None),
        ("http://ftp1:99999", None),
        ("http://[fd00::1", None),
        ("http://user:word@ftp1/", None),
        ("http://ftp1/?query", None),
        ("http://ftp1/#part", None),
        ("http://ftp1/a b", None),
        ("http://ftp1/\r\nX: y", None),
        ("http://" + "x" * 600, None),
    ],
)
def test_an_address_is_plain_or_none(written: str, read: str | None) -> None:
    assert read_base(written) == read


# --- sending ---------------------------------------------------------------------------------------------------------


async def test_frames_that_pile_up_travel_together_over_one_connection(opened: Open) -> None:
    here, there = await opened(), await opened()
    sent = [b"%d" % number for number in range(500)]
    for frame in sent:
        here.send(there.address, frame)
    assert await all_of(there, 500) == sent
    assert here.statistics()["requests"] <= 3
    at_port = urlsplit(there.address).port
    met = [one for one in psutil.Process().net_connections("tcp") if one.laddr.port == at_port and one.raddr]
    assert len(met) == 1


async def test_a_peer_that_does_not_answer_holds_up_nobody_and_its_queue_is_bounded(opened: Open) -> None:
    here, there = await opened(), await opened()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    never = asyncio.Event()
    deaf = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = "http://{}:{}".format(*deaf.sockets[0].getsockname())
    here.send(address, b"first")
    await eventually(lambda: here.statistics()["requests"] == 1, "no request was made")
    for _ in range(QUEUE_MAX + 100):
        here.send(address, b"more")
    here.send(there.address, b"quick")
    assert await all_of(there, 1) == [b"quick"]
    assert here.statistics()["send_overflow"] == 100
    never.set()
    await here.aclose()
    deaf.close()
    await deaf.wait_closed()


async def test_the_last_frame_before_aclose_still_arrives(opened: Open) -> None:
    here, there = await opened(), await opened()
    here.send(there.address, b"I hand over to you")
    await here.aclose()
    assert await all_of(there, 1) == [b"I hand over to you"]


async def test_a_redirect_is_not_followed_and_counts_as_a_loss(opened: Open) -> None:
    here, elsewhere = await opened(), await opened()

    async def send_away(_: web.BaseRequest) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(elsewhere.address + "/softmutex")

    runner = web.ServerRunner(web.Server(send_away))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    here.send("http://{}:{}".format(*runner.addresses[0]), b"hello")
    await eventually(lambda: here.statistics()["send_failed"] == 1, "the loss is not counted")
    assert elsewhere.statistics()["received"] == 0
    await here.aclose()
    await runner.cleanup()


async def test_an_address_without_a_scheme_has_that_of_the_transport(opened: Open) -> None:
    here, there = await opened(), await opened()
    here.send(there.address.removeprefix("http://"), b"hello")
    assert await all_of(there, 1) == [b"hello"]


async def test_nodes_of_http_whose_list_names_hosts_and_ports_exclude_each_other(no_leaks: None) -> None:
    transport = HttpTransport()
    async with Node(transport=transport, membership=MemoryNetwork().membership(), name="one") as one:
        listed = f"static://localhost:{split_address(transport.address.removeprefix('http://'))[1]}"
        async with one.mutex("x"), Node(transport="http://127.0.0.1:0", membership=listed) as other:
            await eventually(lambda: one.statistics().peers == other.statistics().peers == 1, "they do not meet")
            with pytest.raises(AcquireTimeout):
                async with other.mutex("x", timeout=1):
                    pass


# --- receiving -------------------------------------------------------------------------------------------------------

FROM = {"Softmutex-From": "http://127.0.0.1:9"}
ONE_FRAME = b"\0\5hello"


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/softmutex", b"\xff" * 3000, FROM, 400),
        ("POST", "/softmutex", b"", FROM, 400),
        ("POST", "/softmutex", ONE_FRAME, {}, 400),
        ("POST", "/softmutex", ONE_FRAME, {"Softmutex-From": "file:///etc/passwd"}, 400),
        ("POST", "/softmutex", gzip.compress(ONE_FRAME * 10, mtime=0), FROM | {"Content-Encoding": "gzip"}, 400),
        ("POST", "/softmutex", bytes(MAX_BODY + 1), FROM, 413),
        ("GET", "/softmutex", b"", FROM, 405),
        ("POST", "/elsewhere", ONE_FRAME, FROM, 404),
        ("POST", "/softmutex", ONE_FRAME, FROM, 204),
        ("POST", "/prefix/softmutex", ONE_FRAME, FROM, 204),
    ],
)
async def test_only_a_list_of_frames_with_a_sender_is_taken(
    opened: Open, method: str, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    there = await opened(prefix="prefix")
    url = there.address.removesuffix("/prefix") + path
    async with aiohttp.ClientSession() as session, session.request(method, url, data=body, headers=headers) as answer:
        assert answer.status == status
    assert there.statistics()["received"] == (status == 204)
    assert there.statistics()["refused_requests"] == (status != 204)


async def test_a_body_without_an_announced_length_is_cut_off_too(opened: Open) -> None:
    there = await opened()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(10_000)

    async with aiohttp.ClientSession() as session:
        with contextlib.suppress(aiohttp.ClientError):  # the connection may close before the answer is read
            async with session.post(there.address + "/softmutex", data=endless(), headers=FROM) as answer:
                assert answer.status == 413
    assert there.statistics()["refused_requests"] == 1


async def test_a_connection_that_asks_for_nothing_is_closed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HEADER_S", 0.02), ("BODY_S", 0.02), ("SWEEP_S", 0.01)):
        monkeypatch.setattr(http_server, name, value)
    there = await opened()
    reader, writer = await connect(there)
    writer.write(b"POST /softmutex HTTP/1.1\r\nX-")  # and a byte a minute
    with contextlib.suppress(ConnectionError):  # closed without ceremony
        assert await asyncio.wait_for(reader.read(), 60) == b""
    assert there.statistics()["connections_closed"] == 1
    writer.close()


async def test_a_body_that_does_not_come_is_given_up(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BODY_S", 0.05)
    there = await opened()
    reader, writer = await connect(there)
    writer.write(b"POST /softmutex HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 60)
    writer.close()


async def test_of_too_many_connections_the_one_that_waits_longest_is_closed(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(http_server, "HEADER_S", 3600.0)
    here, there = await opened(), await opened()
    idle = [await connect(there) for _ in range(10)]
    here.send(there.address, b"let me in")
    assert await all_of(there, 1) == [b"let me in"]
    assert there.statistics()["connections_closed"] == 8
    for _, writer in idle:
        writer.close()


async def test_garbage_on_the_port_leaves_the_valid_stream_alone(opened: Open) -> None:
    here, there = await opened(), await opened()
    for number in range(50):
        _, writer = await connect(there)
        writer.write(b"\xff\0garbage\r\n\r\n" * 50)
        here.send(there.address, b"%d" % number)
        assert await all_of(there, 1) == [b"%d" % number]
        writer.close()


# --- certificates ----------------------------------------------------------------------------------------------------


async def test_a_peer_whose_certificate_nobody_vouches_for_is_not_talked_to(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    cert, key, ca = map(str, make_certificates(tmp_path / "ours"))
    their_cert, their_key, their_ca = map(str, make_certificates(tmp_path / "theirs"))
    here = await opened(tls=True, cert=cert, key=key, ca=ca)
    there = await opened(tls=True, cert=their_cert, key=their_key, ca=their_ca)
    here.send(there.address, b"hello")
    await eventually(lambda: here.statistics()["send_failed"] == 1, "the loss is not counted")
    assert there.statistics()["received"] == 0
    assert "its certificate is not trusted: " in here.troubles()[there.address]


async def test_a_port_that_speaks_no_tls_is_told_of_until_it_does(opened: Open, tmp_path: Path) -> None:
    cert, key, ca = map(str, make_certificates(tmp_path))
    here, there = await opened(tls=True, cert=cert, key=key, ca=ca), await opened()
    address = there.address.partition("://")[2]  # as a list has it
    here.send(address, b"hello")
    await eventually(lambda: here.statistics()["send_failed"] == 1, "the loss is not counted")
    assert "that port speaks no TLS, or another one" in here.troubles()[address]
    await there.aclose()
    here.send(address, b"hello")
    await eventually(lambda: here.statistics()["refused"] == 1, "nobody listens there any more")
    assert here.troubles() == {}
    assert [datagram.source for datagram in await here.receive()] == [address], "as it was given"


async def test_of_troubles_so_many_are_kept(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TROUBLES_MAX", 2)
    cert, key, ca = map(str, make_certificates(tmp_path))
    here, there = await opened(tls=True, cert=cert, key=key, ca=ca), await opened()
    for number in range(4):
        here.send(f"{there.address}/{number}".replace("http:", "https:"), b"hello")
    await eventually(lambda: here.statistics()["send_failed"] == 4, "the losses are not counted")
    assert len(here.troubles()) == 2


async def test_with_mutual_a_caller_without_a_certificate_is_not_heard(opened: Open, tmp_path: Path) -> None:
    cert, key, ca = map(str, make_certificates(tmp_path))
    there = await opened(tls=True, cert=cert, key=key, ca=ca, mutual=True)
    here = await opened(ca=ca)
    here.send(there.address, b"hello")
    await eventually(lambda: here.statistics()["send_failed"] == 1, "the loss is not counted")
    assert there.statistics()["received"] == 0


async def test_a_certificate_of_another_authority_is_told_of_where_certificates_are_mutual(
    opened: Open, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    cert, key, ca = map(str, make_certificates(tmp_path))
    other_cert, other_key, _ = map(str, make_certificates(tmp_path / "other"))
    there = await opened(tls=True, cert=cert, key=key, ca=ca, mutual=True)
    here = await opened(tls=True, cert=other_cert, key=other_key, ca=ca, mutual=True)
    for count in (1, 2):
        here.send(there.address, b"hello")
        await eventually(lambda count=count: here.statistics()["send_failed"] == count, "the loss is not counted")  # type: ignore[misc]
    assert there.statistics()["received"] == 0
    said = here.troubles()[there.address]
    assert "mutual=true" in said or "it does not trust the certificate of this node" in said


async def test_certificates_that_cannot_be_read_are_named_with_the_remedy(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("not a certificate")
    for cert in ("cert.pem", "missing.pem"):
        with pytest.raises(CannotOpen, match="Name readable PEM files"):
            await opened(tls=True, cert=str(tmp_path / cert), key=str(tmp_path / "cert.pem"))


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("https://127.0.0.1:0", "needs cert and key"),
        ("http://127.0.0.1:0?mutual=true", "wants https"),
        ("http://127.0.0.1:0?mutual=perhaps", "neither true nor false"),
        ("http://127.0.0.1:0?advertise=ftp1:9431", "give the URL"),
        ("http://127.0.0.1:0?advertize=http://a", "Did you mean 'advertise'"),
        ("http://127.0.0.1:x", "names no port"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_with_the_remedy(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        HttpTransport.from_url(url)


async def test_a_port_that_is_taken_is_named_with_the_remedy(opened: Open) -> None:
    there = await opened()
    with pytest.raises(CannotOpen, match="free port, or port 0"):
        await opened(*split_address(there.address.removeprefix("http://")))


def test_aiohttp_is_imported_by_those_who_use_it_only() -> None:
    code = "import softmutex_adapters.transports.http, sys; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
