"""HTCondor's transfer plug-in by its documented protocol, against a real FTP and a real HTTP server.

With a real HTCondor: benchmarks/condor.py, which needs a machine for it.
"""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses asyncore, which is on its way out
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import DTPHandler, FTPHandler
    from pyftpdlib.servers import FTPServer

from softmutex_adapters.schedulers.condor import File, Wanted, read_ads, wanted

from softmutex import ConfigError
from tests.schedulers.contract import wait_until

PLUGIN = [sys.executable, "-m", "softmutex_adapters.schedulers.condor"]
BREAKS_AFTER = 300_000


class BreakingDTP(DTPHandler):  # type: ignore[misc]
    """The data connection breaks once for each file whose name says so."""

    broken: set[str] = set()  # noqa: RUF012 the test's own

    def send(self, data: bytes) -> int:
        name = Path(getattr(self.file_obj, "name", "")).name
        if name.startswith("breaking") and name not in self.broken and self.tot_bytes_sent > BREAKS_AFTER:
            self.broken.add(name)
            self.cmd_channel.respond("426 The line broke.")
            self.close()
            return 0
        return int(super().send(data))


@pytest.fixture
def served(tmp_path: Path) -> Path:
    (tmp_path / "served").mkdir()
    return tmp_path / "served"


@pytest.fixture
def ftp(served: Path) -> Iterator[str]:
    """The address of a server of `served`."""
    authorizer = DummyAuthorizer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an anonymous user who may write: that is meant
        authorizer.add_anonymous(str(served), perm="elrw")
    handler = type(
        "Handler", (FTPHandler,), {"authorizer": authorizer, "dtp_handler": BreakingDTP, "use_sendfile": False}
    )
    BreakingDTP.broken = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = FTPServer(("127.0.0.1", 0), handler)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            server.ioloop.loop(timeout=0.05, blocking=False)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{server.address[1]}"
    over.set()
    thread.join()
    server.close_all()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "SOFTMUTEX_GROUP": f"condor-{os.getpid()}-{tmp_path.name}"[:60]}


def ad(url: str, local: Path) -> str:
    return f'[ LocalFileName = "{local}"; Url = "{url}" ]\n'


def run(ads: str, here: Path, environ: dict[str, str], *more: str) -> tuple[int, list[dict[str, str]]]:
    """The exit code, and the ads that came back."""
    (here / "in").write_text(ads)
    command = [*PLUGIN, "-infile", str(here / "in"), "-outfile", str(here / "out"), *more]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)
    assert not ran.stderr, ran.stderr
    said = (here / "out").read_text().splitlines()
    return ran.returncode, [dict(re.findall(r'(\w+) = ("(?:[^"\\]|\\.)*"|[^;\]]+?) ?[;\]]', each)) for each in said]


def test_it_says_what_it_can_do():
    said = subprocess.run([*PLUGIN, "-classad"], capture_output=True, text=True, check=True).stdout
    assert re.search(r"^MultipleFileSupport = true$", said, re.MULTILINE)
    assert re.search(r'^PluginType = "FileTransfer"$', said, re.MULTILINE)
    assert re.search(r'^SupportedMethods = "smftp,smhttp,smhttps"$', said, re.MULTILINE)


@pytest.mark.parametrize(
    "text",
    [
        '[ LocalFileName = "/x/a b"; Url = "smftp://h/a%20b" ][ Url = "smftp://h/c"; LocalFileName = "/x/c" ]',
        'LocalFileName = "/x/a b"\nUrl = "smftp://h/a%20b"\n\nLocalFileName = "/x/c"\nUrl = "smftp://h/c"\n',
    ],
)
def test_both_spellings_of_ads_are_read(text: str):
    assert list(read_ads(text)) == [File("smftp://h/a%20b", Path("/x/a b")), File("smftp://h/c", Path("/x/c"))]


def test_where_no_mutex_is_named_it_is_that_of_the_host():
    assert wanted("smftp://ftp.example/pub/x").mutex == "ftp.example"
    assert wanted("smftp://ftp.example/pub/x?mutex=nightly&slots=2&timeout=1h") == Wanted("nightly", 2, 3600.0, None)
    assert wanted("smftp://ftp.example/pub/x?slots=10&weight=3") == Wanted("ftp.example", 10, None, 3)
    assert wanted("smftp://ftp.example/x?ageing=1m&priority=5") == Wanted("ftp.example", 1, None, None, 60.0, 5)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("weight=", "whole number"),
        ("weight=three", "whole number"),
        ("wieght=3", "there is no 'wieght'. There are mutex, slots, weight"),
        ("priority=high&ageing=60", "0 to 9"),
        ("ageing=-5", "seconds"),
        ("timeout=soon", "seconds"),
    ],
)
def test_what_a_url_asks_wrongly_is_refused_in_words(query: str, said: str):
    with pytest.raises(ConfigError, match=said):
        wanted(f"smftp://ftp.example/x?{query}")


