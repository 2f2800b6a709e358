"""Which mpirun there is, and of which MPI."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unilaunch.errors import LauncherError

#: What `mpirun --version` says, by launcher.
_VERSIONS = {
    "Open MPI": re.compile(r"\(Open MPI\) (\d+)\.(\d+)"),
    "Intel MPI": re.compile(r"Intel\(R\) MPI Library.*Version (\d+)\.(\d+)"),
    "MPICH": re.compile(r"HYDRA build details:\s*Version:\s+(\d+)\.(\d+)"),
}
_OLDEST = {"Open MPI": (4, 0)}


@dataclass(frozen=True, slots=True)
class Mpirun:
    """An mpirun.

    Attributes:
        path: Where it is; absolute, so that Open MPI finds its daemon at the same place on the other hosts.
        launcher: "Open MPI", "MPICH" or "Intel MPI".
        version: Major and minor version.
    """

    path: Path
    launcher: str
    version: tuple[int, int]


def find_mpirun(wanted: Path | None, environ: Mapping[str, str]) -> Mpirun:
    """Return the mpirun to start with: the one that is named, else PATH's, else the one beside this Python.

    Raises:
        LauncherError: There is none, or it is none that unilaunch can start ranks with.
    """
    path = _locate(wanted, environ.get("PATH"))
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(f"{path} --version: {error}: is it an mpirun?") from None
    said = done.stdout + done.stderr
    for launcher, pattern in _VERSIONS.items():
        if match := pattern.search(said):
            version = int(match[1]), int(match[2])
            if version < _OLDEST.get(launcher, (0, 0)):
                raise LauncherError(f"{path} is {launcher} {match[1]}.{match[2]}: Open MPI 4 or later is needed")
            return Mpirun(path, launcher, version)
    first = next(iter(said.splitlines()), "nothing")
    raise LauncherError(f"{path} --version says {first!r}: expected Open MPI 4 or later, MPICH or Intel MPI")


def _locate(wanted: Path | None, search: str | None) -> Path:
    if wanted:
        found = shutil.which(str(wanted), path=search)
        if not found:
            raise LauncherError(f"--mpirun {wanted}: no such program")
        return Path(found).absolute()
    here = str(Path(sys.executable).parent)
    for folder in (search, here):
        for name in ("mpirun", "mpiexec"):
            if found := shutil.which(name, path=folder):
                return Path(found).absolute()
    raise LauncherError(
        f"no mpirun in PATH, and none beside {sys.executable}: pip install 'unilaunch[mpi]', or load your cluster's MPI"
    )
