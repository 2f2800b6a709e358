"""The fault matrix: how a job can break, when, and what must be seen of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from safetensors.numpy import load_file

from cluster.hosts import Cluster
from jobs.mpirun import DEADLINE, NUMPY_BACKEND, PAUSE, SHARED, Finished
from unilaunch.errors import REQUEUE
from unilaunch.launchers.openmpi_mpirun import keepalive

ONE_HOST, SEVERAL_HOSTS = 2.0, 8.0  # seconds from the moment at which a fault can be known to the end of the job
#: The option of a job on several hosts for silence; it ends 4 seconds later at the latest, when SEVERAL_HOSTS are over.
HOST_TIMEOUT = 4
#: The option of a job whose fault shows only as a stall: longer than three ranks take that import a framework, each for
#: itself, on two cores beside other tests.
STALL = {"torch": 20.0, "mindspore": 30.0, "numpy": 4.0}
GRACE = 0.5  # seconds of --grace
#: What the jobs inherit. Each epoch of numpy sleeps, so that ranks that train leave the processors to jobs that start.
INHERITED = {**SHARED, PAUSE: "0.05"}

MOMENTS = ("before import", "before init", "first collective", "epoch", "checkpoint")
FRAMEWORKS = ("torch", "mindspore")
STAND_IN = "numpy"  # the small backend in tests/numpy_backend: its jobs start in a quarter of the time
MPIS = {"4": Path("/usr/bin/mpirun"), "5": Path(sys.executable).parent / "mpirun"}
DIRECT = "direct"  # in place of an mpirun: `launch` starts the ranks itself
STARTS = (*MPIS, DIRECT)
BY_HAND = "launch by hand, three nodes"  # the same line is typed on each
PLACES = ("launch, one host", "mpirun, one host", "launch, three hosts", "mpirun, three hosts", BY_HAND)


class Fault(NamedTuple):
    """How a job breaks."""

    code: int | None  # what the job must exit with; None if mpirun itself is what breaks
    words: str  # what its report must say; "" if nobody is left to say anything
    places: str = ""  # a word that a place must contain
    moments: tuple[str, ...] = MOMENTS
    patience: float = 0.0  # seconds that the job may take more, since the user has given them


FAULTS = {
    "exception": Fault(1, "RuntimeError: broken on purpose"),
    "exit 3": Fault(3, "SystemExit: 3"),
    "exit 0": Fault(1, "SystemExit: 0"),
    "_exit 3": Fault(3, "ended with exit code 3 and no exception"),
    "SIGKILL": Fault(137, "killed by SIGKILL"),
    "agent killed": Fault(137, "its agent, the process that supervises it, was killed"),
    "SIGSEGV": Fault(139, "killed by SIGSEGV"),
    "SIGTERM": Fault(143, "killed by SIGTERM"),
    "loop": Fault(124, "_fail (sitecustomize.py"),
    "SIGSTOP": Fault(124, "stopped (SIGSTOP)"),
    "OOM killer": Fault(137, "the kernel's OOM killer ended"),
    "ulimit -v": Fault(1, "ulimit -v allows this rank"),
    "mpirun killed": Fault(None, ""),
    "launch killed": Fault(None, "", "launch"),
    "daemon killed": Fault(None, "its launcher has exited", "three hosts"),  # on one host mpirun is the daemon
    "link cut": Fault(None, "does not answer", "three"),
    "power off": Fault(None, "does not answer", "three"),
    "disk full": Fault(1, "No space left on device", "one", MOMENTS[4:]),
    "output folder": Fault(2, "cannot write there", "one", MOMENTS[:1]),  # it is found before anything starts
    # A bare mpirun's Ctrl-C is mpirun's: it sends SIGTERM to every rank.
    "Ctrl-C": Fault(130, "", "launch"),
    "Ctrl-C twice": Fault(130, "", "launch"),
    "SIGUSR1": Fault(138, "", "launch"),
    # Before it has met the others a rank has nothing to save: SIGTERM ends it at once.
    "grace cut short": Fault(143, f"within the {GRACE:g} s of --grace: killed", "launch", MOMENTS[2:], GRACE),
    "disk full at the end": Fault(0, "rank 0 can no longer write its records: No space left on", "one", MOMENTS[4:]),
}
_STALLS = {"loop", "SIGSTOP"}  # they show only as one
_BY_THE_USER = {"Ctrl-C", "Ctrl-C twice", "SIGUSR1", "grace cut short"}  # nobody has failed then
#: Faults that the same lines of the product see and judge; only their code or their signal differs.
ALIKE = (
    ("exception", "exit 3", "exit 0", "ulimit -v"), ("_exit 3", "SIGKILL", "SIGSEGV", "SIGTERM", "OOM killer"),
    ("loop", "SIGSTOP"), ("link cut", "power off"), ("Ctrl-C", "SIGUSR1"), ("Ctrl-C twice", "grace cut short"),
)  # fmt: skip


class Cell(NamedTuple):
    """One way to break one job."""

    fault: str
    moment: str
    framework: str
    mpi: str
    place: str

    @property
    def is_possible(self) -> bool:
        """Launch alone starts ranks directly, on its own host; and a fault has its places and moments."""
        fault = FAULTS[self.fault]
        if self.place == BY_HAND if self.mpi != DIRECT else self.place not in {PLACES[0], BY_HAND}:
            return False
        return fault.places in self.place and self.moment in fault.moments

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
    def loses_mpirun(self) -> bool:
        """A bare mpirun that loses a daemon shows no more of what its ranks say, and 5 ends with 0."""
        return self.place == "mpirun, three hosts" and FAULTS[self.fault].code is None

    @property
    def rank(self) -> int:
        """Which rank fails: rank 0 writes the checkpoints, and of several hosts it is a remote one."""
        return 0 if self.moment == "checkpoint" else 2 if "three" in self.place else 1


#: Where a framework can make a difference: it is imported, or it computes, and has signal handlers and threads of its
#: own. That the ranks are forked after the import, or are not, is another.
REAL = (
    Cell("exit 3", "before init", "torch", "4", "mpirun, one host"),
    Cell("SIGTERM", "epoch", "torch", DIRECT, "launch, one host"),
    Cell("SIGSEGV", "before init", "mindspore", DIRECT, "launch, one host"),
    Cell("exception", "epoch", "mindspore", "5", "launch, one host"),
)


def cells(frameworks: Iterable[str] = FRAMEWORKS) -> Iterator[Cell]:
    """Return the whole matrix of *frameworks*."""
    for values in product(FAULTS, MOMENTS, frameworks, STARTS, PLACES):
        if (cell := Cell(*values)).is_possible:
            yield cell


def _pairs(cell: Cell) -> set[tuple[Any, ...]]:
    """Return the pairs of values that a cell covers, without its framework.

    Faults that are alike share them. Each has its own: before and after the ranks have met, on one host and on three.
    """
    kind = next(alike for alike in (*ALIKE, (cell.fault,)) if cell.fault in alike)
    apart = {(cell.fault, "met", cell.moment in MOMENTS[2:]), (cell.fault, "hosts", "three" in cell.place)}
    return {*combinations((kind, cell.moment, cell.mpi, cell.place), 2), *apart}


def covering() -> list[Cell]:
    """Return few cells: those of the real frameworks, and with numpy what else covers every pair."""
    chosen, possible = list(REAL), {cell: _pairs(cell) for cell in cells([STAND_IN])}
    left = set().union(*possible.values()).difference(*map(_pairs, chosen))
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


def prepare_data(folder: Path) -> Path:
    """Make the data folder with the partition that all jobs use."""
    line = [sys.executable, "-m", "unilaunch", "partition", "--num-parts", "3", "--data-dir", str(folder)]
    subprocess.run(line, check=True, capture_output=True, timeout=120)
    return folder


class Outcome(NamedTuple):
    """What became of a job: the seconds from when the fault could be known to the end, and what was wrong."""

    seconds: float
    faults: tuple[str, ...]
    job: Finished


def run_cell(cell: Cell, folder: Path, data: Path, cluster: Cluster | None) -> Outcome:
    """Break a job, in an empty folder, with a folder of its partition, on three hosts where the place has them."""
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
        mark, patience = folder / "now", FAULTS[cell.fault].patience
        known = float(mark.read_text().split()[0]) if mark.exists() else end
        if cell.fault in _STALLS:
            patience = STALL[cell.framework]
            known = _last_move(output, known, patience)
        seconds = end - known - patience
        return Outcome(seconds, tuple(_judge(cell, job, seconds, left)), job)
    finally:
        if cell.fills_disk:
            subprocess.run(["umount", "--lazy", output], check=True, timeout=20)
        for group in Path("/sys/fs/cgroup/memory").glob(f"**/unilaunch-{crc32(str(folder).encode())}"):
            with suppress(OSError):
                group.rmdir()


def _memory_group() -> Path:
    """Return the cgroup of memory (v1) of this process; where there is none, no folder."""
    lines = [line.split(":") for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return Path("/sys/fs/cgroup/memory" + "".join(group for _, kinds, group in lines if kinds == "memory"))


def _line(cell: Cell, folder: Path, data: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command line, and what stands in the environment."""
    where = ["--hostfile", str(folder / "hosts")] if "three hosts" in cell.place else []
    epochs = "3" if cell.fault == "disk full at the end" else "1000000"
    run = ["--backend", cell.framework, "--data-dir", str(data), "--epochs", epochs, "--threads", "1"]
    run += ["--log-level", "DEBUG"]
    for option, value, has_it in (
        ("--host-timeout", HOST_TIMEOUT, cell.fault in {"link cut", "power off"}),
        ("--grace", GRACE, cell.fault == "grace cut short"),
        ("--checkpoint-every", 1, cell.moment == "checkpoint"),
        ("--stall-timeout", STALL[cell.framework], cell.fault in _STALLS),
    ):
        run += [option, str(value)] if has_it else []
    environ = {
        "FAULT": f"{cell.fault.replace(' ', '_')} {cell.moment.replace(' ', '_')} {cell.rank} {folder}",
        "PYTHONPATH": f"{Path(__file__).parent / 'inject'}{os.pathsep}{NUMPY_BACKEND}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **INHERITED,
    }  # fmt: skip
    unilaunch = [sys.executable, "-m", "unilaunch"]
    if cell.place == BY_HAND:
        return [*unilaunch, "launch", *run], {**environ, "UNILAUNCH_SECRET": "0123456789abcdef"}
    words = ["-n", "3", *(where or ["--oversubscribe"])]
    words += [word for name in ("FAULT", *INHERITED) for word in ("-x", name)] if where else []
    if "launch" in cell.place:
        start = ["--launcher", DIRECT] if cell.mpi == DIRECT else ["--mpirun", str(MPIS[cell.mpi])]
        return [*unilaunch, "launch", *start, *words, *run], environ
    if where:
        words += ["-x", "PYTHONPATH"]
        words += [word for name, value in keepalive(HOST_TIMEOUT).items() for word in ("--mca", name, value)]
    return [str(MPIS[cell.mpi]), *words, *unilaunch, "run", *run], environ


