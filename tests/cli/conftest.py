import os
from pathlib import Path

import pytest


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which local members meet in a directory of this test, and nowhere else."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SOFTMUTEX_")}
    return {**own, "SOFTMUTEX_MEMBERSHIP": f"local://?directory={tmp_path}/runtime"}
