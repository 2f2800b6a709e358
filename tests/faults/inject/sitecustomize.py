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
from collections import Counter
from collections.abc import Callable
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


def _nothing(*_: object, **__: object) -> None:
    pass


def _wrap(owner: Any, name: str, before: Callable[..., None] = _nothing, after: Callable[..., None] = _nothing) -> None:
    """Let a function do something more, with its own arguments."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        result = original(*args, **kwargs)
        after(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def _in_folder(module: Any) -> None:
    def recorded(_: object, **event: object) -> None:
        strike({"framework import": "before_import", "init": "before_init"}.get(str(event.get("phase")), ""))

    _wrap(module.OutputFolder, "record", after=recorded)
    _wrap(module.OutputFolder, "write_result", before=lambda *_, **__: strike("end"))


def _in_collectives(module: Any) -> None:
    seen: Counter[str] = Counter()

    def counted(_: object, buffer: Any) -> None:
        seen.update(calls=1, epochs=buffer.size > 100)  # a gradient; before the first epoch ranks count rows together
        strike("first_collective" if seen["calls"] == 1 else "epoch" if seen["epochs"] == 4 else "")

    _wrap(getattr(module, "MpiCollectives", None) or module.TcpCollectives, "all_reduce", before=counted)


def _in_run(module: Any) -> None:
    _wrap(
        module, "run", before=lambda *_, **__: _OWN.append(_rank())
    )  # the rank forgets the variables that say who it is


def _in_checkpoint(descriptor: Any) -> None:
    if "epoch-" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
        strike("checkpoint")


_AFTER = {
    "unilaunch.folder.folder": _in_folder, "unilaunch.rendezvous.mpi": _in_collectives,
    "unilaunch.rendezvous.tcp": _in_collectives, "unilaunch.rank.run": _in_run,
}  # fmt: skip


class _Finder(MetaPathFinder):
    @override
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in _AFTER:
            return None
        after, spec = _AFTER.pop(fullname), PathFinder.find_spec(fullname, path)
        _wrap(spec and spec.loader, "exec_module", after=after)
        return spec


if KIND:  # in every process: the failing rank may be forked by another rank's agent
    sys.meta_path.insert(0, _Finder())
    _wrap(os, "fsync", before=_in_checkpoint)
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
