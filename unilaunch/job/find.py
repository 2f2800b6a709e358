"""Find mpirun, and the launcher to which it belongs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from unilaunch import launchers
from unilaunch.errors import LauncherError
from unilaunch.launchers.mpirun import Mpirun
from unilaunch.spec.task import Machine


def find_mpirun(wanted: Path | None, environ: Mapping[str, str]) -> Mpirun:
    """Return the mpirun that starts the job: the named one, else the one in PATH, else the one beside this Python.

    Raises:
        LauncherError: There is none, or it belongs to no launcher that unilaunch can start.
    """
    path = _locate(wanted, environ.get("PATH"))
    said = _ask_version(path)
    for launcher in launchers.known().values():
        if mpirun := launcher.recognise(path, said):
            return mpirun
    first = next(iter(said.splitlines()), "nothing")
    expected = ", ".join(launcher.startable for launcher in launchers.known().values() if launcher.startable)
    raise LauncherError(f"{path} --version says {first!r}: expected {expected}")


def as_of_a_shell(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with what a service may not have: Open MPI 4 needs a PATH to start, Open MPI 5 a HOME."""
    whole = {"PATH": os.defpath, **environ}
    with suppress(RuntimeError):  # this user has no home
        whole = {"HOME": str(Path("~").expanduser()), **whole}
    return whole


@cache
def _ask_version(path: Path) -> str:
    """Return the program's output for --version; it is kept, since a job that is restarted needs it again."""
    try:
        line = [str(path), "--version"]
        environ = as_of_a_shell(os.environ)  # noqa: TID251  (what a user's shell gives it)
        done = subprocess.run(
            line, env=environ, capture_output=True, text=True, errors="replace", check=False, timeout=20
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(f"{path} --version: {error}: is it an mpirun?") from None
    return done.stdout + done.stderr


def foresee_mpirun(wanted: Path | None, environ: Mapping[str, str], machine: Machine) -> Mpirun:
    """Return the mpirun for which a job file is written: the one found here, else the likeliest one on the cluster.

    What is in an image has nothing to do with this machine: there it is the likeliest, unless the user names one.

    Raises:
        LauncherError: There is none here, and no launcher describes the one to expect.
    """
    if machine is Machine.IMAGE and not wanted and (assumed := _assume(None)):
        return assumed
    try:
        return find_mpirun(wanted, environ)
    except LauncherError:
        if assumed := _assume(wanted):
            return assumed
        raise


def _assume(wanted: Path | None) -> Mpirun | None:
    for launcher in launchers.known().values():
        if mpirun := launcher.assume():
            return replace(mpirun, path=wanted or mpirun.path)
    return None


def _locate(wanted: Path | None, search: str | None) -> Path:
    if wanted:
        found = shutil.which(str(wanted), path=search)
        if not found:
            raise LauncherError(f"--mpirun {wanted}: no such program")
        return _below_a_prefix(Path(found).absolute())
    here = str(Path(sys.executable).parent)
    for folder in (search, here):
        for name in ("mpirun", "mpiexec"):
            if found := shutil.which(name, path=folder):
                return _below_a_prefix(Path(found).absolute())
    raise LauncherError(
        f"no mpirun in PATH, and none beside {sys.executable}: pip install 'unilaunch[mpi]', or load your cluster's MPI"
    )


def _below_a_prefix(path: Path) -> Path:
    """Return the path with /usr/bin for /bin: Open MPI 4 takes no / for its prefix."""
    return path.parent.resolve() / path.name if path.parent.parent == Path("/") else path