def _here(cell: Cell, line: list[str], environ: dict[str, str], folder: Path) -> tuple[Finished, float, list[str]]:
    """Run a job on this host; return it, when it ended, and what it left running."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("UNILAUNCH_", "OMPI_"))}  # noqa: TID251
    begin = time.monotonic()
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            line, cwd=folder, env=own | environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
    _strike(cell, folder, process, process.pid)
    with suppress(subprocess.TimeoutExpired):
        process.wait(DEADLINE)
    process.kill()
    process.wait()
    end, left = _gone(lambda: _of_job(folder))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    out_text, err_text = ((folder / stream).read_text() for stream in ("out", "err"))
    job = Finished(process.returncode, out_text, err_text, time.monotonic() - begin, folder)
    return job, end, list(left.values())


def _on_hosts(
    cell: Cell, line: list[str], environ: dict[str, str], folder: Path, cluster: Cluster
) -> tuple[Finished, float, list[str]]:
    """Run a job on three hosts; what the world does to it is done here, to the last of them."""
    cluster.hostfile([1, 1, 1], folder)
    others = []
    if cell.place == BY_HAND:
        nodes = ["--nnodes", "3", "--nproc-per-node", "1", "--master-addr", cluster.addresses[0], "--node-rank"]
        line, *typed = [[*line[:4], *nodes, str(node), *line[4:]] for node in range(3)]
        others = [cluster.start(node, words, folder, environ) for node, words in enumerate(typed, 1)]
    running = cluster.start(0, line, folder, environ)
    if cell.fault in {"link cut", "power off"}:
        _await(folder / "now", running.process)
        (cluster.cut if cell.fault == "link cut" else cluster.power_off)(2)
        _known_from_now_on(folder)
    _strike(cell, folder, running.process, 0)
    job = running.finish()
    hosts = [0, 1] if cell.fault == "power off" else [0, 1, 2]
    for node, other in enumerate(others, 1):
        if node in hosts:
            other.finish()
        else:
            other.process.kill()
            other.process.wait()

    def left() -> dict[int, str]:
        return {pid: line for host in hosts for pid, line in cluster.processes(host).items() if "unilaunch" in line}

    end, remaining = _gone(left)
    cluster.sweep()
    if cell.fault == "link cut":
        cluster.heal(2)
    return job, end, list(remaining.values())


def _strike(cell: Cell, folder: Path, process: "subprocess.Popen[bytes]", started: int) -> None:
    """Do to the process that was started, or to mpirun below it, what a person would do to it."""

    def child(parent: int) -> int:
        return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])

    signals = {
        "mpirun killed": [9], "launch killed": [9], "Ctrl-C": [2], "Ctrl-C twice": [2, 2], "SIGUSR1": [10],
        "grace cut short": [15],
    }.get(cell.fault, [])  # fmt: skip
    if signals:
        _await(folder / "now", process)
        started = started or child(process.pid)
        _known_from_now_on(folder)
    for number in signals:
        below = cell.fault == "mpirun killed" and "launch" in cell.place
        with suppress(ProcessLookupError):  # it has ended already: how, _judge says
            os.kill(child(started) if below else started, number)
        time.sleep(0.2 * (len(signals) - 1))


def _known_from_now_on(folder: Path) -> None:
    """Let the time of a fault from outside count from when it is done, not from when the rank was ready for it."""
    if (folder / "now").exists():
        (folder / "now").write_text(f"{time.time()} 0")


def _await(file: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + DEADLINE
    while not file.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


def _gone(left: Callable[[], dict[int, str]]) -> tuple[float, dict[int, str]]:
    """Return when the last process of the job went, or now if some do not go, and these."""
    deadline = time.monotonic() + SEVERAL_HOSTS
    while (remaining := left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return time.time(), remaining


def _of_job(folder: Path) -> dict[int, str]:
    """Return the processes of a job on this host: those with its folder in their environment."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{folder}".encode() in (path / "environ").read_bytes() and int(path.name) != os.getpid():
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return {pid: line for pid, line in found.items() if line}


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
    codes = {fault.code}
    if cell.fault in {"Ctrl-C", "SIGUSR1"} and cell.moment in MOMENTS[2:]:  # a training that is stopped can go on
        codes.add(REQUEUE)
    if cell.place == "mpirun, three hosts" and cell.mpi == "5":  # it ends a job whose socket it is first to find closed
        codes.add(14)
    if (job.returncode == 0 and not cell.loses_mpirun) if fault.code is None else job.returncode not in codes:
        yield f"exit code {job.returncode}, not {fault.code}"
    if fault.words not in _report(cell, job) and not cell.loses_the_monitor:
        yield f"nobody says {fault.words!r}"
    if seconds > (SEVERAL_HOSTS if "three" in cell.place else ONE_HOST):
        yield f"it took {seconds:.1f} s"
    if left:
        yield f"left: {left[0][:120]}"
    if job.output.is_dir():
        yield from _kept(cell, job)


