"""URLs of adapters: what is misspelled is named, with the nearest right one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softmutex.core.errors import ConfigError
from softmutex.urls import Url, join_address, split_address


def test_what_was_taken_is_known_and_what_is_left_is_a_mistake() -> None:
    url = Url("udp://0.0.0.0:9431?advertise=ftp1%3A9431&queue=64&fast=yes")
    assert url.host_and_port() == ("0.0.0.0", 9431)
    assert url.text("advertise") == "ftp1:9431"
    assert url.integer("queue", 7) == 64
    assert url.flag("fast") is True
    assert url.number("delay", 0.5) == 0.5
    url.finish()
    misspelled = Url("udp://?qeue=64")
    misspelled.integer("queue", 7)
    misspelled.text("advertise")
    with pytest.raises(
        ConfigError, match=r"no option 'qeue'\. Did you mean 'queue'\? Options of udp://: advertise, queue"
    ):
        misspelled.finish()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("127.0.0.1:9431", "wants the form scheme://place"),
        ("://x", "wants the form scheme://place"),
        ("udp://x?queue", "name=value"),
        ("udp://x?queue=1&queue=2", "stands there twice"),
    ],
)
def test_what_is_no_url_says_what_one_looks_like(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Url(url)


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("n=many", "not a number"),
        ("n=1.5", "not a whole number"),
        ("n=-1", "not between 0 and 9"),
        ("n=10", "not between 0 and 9"),
        ("n=nan", "not between 0 and 9"),
    ],
)
def test_a_number_out_of_its_bounds_is_refused(query: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Url(f"udp://x?{query}").integer("n", 5, high=9)


@pytest.mark.parametrize(
    "place", ["ftp1:9431/path", "user@ftp1:9431", "::1", "[::1", "ftp1:port", "ftp1:65536", "ftp1:²"]
)
def test_a_place_that_is_not_host_and_port_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match=r"host:port|IPv6|no port"):
        Url(f"udp://{place}").host_and_port()


@given(st.from_regex(r"[a-z0-9.:%]{1,20}", fullmatch=True), st.integers(0, 65535))
def test_addresses_are_put_together_and_taken_apart(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        host, port = split_address(text)
    except ValueError:
        return
    assert host and 0 <= port <= 65535
