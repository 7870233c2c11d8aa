"""The registry does what its OpenAPI description says, whatever is sent to it: schemathesis, a short budget."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from softmutex_adapters.registry.description import description
from softmutex_adapters.registry.hub import Hub
from softmutex_adapters.registry.server import RegistryServer
from softmutex_adapters.registry.sqlite_store import SqliteStore

from tests.registry.inside import signer_of
from tests.registry.serving import Served

TOKEN = "a-token-for-all-groups"
# A stream has an end only where it is asked for one.
CONFIG = """
[[operations]]
include-path = "/v1/groups/{group}/events"
parameters = { "query.wait" = 0.05 }

[[operations]]
include-path = "/v1/groups/{group}/members"
parameters = { "query.wait" = 0 }

[[operations]]
include-path = "/v1/groups/{group}/picture"
parameters = { "query.wait" = 0 }
"""


async def test_the_description_names_every_endpoint_and_no_other(tmp_path: Path):
    server = RegistryServer(Hub(SqliteStore(str(tmp_path / "registry.db")), signer_of(tmp_path)))
    served = {(route.path, method.lower()) for route in server.routes for method in route.methods}
    paths = description(has_tokens=True)["paths"]
    assert {(path, method) for path, told in paths.items() for method in told.keys() - {"parameters"}} == served


@pytest.mark.parametrize(
    ("has_token", "examples"),
    [(True, 4), *(pytest.param(has_token, 15, marks=pytest.mark.slow) for has_token in (True, False))],
)
def test_every_endpoint_holds_what_its_description_promises(tmp_path: Path, has_token: bool, examples: int):
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    limits = ["--rate-address", "100000", "--rate-group", "100000"]
    registry = Served(tmp_path, *limits, tokens=[f"admin {TOKEN}"] if has_token else [])
    registry.start()
    try:
        command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{registry.base}/openapi.json"]
        command += ["--max-examples", str(examples), "--seed", "1", "--request-timeout", "60", "--no-color"]
        command += ["--phases", "examples,coverage,fuzzing", "--generation-database", "none"]
        command += ["-H", f"Authorization: Bearer {TOKEN}"] if has_token else []
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
        count = sum(len(told.keys() - {"parameters"}) for told in description(has_token)["paths"].values())
        count -= 1  # the description itself, which schemathesis has fetched already
        assert f"{count} selected / {count} total" in run.stdout, "no endpoint was left out"
        with urllib.request.urlopen(f"{registry.base}/healthz", timeout=60) as answer:
            assert answer.status == 200
        assert registry.metric("breakdowns_total") == 0
    finally:
        assert registry.stop() == 0
