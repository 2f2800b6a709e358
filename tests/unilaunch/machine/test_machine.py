"""This host: its names and addresses, its limits and processors; connections that need the secret, and strangers."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from selectors import DefaultSelector

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.machine import cgroups, connections
from unilaunch.machine.addresses import own_names
from unilaunch.machine.cgroups import cpu_quota, memory_limit
from unilaunch.machine.connections import Dialer, Listener, NotProvenError, new_secret
from unilaunch.machine.devices import split_processors
from unilaunch.machine.limits import files_for_strangers


@pytest.mark.parametrize(("called", "host", "is_own"), [
    ("node0", "node0.cluster.example", True), ("node0.cluster.example", "node0.ib.example", True),
    ("node0", "node01.cluster.example", False), ("node0", "127.0.0.1", True), ("203.0.113.7", "203.0.113.8", False),
])  # fmt: skip
def test_a_name_of_this_host(called: str, host: str, *, is_own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any domain or none; an address is compared as a whole."""
    monkeypatch.setattr("socket.gethostname", lambda: called)
    assert (host in own_names([host])) == is_own


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the kernel's files of control groups are; "own" names those of this process."""
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "cpu" / "job" / "step").mkdir(parents=True)
    return tmp_path


def test_the_files_of_version_2(kernel: Path) -> None:
    """The smallest value of all levels, and not the nearest one."""
    for folder, memory, quota in (("job", "2000", "400000"), ("job/step", "3000", "600000"), ("", "max", "max")):
        (kernel / folder / "memory.max").write_text(f"{memory}\n")
        (kernel / folder / "cpu.max").write_text(f"{quota} 100000\n")
    for own, limits in (("/job/step", (2000, 4.0)), ("/seen/by/the/host", (None, None))):
        (kernel / "own").write_text(f"0::{own}\n")
        assert (memory_limit(), cpu_quota()) == limits
    (kernel / "cpu.max").write_text("50000 100000\n")
    assert cpu_quota() == 0.5


def test_the_files_of_version_1(kernel: Path) -> None:
    """A container sees its own cgroup as the root: the kernel's path of it does not exist there."""
    (kernel / "own").write_text("4:memory:/elsewhere\n3:cpu,cpuacct:/job/step\n")
    for folder, quota, expected in (
        ("", "-1", None),
        ("", "250000", 2.5),
        ("job", "400000", 2.5),
        ("job/step", "1", 1e-5),
    ):
        (kernel / "cpu" / folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (kernel / "cpu" / folder / "cpu.cfs_period_us").write_text("100000\n")
        assert cpu_quota() == expected
    (kernel / "memory").mkdir()
    (kernel / "memory" / "memory.limit_in_bytes").write_text("2000\n")
    assert memory_limit() == 2000


@pytest.mark.parametrize(("ranks", "cores", "expected"), [
    (2, [(0, 0), (0, 1), (0, 2), (0, 3)], [{0, 1}, {2, 3}]),
    (2, [(0, 0), (1, 1), (0, 2), (1, 3)], [{0, 2}, {1, 3}]),  # alternating memory nodes
    (2, [(0, 0), (0, 1), (0, 0), (0, 1)], [{0, 2}, {1, 3}]),  # two threads of each core
    (2, [(0, 0), (0, 1), (0, 2)], [{0}, {1, 2}]), (3, [(0, 0), (0, 1)], [{0, 1}] * 3),
])  # fmt: skip
def test_whole_cores(ranks: int, cores: list[tuple[int, int]], expected: list[set[int]], tmp_path: Path) -> None:
    """Of one memory node for each rank; more ranks than cores share all. The kernel says node and core of each."""
    for processor, (node, core) in enumerate(cores):
        topology = tmp_path / "cpu" / f"cpu{processor}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{core}\n")
        (topology.parent / f"node{node}").mkdir()
    assert split_processors(ranks, range(len(cores)), tmp_path) == expected


def test_strangers_leave_a_process_half_of_its_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs files for its own work: an agent that cannot open any ends, and the job with it."""
    assert files_for_strangers(1 << 60) == getrlimit(RLIMIT_NOFILE)[0] // 2
    monkeypatch.setattr(connections, "_UNPROVEN", 4)
    listener = socket.create_server(("127.0.0.1", 0))
    with ExitStack() as calling, DefaultSelector() as selector:
        acceptor = connections.Acceptor(listener, new_secret(), selector, lambda *_: None)
        for _ in range(9):
            calling.enter_context(socket.create_connection(listener.getsockname()))
            for key, _ in selector.select(0):
                key.data()
        assert len(acceptor.callers) == 4
        acceptor.close()


@given(pieces=st.lists(st.binary(max_size=120), max_size=6))
def test_whatever_a_stranger_sends_it_is_not_let_in(pieces: list[bytes]) -> None:
    greeting, read = Listener(new_secret(), "here 1"), 0
    with suppress(NotProvenError):
        for piece in filter(None, pieces):
            data = piece[: greeting.wanted]
            read += len(data)
            greeting.feed(data)
    assert greeting.identity is None
    assert read <= 76


@pytest.mark.parametrize("change", ["port", "address", "identity", "secret"])
def test_a_proof_is_for_one_place_one_rank_and_one_start(change: str) -> None:
    """So a false rank 0 cannot pass a caller's proof on."""
    secret = new_secret()
    listener, caller = Listener(secret, "here 1"), Dialer(secret, "here 1", 3)
    listener.feed(caller.feed(listener.feed(caller.hello)))
    assert listener.identity == 3
    other = {
        "port": Dialer(secret, "here 2", 3), "address": Dialer(secret, "there 1", 3),
        "identity": Dialer(secret, "here 1", 4), "secret": Dialer(new_secret(), "here 1", 3),
    }[change]  # fmt: skip
    answer = Listener(secret, "here 1").feed(caller.hello)
    other.challenge = caller.challenge
    with pytest.raises(NotProvenError):
        other.feed(answer)
