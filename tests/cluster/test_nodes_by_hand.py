"""A direct start on several hosts: the same line is typed on each, with torchrun's words; no ssh and no MPI."""

import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster.conftest import SECRET, TRAINING, UNILAUNCH, check_trained
from cluster.hosts import Cluster, Running
from jobs.mpirun import NUMPY, wait_until

WHO = """
import os
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "UNILAUNCH_SECRET"
print(*[os.environ.get(name) for name in names], os.environ["MASTER_PORT"] != "29477")
"""
#: In the second attempt the ranks of node 0 end first.
FAILING = """
import os, sys, time
count, node = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)), int(os.environ["GROUP_RANK"])
if os.environ["RANK"] == "3" and count == 0: sys.exit(7)
time.sleep(2 * node if count else 60)
print("attempt", count, flush=True)
if not node: os._exit(0)
"""
SAVING = """
import os, signal, subprocess, sys, time
from pathlib import Path
def save(*_):
    time.sleep(1)
    Path("saved." + os.environ["RANK"]).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
subprocess.Popen(["/bin/sleep", "9471"])
Path("ready." + os.environ["RANK"]).touch()
time.sleep(60)
"""


def _start_one(node: int, cluster: Cluster, folder: Path, environ: Mapping[str, str], *words: str) -> Running:
    options = ["--nnodes", "2", "--nproc-per-node", "2", *words]
    if "--rdzv-id" not in words:
        options = ["--master-addr", cluster.addresses[0], "--node-rank", str(node), *options]
    return cluster.start(node, [*UNILAUNCH, "launch", *options], folder, dict(environ))


def _start(
    cluster: Cluster, folder: Path, program: str, *words: str, environ: Mapping[str, str] = SECRET
) -> list[Running]:
    """Type the same line on both hosts, on the second one first."""
    (folder / "train.py").write_text(program)
    return [_start_one(node, cluster, folder, environ, *words, "train.py") for node in (1, 0)][::-1]


