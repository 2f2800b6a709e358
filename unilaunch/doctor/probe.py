"""Send one host's facts to the doctor, from a rank that mpirun starts on that host.

python -m unilaunch.doctor.probe FILE [--measure]
"""

import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from unilaunch import launchers, plugins
from unilaunch.agent.host import supervise_alone
from unilaunch.backend import Peers
from unilaunch.devices import visible_devices
from unilaunch.errors import UnilaunchError
from unilaunch.json_value import JsonValue
from unilaunch.monitor.messages import Named, Returned
from unilaunch.rank.status import Status
from unilaunch.world import BOOT_ID, LauncherInfo

#: Packages that must have one version on all hosts, beside the frameworks.
PACKAGES = ("unilaunch", "mpi4py", "numpy", "scipy", "pydantic", "pymetis")


def main() -> int:
    """Send this host's facts, then whether its rank and the ranks of other hosts find each other."""
    environ = dict(os.environ)  # noqa: TID251  (this is a program of its own)
    return supervise_alone(environ, time.monotonic(), lambda _, status: _tell(status, environ))


def _tell(status: Status, environ: Mapping[str, str]) -> int:
    found = launchers.detect(environ)
    status.send(Named(found.rank, socket.gethostname()))
    told: dict[str, JsonValue] = {"facts": facts(environ, Path(sys.argv[1]))}
    status.send(Returned(result=told))  # the rank may hang while it connects to the others
    try:
        peers = _join(found, environ)
        told["meeting"] = dict(_meet(found, peers))
        status.send(Returned(result=told))
        if sys.argv[2:] == ["--measure"]:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))  # mpirun has bound the process to one core
            from unilaunch.doctor.measuring import measure

            machine = BOOT_ID.read_text(encoding="ascii")
            note = partial(_note_links, status, told)
            told["measured"] = measure(peers, found.rank, found.size or 1, machine, note)
    except UnilaunchError as error:
        told["refused"] = str(error)
    status.send(Returned(result=told))
    return int("refused" in told)


def _note_links(status: Status, told: dict[str, JsonValue]) -> None:
    """Tell that this host is measured: the others wait for the slowest one."""
    told["measures_links"] = True
    status.send(Returned(result=told))


def facts(environ: Mapping[str, str], token: Path) -> dict[str, Any]:
    """Return the facts of this host.

    Args:
        environ: The process's environment.
        token: A file that the launching host has just written.
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
        "time": time.time(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _join(found: LauncherInfo, environ: Mapping[str, str]) -> Peers:
    """Connect to the other ranks as a rank of a job does."""
    from unilaunch.rank import mpi
    from unilaunch.rank.alone import Alone

    if found.size == 1:
        return Alone()
    os.environ.update(mpi.variables(found, environ))  # noqa: TID251
    return mpi.join(found)


def _meet(found: LauncherInfo, peers: Peers) -> dict[str, str]:
    """Return over which addresses the ranks connected."""
    from unilaunch.rank import mpi
    from unilaunch.rank.rendezvous import meet
    from unilaunch.spec import RunSpec
    from unilaunch.world import count_world

    name = socket.gethostname()
    world = count_world(found, [str(host) for host in peers.share(name)], name)
    meeting = meet(peers, world, RunSpec())
    library = mpi.library() if found.size > 1 else "none"
    return {"address": meeting.address, "interface": meeting.interface, "library": library}


if __name__ == "__main__":
    sys.exit(main())
