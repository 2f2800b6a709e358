"""An unprivileged user of this machine attacks a job whose public names and numbers are known.

The stranger calls every listening process, so the two share a separate network: another test's mpirun might crash.
"""

import ctypes
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen, run
from typing import Any

import pytest

from jobs.mpirun import finish, unilaunch
from jobs.slurm import lacking, slurm_cluster

pytestmark = pytest.mark.usefixtures("by_numpy")

STRANGER = Path(__file__).parent / "programs" / "stranger.py"
NOBODY = 65534
RUN = ["-m", "unilaunch", "run", "--epochs", "5", "--data-dir", "data"]
LONG = ["--epochs", "400", "--data-dir", "data"]


@pytest.fixture(autouse=True)
def own_network() -> Iterator[None]:
    """Move this thread, and so all that it starts, into a network namespace with a loopback interface alone."""
    if os.geteuid():
        pytest.skip("no other user can be had: this machine lacks root")
    library = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before:
        assert library.unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWNET
        try:
            run(["ip", "link", "set", "lo", "up"], check=True)
            # Slurm's daemons ask for names with AI_ADDRCONFIG, which finds nothing where 127.0.0.1 is all there is.
            for own in {"192.0.2.1", socket.gethostbyname(socket.gethostname())} - {"127.0.0.1"}:
                run(["ip", "address", "add", f"{own}/32", "dev", "lo"], check=True)
            yield
        finally:
            assert library.setns(before.fileno(), 0) == 0, os.strerror(ctypes.get_errno())


@contextmanager
def _attacked(folder: Path, *runs: str) -> Iterator[None]:
    """Have a stranger attack while the block runs, to no effect; he can read nothing in the folder of named *runs*."""
    folder_of_his = Path(tempfile.mkdtemp())  # he cannot read pytest's
    folder_of_his.chmod(0o755)
    copy = Path(shutil.copy(STRANGER, folder_of_his))
    copy.chmod(0o644)
    line = [shutil.which("python3", path="/usr/bin:/bin") or sys.executable, str(copy), "12", str(folder), *runs]
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/", "env": {}}
    with Popen(line, stdin=PIPE, stdout=PIPE, text=True, **user) as stranger:
        assert stranger.stdin
        assert stranger.stdout
        assert stranger.stdout.readline() == "ready\n"
        yield
        stranger.stdin.close()
        achieved: dict[str, int] = json.loads(stranger.stdout.readline())
    shutil.rmtree(folder_of_his)
    assert achieved["called"], "the stranger found no socket of the job: this test has shown nothing"
    assert achieved["believed"] == achieved["let in"] == 0
    assert not runs or achieved["read"] == 0


def test_a_stranger_under_torchrun_with_a_static_rendezvous(tmp_path: Path) -> None:
    """He is not rank 0, not rank 1, reads nothing, and neither he nor his silent connections stop the job."""
    options = ["--nnodes", "1", "--nproc-per-node", "2", "--rdzv-backend", "static", "--master-port", "29531"]
    with _attacked(tmp_path / "cache", "torchrun-none-127.0.0.1-29531"):
        line = [str(Path(sys.executable).parent / "torchrun"), *options, *RUN]
        job = finish(line, tmp_path, {"XDG_CACHE_HOME": str(tmp_path / "cache")}).check()
    assert job.result["world_size"] == 2
    assert [path.name for path in sorted(job.output.glob("rank.*"))] == ["rank.0", "rank.1"]


def test_a_stranger_under_launch(tmp_path: Path) -> None:
    """The monitor listens too; a stranger's messages to it end nothing."""
    words = ["launch", "--allow-run-as-root", "--oversubscribe", "-n", "2", *LONG]
    with _attacked(tmp_path / "log_output"):
        assert unilaunch(words, tmp_path).check().result["world_size"] == 2


def test_a_stranger_between_two_nodes(tmp_path: Path) -> None:
    """He calls node 0 before node 1 does, and knows all but the secret: he is no node, and no rank."""
    words = ["launch", "--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", "29533"]
    environ = {"UNILAUNCH_SECRET": os.urandom(16).hex()}
    with _attacked(tmp_path / "log_output"), ThreadPoolExecutor() as nodes:
        first = nodes.submit(unilaunch, [*words, *LONG, "--node-rank", "0"], tmp_path, environ)
        time.sleep(1.0)
        second = nodes.submit(unilaunch, [*words, *LONG, "--node-rank", "1"], tmp_path, environ)
        assert first.result().check().result["world_size"] == 4
        assert second.result().returncode == 0


def test_a_stranger_under_srun(tmp_path: Path) -> None:
    """The numbers of jobs and steps are public too."""
    if missing := lacking():
        pytest.skip(f"no Slurm can be started here: this machine lacks {missing}")
    (tmp_path / "slurm").mkdir()
    cache = tmp_path / "cache"
    with slurm_cluster(tmp_path / "slurm") as slurm, _attacked(cache, "slurm-1.0"):  # a fresh Slurm's first job
        line = ["srun", "-N", "2", "-n", "2", sys.executable, *RUN]
        job = finish(line, tmp_path, {**slurm, "XDG_CACHE_HOME": str(cache)}).check()
    assert job.result["launcher"] == "Slurm"
