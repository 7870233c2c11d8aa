"""Modules that are loaded where they are first used: each in a Python of its own, in which nothing has loaded them."""

import subprocess
import sys

import pytest

from softmutex.cli.lazily import OF_ASYNCIO, spec_of


def run(code: str) -> str:
    first = "import sys\nfrom softmutex.cli.lazily import *\nload_on_use()\nimport asyncio\n"
    ran = subprocess.run([sys.executable, "-c", first + code], capture_output=True, text=True, timeout=100)
    assert not ran.stderr
    return ran.stdout.strip()


def test_asyncio_runs_without_them():
    assert run("asyncio.run(asyncio.sleep(0)); print({'_ssl', 'ast', 'token'} & {*sys.modules})") == "set()"


@pytest.mark.parametrize(
    "use",
    [
        "import ssl; print(isinstance(ssl.create_default_context(), ssl.SSLContext))",
        "from ssl import SSLContext; print(SSLContext.__module__ == 'ssl')",
        "import inspect; print(inspect.iscoroutinefunction(asyncio.sleep))",
        "import textwrap; print(textwrap.dedent(' True'))",
        "print(asyncio.sslproto.SSLProtocol.__mro__[1] is asyncio.BufferedProtocol)",
        "import ssl; print(type(ssl) is not type(sys)); ssl.OPENSSL_VERSION; print(type(ssl) is type(sys))",
    ],
)
def test_who_uses_one_notices_nothing(use: str):
    assert run(use).split()[-1] == "True"


def test_an_error_is_told_with_the_lines_of_its_trace():
    said = run("import traceback\ntry: asyncio.run(asyncio.gather())\nexcept Exception: print(traceback.format_exc())")
    assert "Traceback" in said and "asyncio" in said


def test_asyncio_itself_may_use_them():
    """`sock_recv` looks whether it is given a socket of TLS."""
    code = (
        "import socket\n"
        "async def main():\n"
        "    one, other = socket.socketpair()\n"
        "    one.setblocking(False); other.send(b'True')\n"
        "    print((await asyncio.get_running_loop().sock_recv(one, 4)).decode())\n"
        "asyncio.run(main())\n"
    )
    assert run(code) == "True"


def test_threads_that_want_it_at_once_all_get_it():
    code = (
        "import ssl\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    print(len({*pool.map(lambda _: ssl.create_default_context.__name__, range(8))}) == 1)\n"
    )
    assert run(code) == "True"


def test_what_it_has_not_is_an_attribute_error():
    assert run("import ssl; print(getattr(ssl, 'nothing', 'True'), hasattr(ssl, 'nothing'))") == "True False"


def test_what_is_there_already_or_nowhere_is_left_alone():
    assert (
        run(
            "before = sys.modules['json'] = object(); load_on_use(['json', 'nowhere'])\n"
            "print(sys.modules['json'] is before and 'nowhere' not in sys.modules)"
        )
        == "True"
    )


def test_each_of_them_is_found():
    assert all(spec_of(name) is not None for name in OF_ASYNCIO)
