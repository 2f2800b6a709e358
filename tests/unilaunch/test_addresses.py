"""The names of this host."""

import pytest

from unilaunch.addresses import own_names


@pytest.mark.parametrize(
    ("called", "host", "is_own"),
    [
        ("node0", "node0", True),
        ("node0", "node0.cluster.example", True),
        ("node0.cluster.example", "node0", True),
        ("node0.cluster.example", "node0.ib.example", True),
        ("node0", "node01.cluster.example", False),
        ("node0", "node0:1", False),
        ("node0", "127.0.0.1", True),
        ("203.0.113.7", "203.0.113.8", False),
    ],
)
def test_a_name_of_this_host(called: str, host: str, *, is_own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any domain or none; an address is compared as a whole."""
    monkeypatch.setattr("socket.gethostname", lambda: called)
    assert (host in own_names([host])) == is_own
