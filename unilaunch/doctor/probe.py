"""Send one host's facts to the doctor, from a rank that mpirun starts on that host.

python -m unilaunch.doctor.probe FILE OUTPUT_DIR [--measure]
"""

import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from errno import EDQUOT, ENOSPC
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from unilaunch import launchers
from unilaunch.agent.under_launcher import supervise
from unilaunch.errors import UnilaunchError
from unilaunch.interfaces import plugins
from unilaunch.interfaces.backend import Peers
from unilaunch.interfaces.world import BOOT_ID, LauncherInfo
from unilaunch.json_value import JsonValue
from unilaunch.machine.devices import visible_devices
from unilaunch.monitor.messages import Named, Returned
from unilaunch.rank.status import Status

#: Packages that must have one version on all hosts, beside the frameworks.
PACKAGES = ("unilaunch", "mpi4py", "numpy", "scipy", "pydantic", "pymetis")
#: Bytes that a folder of a job must have room for.
_ROOM = 1 << 20


def main() -> int:
    """Send this host's facts, then whether its rank and the ranks of other hosts find each other."""
    environ = dict(os.environ)  # noqa: TID251  (this is a program of its own)
    return supervise(environ, lambda status: _tell(status, environ))


def _tell(status: Status, environ: Mapping[str, str]) -> int:
    found = launchers.detect(environ)
    status.send(Named(found.rank, socket.gethostname()))
    message: dict[str, JsonValue] = {}
    note = partial(_note, status, message)
    # The rank may hang while it connects to the others; until then it has not reached rank 0.
    note(facts=facts(environ, *map(Path, sys.argv[1:3])), unreached=[0] if found.rank else [])
    try:
        if peers := _connect(found, environ, note):
            note(meeting=dict(_find_rank_0(found, peers)))
            if sys.argv[3:] == ["--measure"]:
                note(measured=_measure(found, peers, partial(note, measures_links=True)))
    except UnilaunchError as error:
        note(refused=str(error))
    return int("refused" in message)


def _note(status: Status, message: dict[str, JsonValue], **news: JsonValue) -> None:
    """Tell the doctor something more."""
    message.update(news)
    status.send(Returned(result=message))


def facts(environ: Mapping[str, str], token: Path, output_dir: Path) -> dict[str, Any]:
    """Return the facts of this host.

    Args:
        environ: The process's environment.
        token: A file that the launching host has just written.
        output_dir: The output folder.
    """
    backends = plugins.backends()
    frameworks = [backend.framework.partition(".")[0] for backend in backends]
    packages = {name: found for name in (*PACKAGES, *frameworks) if (found := _version(name))}
    return {
        "python": platform.python_version(),
        "packages": packages,
        "frameworks": [name for name in frameworks if name in packages],
        "faults": [fault for backend in backends if (fault := backend.find_fault(packages))],
        "devices": {kind: len(names) for kind, names in visible_devices(environ).items()},
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "locked_memory": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "shared_memory": shutil.disk_usage("/dev/shm").total,  # noqa: S108  (it is looked at, not written)
        "shares_folder": token.exists(),
        "full": _full(environ, output_dir),
        "time": time.time(),
    }


def _full(environ: Mapping[str, str], output_dir: Path) -> list[str]:
    """Return the folders of a job on full disks, each with the option or variable that names another one."""
    folders = {
        "--output-dir": output_dir,
        "TMPDIR": Path(environ.get("TMPDIR") or "/tmp"),  # noqa: S108  (as mpirun)
        "XDG_CACHE_HOME": Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/"), ".cache")),
    }
    return [f"{folder.absolute()} ({name})" for name, folder in folders.items() if _is_full(folder.absolute())]


def _is_full(folder: Path) -> bool:
    """Return whether a folder's disk has no room, or this user's quota none; a folder to come is on its parent's."""
    try:
        nearest = next(one for one in (folder, *folder.parents) if one.exists())
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(os.urandom(_ROOM))
            file.flush()
            os.fsync(file.fileno())  # a file server may tell only now
    except OSError as error:
        return error.errno in {ENOSPC, EDQUOT}
    return False


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _connect(found: LauncherInfo, environ: Mapping[str, str], note: Callable[..., None]) -> Peers | None:
    """Connect to the other ranks as a rank of a job does; None if two of them cannot connect: MPI would wait for ever.

    Args:
        found: The launcher info.
        environ: The process's environment.
        note: Tells the doctor to which ranks this one cannot connect.
    """
    from unilaunch.rendezvous import mpi, rendezvous
    from unilaunch.spec.run_spec import RunSpec

    os.environ.update(mpi.variables(found, environ))  # noqa: TID251
    peers = rendezvous.join(found, environ, RunSpec().timeout, insecure=False, thread_level="serialized")
    note(unreached=[])
    unreached: list[JsonValue] = [*rendezvous.find_unreached(peers, found)]
    note(unreached=unreached)
    return None if any(peers.share(unreached)) else rendezvous.join_mpi(found, peers)


def _find_rank_0(found: LauncherInfo, peers: Peers) -> dict[str, str]:
    """Return over which addresses the ranks connected."""
    from unilaunch.interfaces.world import count_world
    from unilaunch.rendezvous import mpi
    from unilaunch.rendezvous.rendezvous import meet
    from unilaunch.spec.run_spec import RunSpec

    name = socket.gethostname()
    world = count_world(found, [str(host) for host in peers.share(name)], name)
    meeting = meet(peers, world, RunSpec())
    library = mpi.library() if found.size > 1 else "none"
    return {"address": meeting.address, "interface": meeting.interface, "library": library}


def _measure(found: LauncherInfo, peers: Peers, note: Callable[[], None]) -> dict[str, JsonValue]:
    """Measure this host and its links; *note* tells that the host is measured: the others wait for the slowest one."""
    from unilaunch.doctor.measuring import measure

    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # mpirun has bound the process to one core
    return measure(peers, found.rank, found.size or 1, BOOT_ID.read_text(encoding="ascii"), note)


if __name__ == "__main__":
    sys.exit(main())
