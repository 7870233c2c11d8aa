"""The page on the wire says what is declared: another implementation is written from it."""

import re
import subprocess
import sys
from pathlib import Path

from softmutex.core.messages import name_of
from softmutex.core.wire import VERSION, decode
from tests.wire.shapes import KINDS, fields_of

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_page_has_every_message_with_its_number_its_fields_and_bytes_that_can_be_read():
    page = subprocess.run([sys.executable, DOCS / "wire_page.py"], capture_output=True, text=True, check=True).stdout
    assert f"is the version, {VERSION} today" in page
    sections = dict(re.findall(r"^### (\d+ [A-Z_]+)\n(.*?)(?=^### |\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(sections) == {f"{number} {name_of(cls)}" for number, cls in KINDS.items()}
    for number, cls in KINDS.items():
        section = sections[f"{number} {name_of(cls)}"]
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(fields_of(cls))
        frame = re.search(r"A frame of it, unsealed: `([0-9a-f]+)`", section)
        assert frame, f"{cls.__name__} is not in tests/wire/vectors.json: pytest tests/wire --rewrite"
        assert isinstance(decode(bytes.fromhex(frame[1])).message, cls)
    assert "{{ wire }}" in (DOCS / "reference" / "wire.md").read_text()
