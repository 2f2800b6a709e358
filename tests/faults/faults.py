"""The fault matrix: how a job can break, when, and what must be seen of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any
from zlib import crc32

from cluster.hosts import Cluster
from jobs.mpirun import DEADLINE, NUMPY_BACKEND, PAUSE, SHARED, Finished
from unilaunch.errors import REQUEUE
from unilaunch.launchers.openmpi_mpirun import keepalive

INJECT = Path(__file__).parent / "inject"
#: Seconds from the moment at which a fault can be known to the end of the job.
ONE_HOST, SEVERAL_HOSTS = 2.0, 8.0
#: The option of a job on several hosts for silence; it ends 4 seconds later at the latest, when SEVERAL_HOSTS are over.
HOST_TIMEOUT = 4
#: The option of a job whose fault shows only as a stall: longer than three ranks take that import a framework, each for
#: itself, on two cores beside other tests.
STALL = {"torch": 20.0, "mindspore": 30.0, "numpy": 4.0}
#: What the jobs inherit. Each epoch of numpy sleeps, so that ranks that train leave the processors to jobs that start.
INHERITED = {**SHARED, PAUSE: "0.05"}

MOMENTS = ("before import", "before init", "first collective", "epoch", "checkpoint")
FRAMEWORKS = ("torch", "mindspore")
#: The small backend in tests/numpy_backend: its jobs start in a quarter of the time.
STAND_IN = "numpy"
MPIS = {"4": Path("/usr/bin/mpirun"), "5": Path(sys.executable).parent / "mpirun"}
#: In place of an mpirun: `launch` starts the ranks itself.
DIRECT = "direct"
STARTS = (*MPIS, DIRECT)
#: The same line is typed on each of three hosts.
BY_HAND = "launch by hand, three nodes"
PLACES = ("launch, one host", "mpirun, one host", "launch, three hosts", "mpirun, three hosts", BY_HAND)
DIRECT_PLACES = ("launch, one host", BY_HAND)


@dataclass(frozen=True, slots=True)
class Fault:
    """How a job breaks.

    Attributes:
        code: What the job must exit with; None if mpirun itself is what breaks.
        words: What its report must say; "" if nobody is left to say anything.
        places: Where it can happen: words that a place must contain.
        moments: When.
        stalls: It shows only as a stall.
        why: Why not elsewhere or at other moments.
        patience: Seconds that the job may take more, since the user has given them.
    """

    code: int | None
    words: str
    places: str = ""
    moments: tuple[str, ...] = MOMENTS
    stalls: bool = False
    why: str = ""
    patience: float = 0.0


#: Seconds of --grace.
GRACE = 0.5
#: Nobody has failed then.
_BY_THE_USER = {"Ctrl-C", "Ctrl-C twice", "SIGUSR1", "grace cut short"}
FAULTS = {
    "exception": Fault(1, "RuntimeError: broken on purpose"),
    "exit 3": Fault(3, "SystemExit: 3"),
    "exit 0": Fault(1, "SystemExit: 0"),
    "_exit 3": Fault(3, "ended with exit code 3 and no exception"),
    "SIGKILL": Fault(137, "killed by SIGKILL"),
    "agent killed": Fault(137, "its agent, the process that supervises it, was killed"),
    "SIGSEGV": Fault(139, "killed by SIGSEGV"),
    "SIGTERM": Fault(143, "killed by SIGTERM"),
    "loop": Fault(124, "_loop (sitecustomize.py", stalls=True),
    "SIGSTOP": Fault(124, "stopped (SIGSTOP)", stalls=True),
    "OOM killer": Fault(137, "the kernel's OOM killer ended"),
    "ulimit -v": Fault(1, "ulimit -v allows this rank"),
    "mpirun killed": Fault(None, ""),
    "launch killed": Fault(None, "", places="launch", why="there is no launch under a bare mpirun"),
    "daemon killed": Fault(None, "its launcher has exited", places="three hosts",
                           why="on one host mpirun is the daemon, and without an mpirun there is none"),
    "link cut": Fault(None, "does not answer", places="three", why="one host has no link"),
    "power off": Fault(None, "does not answer", places="three", why="on one host nobody is left"),
    "disk full": Fault(1, "No space left on device", places="one", moments=("checkpoint",),
                       why="nothing else is written that a rank cannot do without"),
    "output folder": Fault(2, "cannot write there", places="one", moments=("before import",),
                           why="it is found before anything starts"),
    "Ctrl-C": Fault(130, "", places="launch", why="a bare mpirun's Ctrl-C is mpirun's: it sends SIGTERM to every rank"),
    "Ctrl-C twice": Fault(130, "", places="launch", why="as Ctrl-C"),
    "SIGUSR1": Fault(138, "", places="launch", why="as Ctrl-C"),
    "grace cut short": Fault(143, f"did not end within the {GRACE:g} s of --grace: killed", places="launch",
                             moments=MOMENTS[2:], why="before, a rank has nothing to save: SIGTERM ends it at once",
                             patience=GRACE),
    "disk full at the end": Fault(0, "rank 0 can no longer write its records: No space left on device", places="one",
                                  moments=("checkpoint",), why="it is of rank 0, after the last epoch"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to break one job."""

    fault: str
    moment: str
    framework: str
    mpi: str
    place: str

    @property
    def lacking(self) -> str:
        """Why there is no such cell; "" if there is."""
        fault = FAULTS[self.fault]
        if self.place == BY_HAND if self.mpi != DIRECT else self.place not in DIRECT_PLACES:
            return "launch alone starts ranks directly, on its own host"
        return fault.why if fault.places not in self.place or self.moment not in fault.moments else ""

    @property
    def lacking_here(self) -> str:
        """What this machine lacks for the cell; "" if nothing."""
        if self.fills_disk and os.geteuid():
            return "root, to mount a small disk"
        if self.fault == "OOM killer" and not os.access(_memory_group() / "cgroup.procs", os.W_OK):
            return "a cgroup of memory (v1) that this user may divide"
        return ""

    @property
    def fills_disk(self) -> bool:
        """The disk of the output folder is small, and is filled."""
        return self.fault.startswith("disk full")

    @property
    def loses_the_monitor(self) -> bool:
        """The agent that is killed is the monitor: mpirun alone tells of it."""
        alone = "one" in self.place or self.moment == "checkpoint"
        return self.fault == "agent killed" and "mpirun" in self.place and alone

    @property
    def rank(self) -> int:
        """Which rank fails: rank 0 writes the checkpoints, and of several hosts it is a remote one."""
        if self.moment == "checkpoint":
            return 0
        return 2 if "three" in self.place else 1


