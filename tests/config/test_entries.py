"""What packages have registered, found without `importlib.metadata`: the same."""

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from zipfile import ZipFile

import pytest

from softmutex import entries
from softmutex.entries import RegisteredEntry

FILE = """
[console_scripts]
pigeon = pigeons:main

[softmutex.transports]
# by air
carrier-pigeon = pigeons.air:Pigeon.of_the_loft
 fast.pigeon=pigeons [speed]
; the end
[softmutexes]
no = pigeons:no
"""
FOUND = (
    RegisteredEntry("carrier-pigeon", "pigeons.air:Pigeon.of_the_loft", "softmutex.transports"),
    RegisteredEntry("fast.pigeon", "pigeons [speed]", "softmutex.transports"),
)


def test_all_is_found_that_importlib_metadata_finds():
    there = entry_points()
    groups = [group for group in there.groups if group.startswith("softmutex.")]
    assert {"softmutex.transports", "softmutex.memberships", "softmutex.algorithms", "softmutex.commands"} <= {*groups}
    for group in groups:
        assert {one.name: one.value for one in entries.entries(group).values()} == {
            one.name: one.value for one in there.select(group=group)
        }


def test_a_file_is_read_as_the_specification_has_it():
    assert tuple(entries.parsed(FILE)) == FOUND


def install(place: Path, name: str, text: str) -> None:
    (place / name).mkdir(parents=True)
    (place / name / "entry_points.txt").write_text(text)


def test_of_two_versions_of_a_package_the_one_that_is_imported_counts(tmp_path: Path):
    install(tmp_path / "a", "Pigeons-2.dist-info", FILE)
    install(tmp_path / "b", "pigeons-1.dist-info", "[softmutex.transports]\nowl = owls:Owl\n")
    install(tmp_path / "b", "owls-1.egg-info", "[softmutex.observers]\nowl = owls:Owl\n")
    (tmp_path / "b" / "crows-1.dist-info").mkdir()
    places = (str(tmp_path / "a"), str(tmp_path / "no"), str(tmp_path / "b"))
    assert entries.registered(places) == (*FOUND, RegisteredEntry("owl", "owls:Owl", "softmutex.observers"))


def test_a_place_that_is_no_directory_is_left_to_importlib_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with ZipFile(tmp_path / "all.zip", "w") as packed:
        packed.writestr("pigeons-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: pigeons\nVersion: 1\n")
        packed.writestr("pigeons-1.dist-info/entry_points.txt", FILE.replace("; the end\n", ""))
    monkeypatch.syspath_prepend(str(tmp_path / "all.zip"))
    assert "carrier-pigeon" in entries.entries("softmutex.transports")
    assert "udp" in entries.entries("softmutex.transports")


@pytest.mark.parametrize("value", ["os.path", "os:path.join", "collections.abc : Mapping", "os:sep [speed]"])
def test_what_is_loaded_is_what_importlib_metadata_loads(value: str):
    assert RegisteredEntry("x", value, "g").load() is EntryPoint("x", value, "g").load()
    assert "os" in sys.modules
