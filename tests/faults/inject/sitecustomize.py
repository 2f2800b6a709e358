"""Makes one rank fail in a chosen way at a chosen moment: FAULT="KIND MOMENT RANK FOLDER", found through PYTHONPATH.

Faults of the rank itself or of its launcher happen here. For faults from outside (a cut link) the process that started
the job waits for the mark FOLDER/now.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

from typing_extensions import override

KIND, MOMENT, RANK, FOLDER = (os.environ.get("FAULT", "") + "   ").split(" ")[:4]  # noqa: TID251
EPOCH = 4
_FEW = 100  # numbers; a gradient has more
_LEFT = 96 << 20  # bytes that the memory cgroup still allows when the fault begins
_ADDRESSES = 24 << 30  # bytes of addresses
_AT_THE_END = KIND == "disk_full_at_the_end"  # whatever the moment


_OWN: list[str] = []


def _rank() -> str:
    if _OWN:
        return _OWN[0]
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "_UNILAUNCH_RANK", "RANK")
    return next((os.environ[name] for name in names if name in os.environ), "none")  # noqa: TID251  (launch itself)


def _forks_the_ranks() -> bool:
    """Return whether this is the process from which a direct start forks its ranks."""
    return sys.orig_argv[2:4] == ["unilaunch", "guard"]


def strike(moment: str) -> None:
    """Fail, if this is the moment and the rank."""
    if moment != ("end" if _AT_THE_END else MOMENT) or _rank() != RANK or Path(FOLDER, "now").exists():
        return
    sys.stdout.write("the last line before the fault\n")
    sys.stdout.flush()
    _mark()
    _FAULTS[KIND]()


def _mark() -> None:
    aside = Path(FOLDER, ".now")
    aside.write_text(f"{time.time()} {os.getpid()}")
    aside.rename(Path(FOLDER, "now"))


def _raise() -> None:
    raise RuntimeError("broken on purpose")


def _allocate() -> None:
    group = _memory_group()
    if not group.name.startswith("unilaunch-"):
        raise SystemExit(f"{group} is not this rank's own: its limit would be that of all tests")
    used = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(used + _LEFT))
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))


def _use_up_addresses() -> None:
    import mmap

    kept = []
    while True:
        kept.append(mmap.mmap(-1, 1 << 30))  # never written to: it takes no memory


def _loop() -> None:
    while True:
        pass


def _fill_disk() -> None:
    from contextlib import suppress

    with suppress(OSError), Path("log_output", "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


def _kill_agent() -> None:
    # What a rank writes in the moment in which its agent is killed is lost.
    kept, deadline = Path(FOLDER, "log_output", f"rank.{RANK}", "stdout"), time.monotonic() + 30
    while time.monotonic() < deadline and not (kept.exists() and "before the fault" in kept.read_text()):
        time.sleep(0.01)
    _mark()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def _kill_daemon() -> None:
    process = os.getppid()
    while Path(f"/proc/{process}/comm").read_text().strip() not in {"orted", "prted", "mpirun", "prterun"}:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(process, signal.SIGKILL)
    time.sleep(60)


_FROM_OUTSIDE = ("mpirun killed", "launch killed", "link cut", "power off", "Ctrl-C twice", "grace cut short")
_FAULTS = {
    "exception": _raise,
    "exit 3": lambda: sys.exit(3),
    "exit 0": lambda: sys.exit(0),
    "_exit 3": lambda: os._exit(3),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "agent killed": _kill_agent,
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "loop": _loop,
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "OOM killer": _allocate,
    "ulimit -v": _use_up_addresses,
    "daemon killed": _kill_daemon,
    **dict.fromkeys(_FROM_OUTSIDE, lambda: time.sleep(60)),
    # A rank that goes on: a training notes the signal and stops. Before that, the signal ends the sleep.
    **dict.fromkeys(("Ctrl-C", "SIGUSR1"), lambda: time.sleep(60 if MOMENT.startswith("before") else 0.5)),
    **dict.fromkeys(("disk full", "disk full at the end"), _fill_disk),
}
_FAULTS = {kind.replace(" ", "_"): fault for kind, fault in _FAULTS.items()}


def _after_folder(module: Any) -> None:
    kind = module.OutputFolder
    record = kind.record

    def recorded(self: object, **event: object) -> None:
        record(self, **event)
        strike({"framework import": "before_import", "init": "before_init"}.get(str(event.get("phase")), ""))

    kind.record = recorded
    write_result = kind.write_result

    def written(self: object, result: object) -> None:
        strike("end")
        write_result(self, result)

    kind.write_result = written


def _after_collectives(module: Any) -> None:
    kind = getattr(module, "MpiCollectives", None) or module.TcpCollectives
    all_reduce = kind.all_reduce
    calls = epochs = 0

    def counted(self: object, buffer: Any) -> None:
        nonlocal calls, epochs
        calls += 1
        epochs += buffer.size > _FEW  # a gradient; before the first epoch ranks count rows together
        strike("first_collective" if calls == 1 else "epoch" if epochs == EPOCH else "")
        all_reduce(self, buffer)

    kind.all_reduce = counted


def _after_run(module: Any) -> None:
    run = module.run

    def noted(read_task: object, environ: object, status: object) -> object:
        _OWN[:] = [_rank()]  # the rank forgets the variables that say who it is
        return run(read_task, environ, status)

    module.run = noted


def _in_checkpoint() -> None:
    fsync = os.fsync

    def synced(fd: Any) -> None:
        if "epoch-" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            strike("checkpoint")
        fsync(fd)

    os.fsync = synced


_AFTER: dict[str, Callable[[Any], None]] = {
    "unilaunch.folder.folder": _after_folder, "unilaunch.rendezvous.mpi": _after_collectives,
    "unilaunch.rendezvous.tcp": _after_collectives, "unilaunch.rank.run": _after_run,
}  # fmt: skip


class _Finder(MetaPathFinder):
    @override
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname not in _AFTER:
            return None
        after = _AFTER.pop(fullname)
        spec: Any = PathFinder.find_spec(fullname, path)
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            after(module)

        spec.loader.exec_module = executed
        return spec


def _memory_group() -> Path:
    """Return the folder of this process's memory cgroup."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    group = next(line.split(":")[2] for line in lines if ":memory:" in line)
    return Path(f"/sys/fs/cgroup/memory{group}")


def _limit() -> None:
    """Limit the rank and its agent before they part."""
    if KIND == "ulimit_-v":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, resource.RLIM_INFINITY))
    if KIND == "OOM_killer":
        group = _memory_group() / f"unilaunch-{crc32(FOLDER.encode())}"
        group.mkdir(exist_ok=True)  # an earlier run, in a folder of the same name, may have left it
        (group / "cgroup.procs").write_text(str(os.getpid()))


if KIND:  # in every process: the failing rank may be forked by another rank's agent
    sys.meta_path.insert(0, _Finder())
    _in_checkpoint()
    if _rank() == RANK or _forks_the_ranks():
        _limit()