def _check_who(folder: Path) -> None:
    for rank in range(4):
        said = (folder / "log_output" / f"rank.{rank}" / "stdout").read_text().split()
        assert said == [str(rank), "4", str(rank % 2), "2", str(rank // 2), "None", "True"]


def test_a_training_has_the_curve_of_one_process(cluster: Cluster, curve: list[float], tmp_path: Path) -> None:
    """Over sockets between the hosts."""
    jobs = [_start_one(node, cluster, tmp_path, {**NUMPY, **SECRET}, "gcn", *TRAINING) for node in range(2)]
    ended = [job.finish() for job in jobs]
    check_trained(ended[0], 4, 2, curve, "unilaunch launch")
    assert ended[1].returncode == 0


@pytest.mark.parametrize("numbered", ["by hand", "as they come"])
def test_who_the_ranks_are(numbered: str, cluster: Cluster, tmp_path: Path) -> None:
    """As under torchrun: no rank has the launcher's port or the secret. Node 0 is the one that has the address."""
    words = ["--rdzv-backend", "c10d", "--rdzv-id", "7", "--rdzv-endpoint", f"{cluster.addresses[0]}:29477"]
    environ = {**SECRET, "MASTER_ADDR": cluster.addresses[0], "MASTER_PORT": "29477"}
    for job in _start(cluster, tmp_path, WHO, *words * (numbered == "as they come"), environ=environ):
        job.finish().check()
    _check_who(tmp_path)


def test_nodes_that_share_a_home_need_no_secret(cluster: Cluster, tmp_path: Path) -> None:
    """Node 0 leaves one there until the end; what a node 0 has left that was killed is not taken for it."""
    (tmp_path / "who.py").write_text(WHO)
    environ, left = {"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path / "cache" / "unilaunch" / "rendezvous"
    killed = _start_one(0, cluster, tmp_path, environ, "who.py")
    wait_until(lambda: list(left.glob("*")))
    cluster.kill(0, "unilaunch launch", signal.SIGKILL)
    killed.finish()
    (stale,) = left.iterdir()
    assert stale.stat().st_mode & 0o777 == 0o600
    other = _start_one(1, cluster, tmp_path, environ, "who.py")
    time.sleep(1.0)
    for job in (_start_one(0, cluster, tmp_path, environ, "who.py"), other):
        job.finish().check()
    _check_who(tmp_path)
    assert not stale.exists()


def test_a_failure_on_the_other_node_ends_both_and_starts_again(cluster: Cluster, tmp_path: Path) -> None:
    """Both nodes have its exit code; with --max-restarts both start their ranks again, and wait for each other's."""
    ended = [job.finish() for job in _start(cluster, tmp_path, FAILING)]
    assert [job.returncode for job in ended] == [7, 7]
    assert "rank 3 on node1 (cpu) failed: SystemExit: 7" in ended[0].stderr
    assert ended[1].refusals() == ["unilaunch: the job has ended with exit code 7: the console of node 0 says why"]
    jobs = _start(cluster, tmp_path, FAILING, "--max-restarts", "1", "--console", "all")
    again = [job.finish().check() for job in jobs]
    assert [job.stdout for job in again] == ["attempt 1\n" * 2] * 2  # each node shows its own ranks


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_is_ended_ends_both(node: int, number: signal.Signals, cluster: Cluster, tmp_path: Path) -> None:
    """Stopped, it is patient: every rank saves. Killed, the ranks of both nodes end, with what they have started."""
    jobs = _start(cluster, tmp_path, SAVING)
    wait_until(lambda: len(list(tmp_path.glob("ready.*"))) == 4)
    cluster.kill(node, "unilaunch launch", number)
    codes = [job.finish().returncode for job in jobs]
    if number == signal.SIGTERM:
        assert (codes, len(list(tmp_path.glob("saved.*")))) == ([143, 143], 4)
    assert 0 not in codes
    assert [*cluster.left("sleep 9471"), *cluster.left("unilaunch guard")] == []


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_cannot_begin_is_named_at_once(node: int, cluster: Cluster, tmp_path: Path) -> None:
    """Its ranks are not awaited for --timeout, 300 s; `launch` there says what has happened to its own processes."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\nif 'guard' in sys.orig_argv: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "sleep.py").write_text("import time\ntime.sleep(60)\n")
    environ = {node: SECRET | {"PYTHONPATH": str(tmp_path)}, 1 - node: SECRET}
    jobs = [_start_one(one, cluster, tmp_path, environ[one], "sleep.py") for one in (0, 1)]
    ended = [job.finish() for job in jobs]
    assert [job.returncode for job in ended] == [137, 137]
    assert f"the agent of node {node} (node{node}) was killed by SIGKILL before a rank began there" in ended[0].stderr
    assert ("the agent of this host was killed by SIGKILL" in ended[1].stderr) == (node == 1)
    assert max(job.seconds for job in ended) < 60


@pytest.mark.parametrize(("second", "variables", "where", "expected"), [
    ("train.py", {"UNILAUNCH_SECRET": "another secret 123"}, 0, "its UNILAUNCH_SECRET is not the one of node 0"),
    ("train.py", {"UNILAUNCH_SECRET": "short"}, 1, "UNILAUNCH_SECRET has 5 characters: expected 16 or more"),
    ("train.py", {}, 1, "node 0 has left no secret in "),
    ("other.py", SECRET, 0, "node 1 (node1) has other.py, and node 0 has train.py"),
    ("", {}, 0, "node 1 did not come within 3 s (--timeout)"),
], ids=["a secret", "short", "no secret", "another line", "nobody"])  # fmt: skip
def test_a_node_that_does_not_belong_is_named(
    second: str, variables: dict[str, str], where: int, expected: str, cluster: Cluster, tmp_path: Path
) -> None:  # fmt: skip
    """And no rank has started."""
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text("open('started', 'w')\n")
    jobs = [_start_one(0, cluster, tmp_path, SECRET, "--timeout", "3", "train.py")]
    if second:
        jobs += [_start_one(1, cluster, tmp_path, variables, "--timeout", "3", second)]
    ended = [job.finish() for job in jobs]
    assert 0 not in [job.returncode for job in ended]
    assert expected in ended[where].stderr
    assert not (tmp_path / "started").exists()
