"""What a resource manager has allocated to a shell."""

from pathlib import Path

import pytest

from unilaunch.launchers.allocation import allocated_hosts, hosts_to_name, is_allocated


@pytest.mark.parametrize(("nodes", "tasks", "expected"), [
    ("gpu[01-03],big", "2(x3),1", {"gpu01": 2, "gpu02": 2, "gpu03": 2, "big": 1}),
    ("n[0-1]", "3", {}), ("n[0-", "1", {}), ("n0", "many", {}),
])  # fmt: skip
def test_what_slurm_has_allocated(nodes: str, tasks: str, expected: dict[str, int]) -> None:
    """The tasks of each node; nothing where the two variables do not fit. Every mpirun reads them by itself."""
    environ = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": nodes, "SLURM_TASKS_PER_NODE": tasks}
    assert {host.name: host.slots for host in allocated_hosts(environ)} == expected
    assert hosts_to_name(environ) == ()


@pytest.mark.parametrize("environ", [
    {"PBS_NODEFILE": "a\na\nb\n"},
    {"LSB_DJOB_HOSTFILE": "a\na\nb\n", "LSB_MCPU_HOSTS": "c 1"},
    {"LSB_MCPU_HOSTS": "a 2 b 1", "LSB_HOSTS": "c"},
    {"LSB_HOSTS": "a a b"},
    {"PE_HOSTFILE": "a 1 all.q@a <NULL>\nb 1 all.q@b <NULL>\na 1 big.q@a <NULL>\n"},
], ids=lambda environ: next(iter(environ)))  # fmt: skip
def test_what_others_have_allocated(environ: dict[str, str], tmp_path: Path) -> None:
    """The slots of each host, which mpirun gets."""
    for name in [name for name in environ if name.endswith("FILE")]:
        (tmp_path / name).write_text(environ[name])
        environ[name] = str(tmp_path / name)
    assert [(host.name, host.slots) for host in hosts_to_name(environ)] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    "environ", [{"PBS_NODEFILE": "missing"}, {"PE_HOSTFILE": "/dev/null"}, {"LSB_MCPU_HOSTS": "a b c"}]
)
def test_an_allocation_that_cannot_be_read(environ: dict[str, str]) -> None:
    """Is one all the same: its hosts are mpirun's to find."""
    assert is_allocated(environ)
    assert hosts_to_name(environ) == allocated_hosts(environ) == ()


def test_a_shell_without_an_allocation() -> None:
    assert not is_allocated({"PBS_O_WORKDIR": "/"})
    assert hosts_to_name({}) == ()
