"""Programs that speak MPI themselves, or meet at an address of their own: all as under `mpirun python program.py`."""

import sys
from pathlib import Path

import pytest

from jobs.mpirun import Finished, Launcher, finish

PROGRAMS = Path(__file__).parent / "programs"
MPI = Path(__file__).parents[2] / ".mpi"


def _said(job: Finished, ranks: int) -> list[str]:
    return [(job.output / f"rank.{rank}" / "stdout").read_text() for rank in range(ranks)]


def test_mpi_is_the_programs_to_initialise_and_to_end(launcher: Launcher, tmp_path: Path) -> None:
    """At every thread level; the job ends well, though MPI is over before the program is."""
    job = launcher.unilaunch(3, ["run", str(PROGRAMS / "own_mpi.py")], tmp_path).check()
    assert _said(job, 3) == ["sum 3\n"] * 3


def test_no_event_of_pmix_meets_a_component_that_is_gone(tmp_path: Path) -> None:
    """Open MPI 4.1 unloads it in MPI_Finalize with events pending; the rank is a PMIx client until its end."""
    (tmp_path / "maps.py").write_text(
        "from mpi4py import MPI\nMPI.Finalize()\nassert 'mca_pmix_ext' in open('/proc/self/maps').read()\n"
    )
    openmpi4 = Launcher(Path("/usr/bin/mpirun"), "4.1")
    openmpi4.unilaunch(2, ["run", "maps.py"], tmp_path).check()


@pytest.mark.parametrize("name", ["mpich", "intel"])
def test_the_same_under_hydra(name: str, tmp_path: Path) -> None:
    """MPICH and Intel MPI."""
    mpiexec = MPI / name / "bin" / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no {mpiexec}: see .ci/run")
    program = [sys.executable, "-m", "unilaunch", "run", str(PROGRAMS / "own_mpi.py")]
    job = finish([str(mpiexec), "-n", "3", *program], tmp_path, None).check()
    assert _said(job, 3) == ["sum 3\n"] * 3


def test_the_same_under_bare_pmix(tmp_path: Path) -> None:
    """There the ranks meet through MPI, which this process has initialised before the program asks for it."""
    line = [str(Path(sys.executable).parent / "prterun"), "--allow-run-as-root", "--oversubscribe", "-n", "3"]
    program = [sys.executable, "-m", "unilaunch", "run", str(PROGRAMS / "own_mpi.py")]
    assert _said(finish([*line, *program], tmp_path, None).check(), 3) == ["sum 3\n"] * 3


def test_the_same_under_launch(launcher: Launcher, tmp_path: Path) -> None:
    """It is the same mpirun below."""
    words = ["launch", "--mpirun", str(launcher.path), "--allow-run-as-root", "--oversubscribe", "-n", "3"]
    line = [sys.executable, "-m", "unilaunch", *words, str(PROGRAMS / "own_mpi.py")]
    assert _said(finish(line, tmp_path, None).check(), 3) == ["sum 3\n"] * 3


@pytest.mark.parametrize("start", ["run", "launch"])
def test_a_program_may_spawn_processes(start: str, launcher: Launcher, tmp_path: Path) -> None:
    """On one host too: processes of two worlds share no memory in Open MPI 5, and speak over TCP."""
    library = {"MPI4PY_LIBMPI": "/usr/lib/x86_64-linux-gnu/libmpi.so.40"} if launcher.version == "4.1" else {}
    program = str(PROGRAMS / "own_spawn.py")
    if start == "run":
        job = launcher.unilaunch(2, ["run", program], tmp_path, variables=library)
    else:
        words = ["launch", "--mpirun", str(launcher.path), "--allow-run-as-root", "--oversubscribe", "-n", "2"]
        job = finish([sys.executable, "-m", "unilaunch", *words, program], tmp_path, library)
    assert _said(job.check(), 2) == ["sum 6\n"] * 2


@pytest.mark.parametrize(("launcher", "arguments"), [("4.1", []), ("5.0", ["spawn"])], indirect=["launcher"])
def test_a_program_meets_where_it_likes(launcher: Launcher, arguments: list[str], tmp_path: Path) -> None:
    """Rank 0 picks a port and broadcasts it, as without a launcher; its spawned processes meet at another one."""
    line = ["run", str(PROGRAMS / "own_store.py"), "--", *arguments]
    job = launcher.unilaunch(2, line, tmp_path).check()
    assert _said(job, 2) == ["sum 3, threads True\n"] * 2


def _leave(folder: Path) -> str:
    (folder / "leave.py").write_text("import os\nif os.environ['RANK'] == '1': os._exit(0)\nprint('done')\n")
    return "leave.py"


def test_a_rank_may_leave_in_its_own_way(openmpi5: Launcher, tmp_path: Path) -> None:
    """A program without MPI that leaves one rank by os._exit(0) has done nothing wrong."""
    job = openmpi5.unilaunch(3, ["run", _leave(tmp_path)], tmp_path).check()
    assert _said(job, 3) == ["done\n", "", "done\n"]


def test_it_may_so_under_launch(launcher: Launcher, tmp_path: Path) -> None:
    """Under Open MPI 4 too, which would end a job of ranks that had met through its store."""
    words = ["launch", "--mpirun", str(launcher.path), "--allow-run-as-root", "--oversubscribe", "-n", "3"]
    job = finish([sys.executable, "-m", "unilaunch", *words, _leave(tmp_path)], tmp_path, None).check()
    assert _said(job, 3) == ["done\n", "", "done\n"]
