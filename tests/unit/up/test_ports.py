"""Addresses are read, picked and refused."""

import socket

import pytest

from gateway.up.ports import free_port, settle_address, split_address, visit_url
from gateway.up.processes import UpError


@pytest.mark.parametrize(
    ("address", "split"), [("127.0.0.1:8000", ("127.0.0.1", 8000)), ("[::1]:0", ("::1", 0)), ("box:1", ("box", 1))]
)
def test_an_address_is_split(address: str, split: tuple[str, int]) -> None:
    assert split_address(address) == split


@pytest.mark.parametrize("address", ["8000", ":8000", "host:", "host:many", "host:65536", "host:-1", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UpError, match="is no HOST:PORT, such as"):
        split_address(address)


def test_a_taken_address_is_refused_with_the_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UpError, match=f"the gateway cannot listen on {address}: .*in use; try another"):
            settle_address(address, "the gateway", "try another")


def test_a_free_address_stays_and_port_0_becomes_a_free_one() -> None:
    address = f"127.0.0.1:{free_port()}"
    assert settle_address(address, "the gateway", "") == address
    host, port = split_address(settle_address("127.0.0.1:0", "the gateway", ""))
    assert host == "127.0.0.1"
    assert port > 0


def test_picked_ports_differ() -> None:
    assert len({free_port() for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:1", "http://127.0.0.1:1"),
        ("0.0.0.0:2", "http://127.0.0.1:2"),
        ("[::]:3", "http://[::1]:3"),
        ("box:4", "http://box:4"),
    ],
)
def test_a_listening_address_is_visited_by_url(address: str, url: str) -> None:
    assert visit_url(address) == url
