"""Secrets reach the ranks, and nobody else sees them; another user of this machine cannot take part in a job.

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
from secrets import token_hex
from subprocess import PIPE, Popen, run
from typing import Any

import pytest

import unilaunch
from jobs.conftest import LAUNCHERS
from jobs.mpirun import Launcher, finish
from jobs.mpirun import unilaunch as command
from jobs.slurm import lacking, slurm_cluster

MPI = Path(__file__).parents[2] / ".mpi"
STRANGER = Path(__file__).parent / "programs" / "stranger.py"
RUN = ["-m", "unilaunch", "run", "--epochs", "5", "--data-dir", "data"]
LONG = ["--epochs", "400", "--data-dir", "data"]


@pytest.fixture
def own_network(by_numpy: None) -> Iterator[None]:
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
    user: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/", "env": {}}
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


@pytest.mark.usefixtures("own_network")
def test_a_stranger_under_torchrun_with_a_static_rendezvous(tmp_path: Path) -> None:
    """He is not rank 0, not rank 1, reads nothing, and neither he nor his silent connections stop the job."""
    options = ["--nnodes", "1", "--nproc-per-node", "2", "--rdzv-backend", "static", "--master-port", "29531"]
    with _attacked(tmp_path / "cache", "torchrun-none-127.0.0.1-29531"):
        line = [str(Path(sys.executable).parent / "torchrun"), *options, *RUN]
        job = finish(line, tmp_path, {"XDG_CACHE_HOME": str(tmp_path / "cache")}).check()
    assert job.result["world_size"] == 2
    assert [path.name for path in sorted(job.output.glob("rank.*"))] == ["rank.0", "rank.1"]


@pytest.mark.usefixtures("own_network")
def test_a_stranger_under_launch(tmp_path: Path) -> None:
    """The monitor listens too; a stranger's messages to it end nothing."""
    words = ["launch", "--allow-run-as-root", "--oversubscribe", "-n", "2", *LONG]
    with _attacked(tmp_path / "log_output"):
        assert command(words, tmp_path).check().result["world_size"] == 2


@pytest.mark.usefixtures("own_network")
def test_a_stranger_between_two_nodes(tmp_path: Path) -> None:
    """He calls node 0 before node 1 does, and knows all but the secret: he is no node, and no rank."""
    words = ["launch", "--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", "29533"]
    environ = {"UNILAUNCH_SECRET": os.urandom(16).hex()}
    with _attacked(tmp_path / "log_output"), ThreadPoolExecutor() as nodes:
        first = nodes.submit(command, [*words, *LONG, "--node-rank", "0"], tmp_path, environ)
        time.sleep(1.0)
        second = nodes.submit(command, [*words, *LONG, "--node-rank", "1"], tmp_path, environ)
        assert first.result().check().result["world_size"] == 4
        assert second.result().returncode == 0


@pytest.mark.usefixtures("own_network")
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


#: Of its secrets one is named with its value, the other one is exported; a third name is not set anywhere.
PROGRAM = """
import os
from contextlib import suppress
from pathlib import Path
values = [os.environ[name].encode() for name in ("GIVEN", "EXPORTED")]
assert "MISSING" not in os.environ
for file in Path("/proc").glob("[0-9]*/cmdline"):
    with suppress(OSError):
        line = file.read_bytes()
        assert not [value for value in values if value in line], line
"""


@pytest.mark.parametrize("mpirun", [
    *LAUNCHERS["4.1"][:1], *LAUNCHERS["5.0"], MPI / "mpich" / "bin" / "mpiexec", MPI / "intel" / "bin" / "mpiexec",
], ids=["openmpi-4", "openmpi-5", "mpich", "intel"])  # fmt: skip
def test_ps_does_not_show_what_x_gives(mpirun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two ranks, which look at every command line of this machine."""
    if not mpirun.exists():
        pytest.skip(f"no {mpirun}: see .ci/run")
    monkeypatch.chdir(tmp_path)
    given, exported = token_hex(16), token_hex(16)
    monkeypatch.setenv("EXPORTED", exported)
    (tmp_path / "look.py").write_text(PROGRAM)
    open_mpi = mpirun.name == "mpirun"  # it warns of unset names
    spec = unilaunch.LaunchSpec.model_validate({
        "nprocs": 2, "target": "look.py", "mpirun": mpirun,
        "export": (f"GIVEN={given}", "EXPORTED", *(() if open_mpi else ("MISSING",))),
        **({"allow_run_as_root": True, "oversubscribe": True} if open_mpi else {}),
    })  # fmt: skip
    assert unilaunch.launch(spec).returncode == 0, (tmp_path / "log_output" / "rank.0" / "stderr").read_text()
    for file in (tmp_path / "log_output").rglob("*"):
        assert file.is_dir() or not {given, exported} & set(file.read_text(errors="replace").split('"'))


def test_secrets_of_a_scripts_arguments_are_not_kept(openmpi5: Launcher, tmp_path: Path) -> None:
    """The script gets them. `--config spec.json` refuses to run it without them."""
    (tmp_path / "train.py").write_text("import sys\nprint(*sys.argv[1:])\n")
    given = ["train.py", "--", "--hf-token", "firstsecret", "--api-key=secondsecret", "--lr", "3"]
    again = ["--config", "log_output/spec.json"]
    for words in (given, [*again, *given]):
        assert openmpi5.launch(1, words, tmp_path).check().stdout == f"{' '.join(given[2:])}\n"
    text = "".join(file.read_text() for file in (tmp_path / "log_output").rglob("*.json*"))
    assert ("firstsecret" in text, "secondsecret" in text) == (False, False)
    assert "the values of secrets are left out" in openmpi5.launch(1, again, tmp_path).refusal()
