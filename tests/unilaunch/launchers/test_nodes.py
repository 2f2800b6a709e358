"""What resource managers and orchestrators say of the nodes, and what the user's own words do to it."""

from pathlib import Path

import pytest

from command_line import launch_options
from unilaunch.errors import UnilaunchError
from unilaunch.launchers.allocation import allocated_hosts, hosts_to_name, is_allocated
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_task


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
    {"PBS_NODEFILE": "a\na\nb\n"}, {"LSB_HOSTS": "a a b"}, {"LSB_MCPU_HOSTS": "a 2 b 1", "LSB_HOSTS": "c"},
    {"LSB_DJOB_HOSTFILE": "a\na\nb\n", "LSB_MCPU_HOSTS": "c 1"},
    {"PE_HOSTFILE": "a 1 all.q@a <NULL>\nb 1 all.q@b <NULL>\na 1 big.q@a <NULL>\n"},
], ids=lambda environ: next(iter(environ)))  # fmt: skip
def test_what_others_have_allocated(environ: dict[str, str], tmp_path: Path) -> None:
    for name in [name for name in environ if name.endswith("FILE")]:
        (tmp_path / name).write_text(environ[name])
        environ[name] = str(tmp_path / name)
    assert is_allocated(environ)
    assert [(host.name, host.slots) for host in hosts_to_name(environ)] == [("a", 2), ("b", 1)]


PET = {
    "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4", "PET_MASTER_ADDR": "10.0.0.1",
    "PET_MASTER_PORT": "29400",
}  # fmt: skip
SKYPILOT = {"SKYPILOT_NUM_NODES": "3", "SKYPILOT_NODE_RANK": "2", "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6\n10.0.0.7"}
SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_PROCID": "1",
}  # fmt: skip
INDEXED = {"JOB_COMPLETION_INDEX": "1"}


@pytest.mark.parametrize(("environ", "words", "expected"), [
    (PET, "", (2, 1, 8, "10.0.0.1", 29400)),
    (PET, "--nproc-per-node 2 --node-rank 0", (2, 0, 4, "10.0.0.1", 29400)),
    ({**PET, "PET_NNODES": "1"}, "-n 3", (1, None, 3, None, None)),
    (PET | {"TORCHELASTIC_RUN_ID": "x"}, "-n 3", (1, None, 3, None, None)),
    (PET, "-n 4 -H a:4", (1, None, 4, None, None)),
    (SKYPILOT, "--nproc-per-node 8", (3, 2, 24, "10.0.0.5", None)),
    ({}, "--nnodes 2 -n 2 --rdzv-endpoint a:29400", (2, None, 2, "a", 29400)),
    ({}, "--nnodes 2 -n 2 --rdzv-endpoint [fd00::1]", (2, None, 2, "fd00::1", None)),
    (SLURM, "--nproc-per-node 8", (2, 1, 16, "gpu03", 10007)),
    (SLURM | {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.5"}, "-n 2", (2, 1, 2, "gpu03,10.0.0.5", 10007)),
    (SLURM | {"SLURM_STEP_NUM_TASKS": "4"}, "-n 3", (1, None, 3, None, None)),
    (SLURM | {"SLURM_STEP_ID": "4294967291"}, "-n 3", (1, None, 3, None, None)),
    (INDEXED, "-n 3", (1, None, 3, None, None)),
    (INDEXED, "--nnodes 2 --nproc-per-node 2 --master-addr a", (2, 1, 4, "a", None)),
], ids=str)  # fmt: skip
def test_which_node_this_is(environ: dict[str, str], words: str, expected: tuple[object, ...]) -> None:
    """What is typed wins; hosts, a batch script, or several tasks on a node are no nodes by hand."""
    spec = read_task(LaunchSpec, launch_options(f"{words} gcn"), environ).spec
    assert (spec.nnodes, spec.node_rank, spec.nprocs, spec.master_addr, spec.master_port) == expected


@pytest.mark.parametrize(("change", "error"), [
    ({"PET_NNODES": "1:4"}, "the environment's nnodes: must be one number .a job that may lose hosts"),
    ({"PET_NODE_RANK": "one"}, "the environment's node_rank: must be a whole number, not 'one'"),
])  # fmt: skip
def test_a_wrong_number_is_named(change: dict[str, str], error: str) -> None:
    with pytest.raises(UnilaunchError, match=error):
        read_task(LaunchSpec, {"target": "gcn"}, PET | change)
