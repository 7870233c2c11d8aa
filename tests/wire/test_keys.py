"""Where keys come from, and what is said of those that will not do."""

import base64
import os
from pathlib import Path

import pytest

from softmutex.core.errors import ConfigError
from softmutex.runtime.sealing import KeyRing, parse_key, read_keys

KEY, OTHER = bytes(range(200, 232)), bytes(range(1, 33))


def key_file(tmp_path: Path, content: bytes, mode: int = 0o600) -> Path:
    path = tmp_path / "group.key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "text",
    [
        KEY.hex(),
        KEY.hex().upper(),
        base64.b64encode(KEY).decode(),
        base64.urlsafe_b64encode(KEY).decode(),
        base64.b64encode(KEY).decode().rstrip("="),
        f"  {KEY.hex()}\n",
    ],
)
def test_a_key_is_hexadecimal_or_base64(text: str):
    assert parse_key(text, "SOFTMUTEX_KEY") == KEY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "s" * 32,
        KEY.hex()[:-2],
        KEY.hex() + "00",
        "zz" * 32,
        "ab " * 21 + "a",
        "é" * 44,
        "A" * 45,
        "=" * 44,
    ],
)
def test_what_is_no_key_is_refused_without_being_shown(text: str):
    with pytest.raises(ConfigError, match=r"^SOFTMUTEX_KEY: .*Make a key: ") as error:
        parse_key(text, "SOFTMUTEX_KEY")
    assert not text or text not in str(error.value)


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        (KEY, (KEY,)),
        (base64.b64encode(KEY) + b"\n", (KEY,)),
        (b"# of the lab\n\n" + OTHER.hex().encode() + b"\r\n  # the old one\n" + base64.b64encode(KEY), (OTHER, KEY)),
    ],
    ids=["raw", "base64", "two with remarks"],
)
def test_a_key_file_has_a_key_a_line_or_32_bytes(tmp_path: Path, content: bytes, keys: tuple[bytes, ...]):
    assert read_keys(key_file(tmp_path, content)) == keys
    assert read_keys(str(key_file(tmp_path, content, 0o400))) == keys


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o610])
def test_a_key_file_that_others_can_use_is_refused_with_the_remedy(tmp_path: Path, mode: int):
    path = key_file(tmp_path, KEY.hex().encode(), mode)
    with pytest.raises(ConfigError, match=rf"has mode {mode:04o}.* chmod 600 {path}"):
        read_keys(path)


def test_a_bad_line_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"group\.key, line 2: neither"):
        read_keys(key_file(tmp_path, KEY.hex().encode() + b"\nnot a key\n"))


@pytest.mark.parametrize("content", [b"", b"\n# nothing\n"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes):
    with pytest.raises(ConfigError, match=r"has no key in it. Make a key: softmutex key new .*group.key"):
        read_keys(key_file(tmp_path, content))


def test_what_cannot_be_read_is_refused_at_once(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"No such file or directory.*softmutex key new"):
        read_keys(tmp_path / "missing")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_keys(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigError, match="no key in it"):
        read_keys(tmp_path / "fifo")


def test_all_members_give_the_same_keys_the_same_ids_whatever_their_order():
    one, other = KeyRing.of(KEY, OTHER), KeyRing.of(OTHER, KEY)
    assert one.keys == other.keys
    assert one.keys[one.use] == KEY
    assert other.keys[other.use] == OTHER
    assert KeyRing.of(KEY, KEY) == KeyRing.of(KEY)


def test_two_keys_of_one_id_are_refused():
    (number,) = KeyRing.of(KEY).keys
    twin = next(key for key in (n.to_bytes(32) for n in range(10_000)) if number in KeyRing.of(key).keys)
    with pytest.raises(ConfigError, match=f"share the id {number}. Make the new one once more"):
        KeyRing.of(KEY, twin)


@pytest.mark.parametrize(
    ("keys", "use", "told"),
    [
        ({0: KEY}, 0, "key id 0: take one from 1 to 255"),
        ({256: KEY}, 256, "key id 256"),
        ({1: KEY[:31]}, 1, "key 1 has 31 bytes, and must have 32"),
        ({1: KEY}, 2, r"key 2 is to seal, and there is none \(there are: \[1\]\)"),
        ({}, 1, "there is none"),
    ],
)
def test_an_impossible_ring_is_refused(keys: dict[int, bytes], use: int, told: str):
    with pytest.raises(ConfigError, match=told):
        KeyRing(keys, use)


def test_a_ring_does_not_show_its_keys():
    assert repr(KEY)[3:10] not in repr(KeyRing.of(KEY))
    assert KEY.hex() not in repr(KeyRing.of(KEY))
