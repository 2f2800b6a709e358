"""The plan of a restart, after the loss of a host."""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from unilaunch.errors import SpecError
from unilaunch.job.plan import make_plan
from unilaunch.job.restart import plan_again
from unilaunch.launch_spec import LaunchSpec
from unilaunch.options import parse
from unilaunch.reading import read_task

SLURM = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[0-2]", "SLURM_TASKS_PER_NODE": "2(x2),3"}


def _hosts_of_restart(words: str, environ: Mapping[str, str], lost: Sequence[str]) -> list[str]:
    """Return the hosts of the ranks, once the *lost* ones are left out."""
    if not (mpirun := shutil.which("mpirun", path="/usr/bin")):
        pytest.skip("no mpirun")
    line = ["launch", "--mpirun", mpirun, "--allow-run-as-root", "--elastic", *shlex.split(words)]
    given: dict[str, Any] = parse(line)
    for name in ("command", "dry_run", "json", "emit"):
        given.pop(name, None)
    plan = make_plan(read_task(LaunchSpec, given, environ), environ)
    return [row.host for row in plan_again(plan, lost, environ).rows]


def test_a_lost_host_of_an_allocation_is_left_out() -> None:
    """The user has named no hosts; those that are left have room for five of seven, or for all of four."""
    assert _hosts_of_restart("", SLURM, ["n1"]) == ["n0", "n0", "n2", "n2", "n2"]
    assert _hosts_of_restart("-n 4", SLURM, ["n1"]) == ["n0", "n0", "n2", "n2"]


def test_a_lost_host_of_an_allocation_of_lsf_is_left_out() -> None:
    assert _hosts_of_restart("", {"LSB_HOSTS": "n0 n0 n1"}, ["n1"]) == ["n0", "n0"]


def test_a_lost_host_is_left_out_where_only_mpirun_knew_it() -> None:
    assert set(_hosts_of_restart("-n 4 -H a:2,b:2 --rank-by node", {}, ["b"])) == {"a"}


def test_hosts_without_slots_keep_their_share(tmp_path: Path) -> None:
    """Of 12 ranks on three hosts four each, and not one."""
    (tmp_path / "hosts").write_text("a\nb\nc\n")
    assert len(_hosts_of_restart(f"-n 12 --hostfile {tmp_path}/hosts", {}, ["c"])) == 8


@pytest.mark.parametrize(
    ("words", "environ", "lost"),
    [
        ("-n 2 -H a:2,b:2 --rank-by node", {}, ["b.example.org"]),
        ("-n 2 -H a:2,b:2", {}, ["a", "b"]),
        ("-n 2", {"PBS_NODEFILE": "nodes"}, ["b"]),
    ],
)
def test_no_restart_with_a_lost_host(words: str, environ: Mapping[str, str], lost: Sequence[str]) -> None:
    """A lost host that is none of the job's names, all of its hosts, hosts that only mpirun reads."""
    with pytest.raises(SpecError, match=f"--elastic: {lost[0]}.* cannot be left out of the hosts"):
        _hosts_of_restart(words, environ, lost)
