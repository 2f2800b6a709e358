"""The names and addresses of this host and of others."""

import pytest

from unilaunch.machine import addresses
from unilaunch.machine.addresses import own_addresses, own_names, resolve


@pytest.mark.parametrize(("called", "host", "is_own"), [
    ("node0", "node0.cluster.example", True),
    ("node0.cluster.example", "node0.ib.example", True),
    ("node0", "node01.cluster.example", False),
    ("node0", "127.0.0.1", True),
    ("203.0.113.7", "203.0.113.8", False),
])  # fmt: skip
def test_a_name_of_this_host(called: str, host: str, *, is_own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any domain or none; an address is compared as a whole."""
    monkeypatch.setattr("socket.gethostname", lambda: called)
    assert (host in own_names([host])) == is_own


@pytest.mark.parametrize("name", ["a..b", "no-such-host.invalid"])
def test_a_name_that_is_none_has_no_address(name: str) -> None:
    """Python refuses some before it asks a server, with another exception."""
    assert resolve(name) == []
    assert own_addresses([name], several=True)


def test_a_host_with_hundreds_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under kube-proxy, which has one for each service; what rank 0 posts must still fit."""
    found = [("kube-ipvs0", f"10.96.{number}.1") for number in range(250)] + [("eth0", "10.0.0.7"), ("eth0", "fd00::7")]
    monkeypatch.setattr(addresses, "interface_addresses", lambda: found)
    own = own_addresses(several=True)
    assert len(own) == 64
    assert {"10.0.0.7", "fd00::7"} < set(own[:10])
