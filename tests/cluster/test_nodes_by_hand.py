"""A direct start on several hosts: the same line is typed on each, with torchrun's words; no ssh and no MPI."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from cluster.conftest import EPOCHS, check_trained
from cluster.hosts import Cluster, Running
from jobs.mpirun import NUMPY, wait_until

SECRET = {"UNILAUNCH_SECRET": "3f0a8d6e71b24c55"}


def _line(node: int, cluster: Cluster, words: Sequence[str]) -> list[str]:
    common = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", cluster.addresses[0]]
    return [sys.executable, "-m", "unilaunch", "launch", *common, "--node-rank", str(node), *words]


def _start(cluster: Cluster, words: Sequence[str], folder: Path, environ: dict[str, str]) -> list[Running]:
    """Type the same line on both hosts, on the second one first."""
    return [cluster.start(node, _line(node, cluster, words), folder, environ) for node in (1, 0)][::-1]


def _await_files(folder: Path, pattern: str, number: int = 4) -> None:
    wait_until(lambda: len(list(folder.glob(pattern))) == number)


def _logs(folder: Path) -> list[list[str]]:
    return [(folder / "log_output" / f"rank.{rank}" / "stdout").read_text().split() for rank in range(4)]


def test_a_training_has_the_curve_of_one_process(cluster: Cluster, curve: list[float], tmp_path: Path) -> None:
    """Over sockets between the hosts."""
    words = ["gcn", "--epochs", str(EPOCHS), "--data-dir", "data", "--backend", "numpy"]
    jobs = _start(cluster, words, tmp_path, {**NUMPY, **SECRET})
    ended = [job.finish() for job in jobs]
    check_trained(ended[0], 4, 2, curve, "unilaunch launch")
    assert ended[1].returncode == 0


def test_who_the_ranks_are(cluster: Cluster, tmp_path: Path) -> None:
    """As under torchrun; the launcher's port is not that of the ranks, and no rank has the secret."""
    (tmp_path / "who.py").write_text(
        "import os\n"
        "names = 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'UNILAUNCH_SECRET'\n"
        "print(*[os.environ.get(name) for name in names], os.environ['MASTER_PORT'] != '29477')\n"
    )
    environ = {**SECRET, "MASTER_ADDR": cluster.addresses[0], "MASTER_PORT": "29477"}
    for job in _start(cluster, ["who.py"], tmp_path, environ):
        job.finish().check()
    placed = [[str(rank), "4", str(rank % 2), "2", str(rank // 2), "None", "True"] for rank in range(4)]
    assert _logs(tmp_path) == placed


def test_nodes_may_be_numbered_as_they_come(cluster: Cluster, tmp_path: Path) -> None:
    """In torchrun's words: node 0 is the one that has the address, whichever comes first."""
    (tmp_path / "who.py").write_text("import os\nprint(os.environ['RANK'], os.environ['GROUP_RANK'])\n")
    meeting = ["--rdzv-backend", "c10d", "--rdzv-id", "7", "--rdzv-endpoint", f"{cluster.addresses[0]}:29488"]
    line = [sys.executable, "-m", "unilaunch", "launch", "--nnodes", "2", "--nproc-per-node", "2", *meeting, "who.py"]
    for job in [cluster.start(node, line, tmp_path, SECRET) for node in (1, 0)]:
        job.finish().check()
    assert _logs(tmp_path) == [["0", "0"], ["1", "0"], ["2", "1"], ["3", "1"]]


def test_nodes_that_share_a_home_need_no_secret(cluster: Cluster, tmp_path: Path) -> None:
    """Node 0 leaves one there until the end; what a node 0 has left that was killed is not taken for it."""
    (tmp_path / "who.py").write_text("import os\nprint(os.environ['RANK'], os.environ.get('UNILAUNCH_SECRET'))\n")
    environ, left = {"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path / "cache" / "unilaunch" / "rendezvous" / "*"
    killed = cluster.start(0, _line(0, cluster, ["who.py"]), tmp_path, environ)
    _await_files(left.parent, left.name, 1)
    os.kill(cluster.first(0, "unilaunch launch"), signal.SIGKILL)
    killed.finish()
    (stale,) = left.parent.glob(left.name)
    assert stale.stat().st_mode & 0o777 == 0o600
    other = cluster.start(1, _line(1, cluster, ["who.py"]), tmp_path, environ)
    time.sleep(1.0)
    first = cluster.start(0, _line(0, cluster, ["who.py"]), tmp_path, environ)
    for job in (first, other):
        job.finish().check()
    assert _logs(tmp_path) == [[str(rank), "None"] for rank in range(4)]
    assert not stale.exists()


def test_a_failure_on_the_other_node_ends_both_and_starts_again(cluster: Cluster, tmp_path: Path) -> None:
    """Both nodes have its exit code; with --max-restarts both start their ranks again, and how they ended is forgotten.

    In the second attempt the ranks of node 0 end first: it waits for those of the other node.
    """
    (tmp_path / "fail.py").write_text(
        "import os, sys, time\ncount = int(os.environ.get('TORCHELASTIC_RESTART_COUNT', 0))\n"
        "if os.environ['RANK'] == '3' and count == 0: sys.exit(7)\n"
        "node = int(os.environ['GROUP_RANK'])\ntime.sleep(2 * node if count else 60)\n"
        "print('attempt', count, flush=True)\nif not node: os._exit(0)\n"
    )
    jobs = _start(cluster, ["fail.py"], tmp_path, SECRET)
    ended = [job.finish() for job in jobs]
    assert [job.returncode for job in ended] == [7, 7]
    assert "rank 3 on node1 (cpu) failed: SystemExit: 7" in ended[0].stderr
    assert ended[1].refusals() == ["unilaunch: the job has ended with exit code 7: the console of node 0 says why"]
    jobs = _start(cluster, ["--max-restarts", "1", "--console", "all", "fail.py"], tmp_path, SECRET)
    again = [job.finish().check() for job in jobs]
    assert [job.stdout for job in again] == ["attempt 1\n" * 2] * 2  # each node shows its own ranks


@pytest.mark.parametrize("node", [0, 1])
def test_a_stop_on_either_node_is_patient(node: int, cluster: Cluster, tmp_path: Path) -> None:
    """Every rank saves, and both nodes end as stopped."""
    (tmp_path / "save.py").write_text(
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "def save(*_):\n    time.sleep(1)\n    Path('saved.' + os.environ['RANK']).touch()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nPath('ready.' + os.environ['RANK']).touch()\ntime.sleep(60)\n"
    )
    jobs = _start(cluster, ["save.py"], tmp_path, SECRET)
    _await_files(tmp_path, "ready.*")
    os.kill(cluster.first(node, "unilaunch launch"), signal.SIGTERM)
    assert [job.finish().returncode for job in jobs] == [143, 143]
    assert len(list(tmp_path.glob("saved.*"))) == 4


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_is_killed_leaves_nothing(node: int, cluster: Cluster, tmp_path: Path) -> None:
    """`launch` there is killed: the ranks of both nodes end, with what they have started."""
    (tmp_path / "sleep.py").write_text(
        "import os, subprocess, time\nfrom pathlib import Path\n"
        "subprocess.Popen(['/bin/sleep', '9471'])\nPath('ready.' + os.environ['RANK']).touch()\ntime.sleep(60)\n"
    )
    jobs = _start(cluster, ["sleep.py"], tmp_path, SECRET)
    _await_files(tmp_path, "ready.*")
    os.kill(cluster.first(node, "unilaunch launch"), signal.SIGKILL)
    assert 0 not in [job.finish().returncode for job in jobs]
    assert [*cluster.left("sleep 9471"), *cluster.left("unilaunch guard")] == []


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_cannot_begin_is_named_at_once(node: int, cluster: Cluster, tmp_path: Path) -> None:
    """Its ranks are not awaited for --timeout, 300 s; `launch` there says what has happened to its own processes."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\nif 'guard' in sys.orig_argv: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "sleep.py").write_text("import time\ntime.sleep(60)\n")
    environ = [SECRET | ({"PYTHONPATH": str(tmp_path)} if one == node else {}) for one in (0, 1)]
    jobs = [cluster.start(one, _line(one, cluster, ["sleep.py"]), tmp_path, environ[one]) for one in (0, 1)]
    first, other = (job.finish() for job in jobs)
    assert [first.returncode, other.returncode] == [137, 137]
    assert f"the agent of node {node} (node{node}) was killed by SIGKILL before a rank began there" in first.stderr
    assert ("the agent of this host was killed by SIGKILL" in other.stderr) == (node == 1)
    assert max(first.seconds, other.seconds) < 60


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
    jobs = [cluster.start(0, _line(0, cluster, ["--timeout", "3", "train.py"]), tmp_path, SECRET)]
    if second:
        jobs += [cluster.start(1, _line(1, cluster, ["--timeout", "3", second]), tmp_path, variables)]
    ended = [job.finish() for job in jobs]
    assert 0 not in [job.returncode for job in ended]
    assert expected in ended[where].stderr
    assert not (tmp_path / "started").exists()