def test_what_else_a_url_of_http_asks_is_the_servers():
    assert wanted("smhttps://web.example/x?version=3&mutex=link").mutex == "link"


def test_a_priority_without_ageing_holds_the_job_with_the_reason(
    tmp_path: Path, served: Path, ftp: str, environ: dict[str, str]
):
    (served / "one").write_bytes(b"one")
    code, told = run(ad(f"smftp://{ftp}/one?priority=5", tmp_path / "one"), tmp_path, environ)
    assert (code, "ageing=60" in told[0]["TransferError"]) == (1, True)


def test_files_come_whole_and_the_ads_say_so(tmp_path: Path, served: Path, ftp: str, environ: dict[str, str]):
    data = os.urandom(500_000)
    (served / "one").write_bytes(data)
    (served / "two").write_bytes(b"two")
    ads = ad(f"smftp://{ftp}/one", tmp_path / "one") + ad(f"smftp://{ftp}/two", tmp_path / "two")
    code, told = run(ads, tmp_path, environ)
    assert code == 0
    assert [each["TransferSuccess"] for each in told] == ["true", "true"]
    assert told[0]["TransferTotalBytes"] == "500000"
    assert (tmp_path / "one").read_bytes() == data


def test_a_transfer_that_breaks_goes_on_where_it_stopped(
    tmp_path: Path, served: Path, ftp: str, environ: dict[str, str]
):
    data = os.urandom(2_000_000)
    (served / "breaking").write_bytes(data)
    code, told = run(ad(f"smftp://{ftp}/breaking", tmp_path / "got"), tmp_path, environ)
    assert code == 0, told
    assert BreakingDTP.broken == {"breaking"}
    assert (tmp_path / "got").read_bytes() == data


def test_a_file_that_is_not_there_fails_alone(tmp_path: Path, served: Path, ftp: str, environ: dict[str, str]):
    (served / "there").write_bytes(b"x")
    ads = ad(f"smftp://{ftp}/missing", tmp_path / "missing") + ad(f"smftp://{ftp}/there", tmp_path / "there")
    code, told = run(ads, tmp_path, environ)
    assert code == 1
    assert [each["TransferSuccess"] for each in told] == ["false", "true"]
    assert "550" in told[0]["TransferError"]


def test_an_upload_goes_there(tmp_path: Path, served: Path, ftp: str, environ: dict[str, str]):
    (tmp_path / "result").write_bytes(b"result")
    code, told = run(ad(f"smftp://{ftp}/up", tmp_path / "result"), tmp_path, environ, "-upload")
    assert code == 0, told
    assert told[0]["TransferType"] == '"upload"'
    assert (served / "up").read_bytes() == b"result"


def test_what_is_ours_in_the_query_does_not_reach_the_web_server(tmp_path: Path, environ: dict[str, str]):
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *arguments: Any) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"smhttp://127.0.0.1:{server.server_address[1]}/x?a=1&mutex=m&slots=2"
        code, told = run(ad(url, tmp_path / "got"), tmp_path, environ)
        server.shutdown()
        thread.join()
    assert code == 0, told
    assert asked == ["/x?a=1"]
    assert (tmp_path / "got").read_bytes() == b"ok"


def test_ten_jobs_on_two_machines_take_turns_and_a_late_one_fails(
    tmp_path: Path, served: Path, ftp: str, environ: dict[str, str]
):
    (served / "x").write_bytes(b"x")
    holds = [
        sys.executable,
        "-c",
        "from softmutex import sync\nwith sync.SoftMutex('127.0.0.1'): print(flush=1); input()",
    ]
    holder = subprocess.Popen(holds, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    holder.stdout.readline()
    jobs = []
    for number in range(10):
        here = tmp_path / f"job{number}"
        here.mkdir()
        (here / "in").write_text(ad(f"smftp://{ftp}/x", here / "got"))
        command = [*PLUGIN, "-infile", str(here / "in"), "-outfile", str(here / "out")]
        jobs.append(subprocess.Popen(command, env=environ))
    late = tmp_path / "late"
    late.mkdir()
    code, told = run(ad(f"smftp://{ftp}/x?timeout=0.5s", late / "got"), late, environ)
    assert code == 1
    assert "AcquireTimeout" in told[0]["TransferError"]
    assert not any((tmp_path / f"job{number}" / "got").exists() for number in range(10)), "somebody did not wait"
    holder.communicate("\n")
    wait_until(lambda: all(job.poll() is not None for job in jobs), "not all had their turn")
    assert [job.returncode for job in jobs] == [0] * 10