def _report(cell: Cell, job: Finished) -> str:
    """Return what was reported: on the console, or when the launcher was killed by each rank."""
    files = [job.output / "report.json"] if cell.loses_mpirun else []
    if cell.fault in {"mpirun killed", "launch killed"}:
        files += job.output.glob("rank.*/failure.json")
    return job.console + "".join(file.read_text() if file.exists() else f"no {file}" for file in files)


def _kept(cell: Cell, job: Finished) -> Iterator[str]:
    """Look at what must have been kept: the last line, who failed, every checkpoint whole."""
    stdout = job.said(cell.rank)
    if cell.fills_disk:  # what finds no room is still shown
        stdout += job.stdout
    if "the last line before the fault" not in stdout and cell.fault not in {"power off", "link cut"}:
        yield "a log line is lost"
    # An agent takes all ranks of its host along.
    named = "(all 3 )?rank" if cell.fault == "agent killed" and "one" in cell.place else f"rank {cell.rank} on"
    nobody = cell.fault in _BY_THE_USER or FAULTS[cell.fault].code in {None, 0, 2, 124} or cell.loses_the_monitor
    if not nobody and not re.search(f"unilaunch: {named}", job.console):
        yield f"{named} is not named: {job.refusals()[:1]}"
    if cell.moment == "checkpoint":
        for file in (job.output / "checkpoints").glob("epoch-*.safetensors"):
            load_file(file)