#: Faults that the same lines of the product see and judge; only their code or their signal differs.
ALIKE = (
    ("exception", "exit 3", "exit 0", "ulimit -v"), ("_exit 3", "SIGKILL", "SIGSEGV", "SIGTERM", "OOM killer"),
    ("loop", "SIGSTOP"), ("link cut", "power off"), ("Ctrl-C", "SIGUSR1"), ("Ctrl-C twice", "grace cut short"),
)  # fmt: skip
#: Where a framework can make a difference: it is imported, or it computes, and has signal handlers and threads of its
#: own. That the ranks are forked after the import, or are not, is another.
REAL = (
    Cell("exit 3", "before init", "torch", "4", "mpirun, one host"),
    Cell("SIGTERM", "epoch", "torch", DIRECT, "launch, one host"),
    Cell("SIGSEGV", "before init", "mindspore", DIRECT, "launch, one host"),
    Cell("exception", "epoch", "mindspore", "5", "launch, one host"),
)


def _memory_group() -> Path:
    """Return the cgroup of memory (v1) of this process; where there is none, no folder."""
    lines = [line.split(":") for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return Path("/sys/fs/cgroup/memory" + "".join(group for _, kinds, group in lines if kinds == "memory"))


def cells(frameworks: Iterable[str] = FRAMEWORKS) -> Iterator[Cell]:
    """Return the whole matrix of *frameworks*, with the cells that there cannot be."""
    for values in product(FAULTS, MOMENTS, frameworks, STARTS, PLACES):
        yield Cell(*values)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job.

    Attributes:
        seconds: From the moment at which the fault could be known to the end of the job.
        faults: What was not as it must be.
        job: The job.
    """

    seconds: float
    faults: tuple[str, ...]
    job: Finished


def run_cell(cell: Cell, folder: Path, data: Path, cluster: Cluster | None) -> Outcome:
    """Break a job.

    Args:
        cell: How.
        folder: An empty folder.
        data: A folder with the partition.
        cluster: Three hosts, for a place that has them.
    """
    line, environ = _line(cell, folder, data)
    output = folder / "log_output"
    if cell.fault == "output folder":
        output.write_text("not a folder")
    if cell.fills_disk:
        output.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", output], check=True, timeout=20)
    try:
        job, end, left = (
            _on_hosts(cell, line, environ, folder, cluster) if cluster else _here(cell, line, environ, folder)
        )
        struck = _struck(folder, end)
        fault = FAULTS[cell.fault]
        patience = STALL[cell.framework] if fault.stalls else fault.patience
        known = (_last_move(output, struck, patience) if fault.stalls else struck) + patience
        return Outcome(end - known, tuple(_judge(cell, job, end - known, left)), job)
    finally:
        if cell.fills_disk:
            subprocess.run(["umount", "--lazy", output], check=True, timeout=20)
        for group in Path("/sys/fs/cgroup/memory").glob(f"**/unilaunch-{crc32(str(folder).encode())}"):
            with suppress(OSError):
                group.rmdir()


def _line(cell: Cell, folder: Path, data: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command line, and what stands in the environment."""
    where = ["--hostfile", str(folder / "hosts")] if "three hosts" in cell.place else []
    fault = f"{cell.fault.replace(' ', '_')} {cell.moment.replace(' ', '_')} {cell.rank} {folder}"
    epochs = "3" if cell.fault == "disk full at the end" else "1000000"
    run = ["--backend", cell.framework, "--data-dir", str(data), "--epochs", epochs, "--threads", "1"]
    run += ["--log-level", "DEBUG"]
    if cell.fault in {"link cut", "power off"}:
        run += ["--host-timeout", str(HOST_TIMEOUT)]
    if cell.fault == "grace cut short":
        run += ["--grace", str(GRACE)]
    if cell.moment == "checkpoint":
        run += ["--checkpoint-every", "1"]
    if FAULTS[cell.fault].stalls:
        run += ["--stall-timeout", str(STALL[cell.framework])]
    spread = [] if where else ["--oversubscribe"]
    python = sys.executable
    environ = {
        "FAULT": fault, "PYTHONPATH": f"{INJECT}{os.pathsep}{NUMPY_BACKEND}", "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **INHERITED,
    }  # fmt: skip
    variables = [word for name in ("FAULT", *INHERITED) for word in ("-x", name)] if where else []
    if cell.place == BY_HAND:
        return [python, "-m", "unilaunch", "launch", *run], {**environ, "UNILAUNCH_SECRET": "0123456789abcdef"}
    if "launch" in cell.place:
        start = ["--launcher", DIRECT] if cell.mpi == DIRECT else ["--mpirun", str(MPIS[cell.mpi])]
        words = ["launch", *start, "-n", "3", *spread, *variables, *where, *run]
        return [python, "-m", "unilaunch", *words], environ
    kept = [word for name, value in keepalive(HOST_TIMEOUT).items() for word in ("--mca", name, value)]
    python_path = ["-x", "PYTHONPATH"] if where else []
    words = [str(MPIS[cell.mpi]), "-n", "3", *spread, *variables, *python_path, *where, *(kept if where else [])]
    return [*words, python, "-m", "unilaunch", "run", *run], environ


def _here(cell: Cell, line: list[str], environ: dict[str, str], folder: Path) -> tuple[Finished, float, list[str]]:
    """Run a job on this host; return it, when it ended, and what it left running."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("UNILAUNCH_", "OMPI_"))}  # noqa: TID251
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            line, cwd=folder, env=own | environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
    begin = time.monotonic()
    _strike(cell, folder, process, process.pid)
    try:
        process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    end = _gone(folder, lambda: _of_job(folder))
    left = _of_job(folder)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    seconds = time.monotonic() - begin
    job = Finished(process.returncode, (folder / "out").read_text(), (folder / "err").read_text(), seconds, folder)
    return job, end, list(left.values())


def _on_hosts(
    cell: Cell, line: list[str], environ: dict[str, str], folder: Path, cluster: Cluster
) -> tuple[Finished, float, list[str]]:
    """Run a job on three hosts; what the world does to it is done here."""
    cluster.hostfile([1, 1, 1], folder)
    others = []
    if cell.place == BY_HAND:
        nodes = ["--nnodes", "3", "--nproc-per-node", "1", "--master-addr", cluster.addresses[0], "--node-rank"]
        first, *typed = [[*line[:4], *nodes, str(node), *line[4:]] for node in range(3)]
        others = [cluster.start(node, words, folder, environ) for node, words in enumerate(typed, 1)]
        line = first
    running = cluster.start(0, line, folder, environ)
    victim = 2
    if cell.fault in {"link cut", "power off"}:
        _await(folder / "now", running.process)
        (cluster.cut if cell.fault == "link cut" else cluster.power_off)(victim)
        _known_from_now_on(folder)
    _strike(cell, folder, running.process, 0)
    job = running.finish()
    for node, other in enumerate(others, 1):
        if cell.fault == "power off" and node == victim:
            other.process.kill()
            other.process.wait()
        else:
            other.finish()

    def left() -> dict[int, str]:
        hosts = [host for host in range(3) if not (cell.fault == "power off" and host == victim)]
        return {pid: line for host in hosts for pid, line in cluster.processes(host).items() if "unilaunch" in line}

    end = _gone(folder, left)
    remaining = left()
    cluster.sweep()
    if cell.fault == "link cut":
        cluster.heal(victim)
    return job, end, list(remaining.values())


def _strike(cell: Cell, folder: Path, process: "subprocess.Popen[bytes]", started: int) -> None:
    """Do to the process that was started, or to mpirun below it, what a person would do to it."""
    signals = {
        "mpirun killed": [9], "launch killed": [9], "Ctrl-C": [2], "Ctrl-C twice": [2, 2], "SIGUSR1": [10],
        "grace cut short": [15],
    }.get(cell.fault, [])  # fmt: skip
    if signals:
        _await(folder / "now", process)
        started = started or _child(process.pid)
        _known_from_now_on(folder)
    for number in signals:
        below = cell.fault == "mpirun killed" and "launch" in cell.place
        with suppress(ProcessLookupError):  # it has ended already: how, _judge says
            os.kill(_child(started) if below else started, number)
        time.sleep(0.2 * (len(signals) - 1))


def _known_from_now_on(folder: Path) -> None:
    """Let the time of a fault from outside count from when it is done, not from when the rank was ready for it."""
    if (folder / "now").exists():
        (folder / "now").write_text(f"{time.time()} 0")


def _child(process: int) -> int:
    return int(Path(f"/proc/{process}/task/{process}/children").read_text().split()[0])


def _await(file: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + DEADLINE
    while not file.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


def _gone(folder: Path, left: Any) -> float:
    """Return when the last process of the job went, or now if some do not go."""
    deadline = time.monotonic() + SEVERAL_HOSTS
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    return time.time()


def _of_job(folder: Path) -> dict[int, str]:
    """Return the processes of a job on this host: those with its folder in their environment."""
    found = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            if f"{folder}".encode() in (path / "environ").read_bytes() and int(path.name) != os.getpid():
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return {pid: line for pid, line in found.items() if line}


def _struck(folder: Path, end: float) -> float:
    mark = folder / "now"
    return float(mark.read_text().split()[0]) if mark.exists() else end


def _last_move(output: Path, struck: float, patience: float) -> float:
    """Return when a rank last noted progress or wrote before the stall was seen, which counts from then on."""
    events = [json.loads(line) for path in output.glob("rank.*/events.jsonl") for line in path.read_text().splitlines()]
    noted: list[float] = [event["time"] for event in events if event.get("phase") != "end"]
    written = [path.stat().st_mtime for path in output.glob("rank.*/*")]
    return max(struck, *noted, *(time for time in written if time < struck + patience))


def _judge(cell: Cell, job: Finished, seconds: float, left: list[str]) -> Iterator[str]:
    """Name what is not as it must be."""
    fault = FAULTS[cell.fault]
    if not (job.folder / "now").exists() and cell.fault != "output folder":
        yield f"the fault did not happen: {job.console[-300:]}"
        return
    if fault.code is None and job.returncode == 0 and not _forgiven(cell):
        yield "exit code 0"
    if fault.code is not None and job.returncode not in {fault.code, _mpis_own(cell), _stopped(cell)}:
        yield f"exit code {job.returncode}, not {fault.code}"
    if fault.words not in _report(cell, job) and not cell.loses_the_monitor:
        yield f"nobody says {fault.words!r}"
    if seconds > (SEVERAL_HOSTS if "three" in cell.place else ONE_HOST):
        yield f"it took {seconds:.1f} s"
    if left:
        yield f"left: {left[0][:120]}"
    yield from _kept(cell, job)


def _stopped(cell: Cell) -> int | None:
    """A training that is stopped writes a checkpoint, and ends with the code that says so."""
    return REQUEUE if cell.fault in {"Ctrl-C", "SIGUSR1"} and cell.moment in MOMENTS[2:] else None


def _mpis_own(cell: Cell) -> int | None:
    """Open MPI 5 ends a bare job by itself, with this code, if it is the first to find a socket closed."""
    return 14 if cell.place == "mpirun, three hosts" and cell.mpi == "5" else None


def _forgiven(cell: Cell) -> bool:
    """A bare mpirun that loses a daemon shows no more of what its ranks say, and 5 ends with 0: report.json is left."""
    return cell.place == "mpirun, three hosts" and FAULTS[cell.fault].code is None


def _report(cell: Cell, job: Finished) -> str:
    """Return what was reported: on the console, or when the launcher was killed by each rank."""
    said = job.console
    if _forgiven(cell):
        report = job.output / "report.json"
        said += report.read_text() if report.exists() else "no report.json"
    for file in job.output.glob("rank.*/failure.json") if job.output.is_dir() else ():
        if cell.fault in {"mpirun killed", "launch killed"}:
            said += file.read_text()
    return said


def _kept(cell: Cell, job: Finished) -> Iterator[str]:
    """Look at what must have been kept: the last line, who failed, the newest checkpoint."""
    if not job.output.is_dir():
        return
    stdout = (job.output / f"rank.{cell.rank}" / "stdout").read_text()
    if cell.fills_disk:  # what finds no room is still shown
        stdout += job.stdout
    if "the last line before the fault" not in stdout and cell.fault not in {"power off", "link cut"}:
        yield "a log line is lost"
    # An agent takes all ranks of its host along.
    named = "(all 3 )?rank" if cell.fault == "agent killed" and "one" in cell.place else f"rank {cell.rank} on"
    if cell.loses_the_monitor:
        named = ""
    unnamed = cell.fault in _BY_THE_USER or FAULTS[cell.fault].code in {None, 0, 2, 124}
    if named and not unnamed and not re.search(f"unilaunch: {named}", job.console):
        yield f"{named} is not named: {job.refusals()[:1]}"
    if cell.moment == "checkpoint":
        _load_checkpoints(job)


def _load_checkpoints(job: Finished) -> None:
    """Load all that are there."""
    from safetensors.numpy import load_file

    files = sorted((job.output / "checkpoints").glob("epoch-*.safetensors"))
    for file in files:
        load_file(file)


def prepare_data(folder: Path) -> Path:
    """Make the data folder with the partition that all jobs use."""
    line = [sys.executable, "-m", "unilaunch", "partition", "--num-parts", "3", "--data-dir", str(folder)]
    subprocess.run(line, check=True, capture_output=True, timeout=120)
    return folder


def pairs(cell: Cell) -> set[tuple[Any, ...]]:
    """Return the pairs of values that a cell covers, but for those with its framework.

    Faults that are alike cover the pairs together. Each of them has one alone: before and after the ranks have met, on
    one host and on three.
    """
    kind = next(alike for alike in (*ALIKE, (cell.fault,)) if cell.fault in alike)
    apart = {(cell.fault, "met", cell.moment in MOMENTS[2:]), (cell.fault, "hosts", "three" in cell.place)}
    return {*combinations((kind, cell.moment, cell.mpi, cell.place), 2), *apart}


def covering() -> list[Cell]:
    """Return few cells: those of the real frameworks, and with numpy what else covers every pair."""
    chosen = list(REAL)
    possible = {cell: pairs(cell) for cell in cells([STAND_IN]) if not cell.lacking}
    left = set().union(*possible.values()).difference(*map(pairs, chosen))
    while left:
        used = Counter((cell.mpi, cell.place) for cell in chosen)
        # Of the cells with most new pairs: rather on one host, which is quicker, and where the fewest have been chosen.
        best = max(
            possible,
            key=lambda cell: (len(possible[cell] & left), "three" not in cell.place, -used[cell.mpi, cell.place]),
        )
        left -= possible[best]
        chosen.append(best)
    # A real framework comes last: its first import in a test run reads gigabytes from the disk.
    return sorted(chosen, key=lambda cell: (cell.framework != STAND_IN, PLACES.index(cell.place)))
