"""Makes one rank fail in a chosen way at a chosen moment: FAULT="KIND MOMENT RANK FOLDER", found through PYTHONPATH.

Faults of the rank itself or of its launcher happen here. For faults from outside (a cut link) the process that started
the job waits for the mark FOLDER/now.
"""

import mmap
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from zlib import crc32

from typing_extensions import override

KIND, MOMENT, RANK, FOLDER = (os.environ.get("FAULT", "") + "   ").split(" ")[:4]  # noqa: TID251
_OWN: list[str] = []


def _rank() -> str:
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "_UNILAUNCH_RANK", "RANK")
    return (_OWN + [os.environ[name] for name in names if name in os.environ] + ["none"])[0]  # noqa: TID251


def strike(moment: str) -> None:
    """Fail, if this is the moment and the rank."""
    ours = "end" if KIND == "disk_full_at_the_end" else MOMENT
    if moment == ours and _rank() == RANK and not Path(FOLDER, "now").exists():
        sys.stdout.write("the last line before the fault\n")
        sys.stdout.flush()
        _mark()
        _fail()


def _mark() -> None:
    aside = Path(FOLDER, ".now")
    aside.write_text(f"{time.time()} {os.getpid()}")
    aside.rename(Path(FOLDER, "now"))


def _fail() -> None:
    if KIND == "exception":
        raise RuntimeError("broken on purpose")
    if KIND in {"exit_3", "exit_0"}:
        sys.exit(int(KIND[-1]))
    if KIND == "_exit_3":
        os._exit(3)
    if KIND in {"SIGKILL", "SIGSEGV", "SIGTERM", "SIGSTOP"}:
        os.kill(os.getpid(), signal.Signals[KIND])
    elif KIND == "loop":
        while True:
            pass
    elif KIND == "agent_killed":
        _kill_agent()
    elif KIND == "daemon_killed":
        _kill_daemon()
    elif KIND in {"OOM_killer", "ulimit_-v"}:
        _use_up_memory()
    elif KIND.startswith("disk_full"):
        with suppress(OSError), Path("log_output", "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    else:  # from outside; after Ctrl-C or SIGUSR1 a training goes on, notes the signal and stops
        time.sleep(0.5 if KIND in {"Ctrl-C", "SIGUSR1"} and not MOMENT.startswith("before") else 60)


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


def _use_up_memory() -> None:
    kept: list[object] = []
    while KIND == "ulimit_-v":
        kept.append(mmap.mmap(-1, 1 << 30))  # never written to: it takes no memory
    group = _memory_group()
    if not group.name.startswith("unilaunch-"):
        raise SystemExit(f"{group} is not this rank's own: its limit would be that of all tests")
    used = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(used + (96 << 20)))
    while True:
        kept.append(b"x" * (16 << 20))


def _memory_group() -> Path:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return Path("/sys/fs/cgroup/memory" + next(line.split(":")[2] for line in lines if ":memory:" in line))


def _after_folder(module: Any) -> None:
    kind = module.OutputFolder
    record, write_result = kind.record, kind.write_result

    def recorded(self: object, **event: object) -> None:
        record(self, **event)
        strike({"framework import": "before_import", "init": "before_init"}.get(str(event.get("phase")), ""))

    def written(self: object, result: object) -> None:
        strike("end")
        write_result(self, result)

    kind.record, kind.write_result = recorded, written


def _after_collectives(module: Any) -> None:
    kind = getattr(module, "MpiCollectives", None) or module.TcpCollectives
    all_reduce = kind.all_reduce
    calls = epochs = 0

    def counted(self: object, buffer: Any) -> None:
        nonlocal calls, epochs
        calls += 1
        epochs += buffer.size > 100  # a gradient; before the first epoch ranks count rows together
        strike("first_collective" if calls == 1 else "epoch" if epochs == 4 else "")
        all_reduce(self, buffer)

    kind.all_reduce = counted


def _after_run(module: Any) -> None:
    run = module.run

    def noted(read_task: object, environ: object, status: object) -> object:
        _OWN[:] = [_rank()]  # the rank forgets the variables that say who it is
        return run(read_task, environ, status)

    module.run = noted


_AFTER = {
    "unilaunch.folder.folder": _after_folder, "unilaunch.rendezvous.mpi": _after_collectives,
    "unilaunch.rendezvous.tcp": _after_collectives, "unilaunch.rank.run": _after_run,
}  # fmt: skip


class _Finder(MetaPathFinder):
    @override
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in _AFTER:
            return None
        after, spec = _AFTER.pop(fullname), PathFinder.find_spec(fullname, path)
        loader: Any = spec and spec.loader
        execute = loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            after(module)

        loader.exec_module = executed
        return spec


_FSYNC = os.fsync


def _synced(fd: Any) -> None:
    if "epoch-" in str(Path(f"/proc/self/fd/{fd}").readlink()):
        strike("checkpoint")
    _FSYNC(fd)


if KIND:  # in every process: the failing rank may be forked by another rank's agent
    sys.meta_path.insert(0, _Finder())
    os.fsync = _synced
    if _rank() == RANK or sys.orig_argv[2:4] == [
        "unilaunch",
        "guard",
    ]:  # the process from which `launch` forks its ranks
        if KIND == "ulimit_-v":
            resource.setrlimit(resource.RLIMIT_AS, (24 << 30, resource.RLIM_INFINITY))
        if KIND == "OOM_killer":
            own_group = _memory_group() / f"unilaunch-{crc32(FOLDER.encode())}"
            own_group.mkdir(exist_ok=True)  # an earlier run, in a folder of the same name, may have left it
            (own_group / "cgroup.procs").write_text(str(os.getpid()))
