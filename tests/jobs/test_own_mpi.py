"""Programs that speak MPI themselves, or meet at an address of their own: all as under `mpirun python program.py`."""

import sys
from pathlib import Path

import pytest

from jobs.conftest import find_launcher
from jobs.mpirun import Finished, Launcher, finish

PROGRAMS = Path(__file__).parent / "programs"
MPI = Path(__file__).parents[2] / ".mpi"


def _said(job: Finished, ranks: int) -> list[str]:
    return [job.check().said(rank) for rank in range(ranks)]


@pytest.mark.parametrize("start", ["4.1", "5.0", "launch", "prterun", "mpich", "intel"])
def test_mpi_is_the_programs_to_initialise_and_to_end(start: str, tmp_path: Path) -> None:
    """At every thread level; the job ends well, though MPI is over before the program is.

    Under bare PMIx (prterun) the ranks meet through MPI, which was initialised before the program asks for it.
    """
    program = str(PROGRAMS / "own_mpi.py")
    if start in {"4.1", "5.0"}:
        job = find_launcher(start).unilaunch(2, ["run", program], tmp_path)
    elif start == "launch":
        job = find_launcher("5.0").launch(2, [program], tmp_path)
    else:
        bin_ = Path(sys.executable).parent if start == "prterun" else MPI / start / "bin"
        starter = bin_ / ("prterun" if start == "prterun" else "mpiexec")
        if not starter.exists():
            pytest.skip(f"no {starter}: see .ci/run")
        options = ["--allow-run-as-root", "--oversubscribe"] if start == "prterun" else []
        line = [str(starter), *options, "-n", "2", sys.executable, "-m", "unilaunch", "run", program]
        job = finish(line, tmp_path, None)
    assert _said(job, 2) == ["sum 1\n"] * 2


@pytest.mark.parametrize(
    ("launcher", "start"), [("4.1", "launch"), ("5.0", "run"), ("5.0", "launch")], indirect=["launcher"]
)
def test_a_program_may_spawn_processes(start: str, launcher: Launcher, tmp_path: Path) -> None:
    """On one host too: processes of two worlds share no memory in Open MPI 5, and speak over TCP."""
    library = {"MPI4PY_LIBMPI": "/usr/lib/x86_64-linux-gnu/libmpi.so.40"} if launcher.version == "4.1" else {}
    program = str(PROGRAMS / "own_spawn.py")
    job = (
        launcher.unilaunch(2, ["run", program], tmp_path, variables=library)
        if start == "run"
        else launcher.launch(2, [program], tmp_path, library)
    )
    assert _said(job, 2) == ["sum 6\n"] * 2


def test_a_program_meets_where_it_likes(openmpi5: Launcher, tmp_path: Path) -> None:
    """Rank 0 picks a port and broadcasts it, as without a launcher; its spawned processes meet at another one."""
    job = openmpi5.unilaunch(2, ["run", str(PROGRAMS / "own_store.py"), "--", "spawn"], tmp_path)
    assert _said(job, 2) == ["sum 3, threads True\n"] * 2


def test_a_rank_may_leave_in_its_own_way(launcher: Launcher, tmp_path: Path) -> None:
    """A program without MPI that leaves one rank by os._exit(0) has done nothing wrong.

    Under Open MPI 4 too, which would end a job of ranks that had met through its store.
    """
    (tmp_path / "leave.py").write_text("import os\nif os.environ['RANK'] == '1': os._exit(0)\nprint('done')\n")
    assert _said(launcher.launch(3, ["leave.py"], tmp_path), 3) == ["done\n", "", "done\n"]
