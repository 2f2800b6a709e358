"""The launchers: each is one object in one module, and comes through the entry points "unilaunch.launchers".

`detect` asks all of them which one started this process; the innermost one wins. Begin with `launcher.py` (the base
class), then read one of them, such as `torchrun.py`.
"""

import os
import time
from collections.abc import Iterable, Mapping
from functools import cache

from unilaunch.errors import EnvironmentMismatchError, PluginError, UnilaunchError
from unilaunch.interfaces import plugins
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.ancestry import Ancestor, Daemon, ancestors
from unilaunch.launchers.launcher import Launcher
from unilaunch.record import Record, replace
from unilaunch.spec.variables import COPIES, MONITOR, is_of_a_service


class Evidence(Record):
    """What one launcher's variables say in an environment.

    Attributes:
        name: The launcher's entry point.
        info: The world that the variables describe; None if they are invalid.
        error: Why they are invalid; "" if they are valid.
        chosen: Whether this launcher started the process.
        why: Why it was chosen or ignored.
    """

    name: str
    info: LauncherInfo | None
    error: str = ""
    chosen: bool = False
    why: str = ""


@cache
def known() -> dict[str, Launcher]:
    """Return every launcher by the name of its entry point, innermost first if no process above this one decides.

    Raises:
        PluginError: No launcher is installed: every rank would run as world size 1.
    """
    launchers: dict[str, Launcher] = plugins.make_all(plugins.LAUNCHERS)
    if not launchers:
        raise PluginError(
            f"no launcher is installed (entry points {plugins.LAUNCHERS.name}): install unilaunch again; a clone with "
            "pip install -e ."
        )
    for name, launcher in launchers.items():
        launcher.title = launcher.title or name
    return dict(sorted(launchers.items(), key=lambda item: item[1].order))


def detect(environ: Mapping[str, str]) -> LauncherInfo:
    """Return the world that the innermost launcher describes; world size 1 when there is no launcher.

    Raises:
        EnvironmentMismatchError: The launcher's variables are incomplete or invalid, or a variable says that
            there are several ranks, but no launcher says which one this is.
    """
    for evidence in survey(environ):
        if evidence.chosen:
            if evidence.info is None:
                raise EnvironmentMismatchError(evidence.error)
            return evidence.info
    return _only_rank(environ)


def _only_rank(environ: Mapping[str, str]) -> LauncherInfo:
    """Return a world of one rank; refuse it if a variable says that there are several."""
    for title, name in ((launcher.title, name) for launcher in known().values() for name in launcher.sizes):
        if environ.get(name, "1") not in {"0", "1"}:
            raise EnvironmentMismatchError(
                f"{name}={environ[name]} says that there are {environ[name]} ranks, as {title} sets it, and what else "
                f"it would set is missing: start the ranks with a launcher (see unilaunch explain), or unset {name}"
            )
    run_id = f"alone-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return LauncherInfo(
        launcher="none", rank=0, size=1, local_rank=0, local_size=1, run_id=run_id, evidence={}, mpi=False
    )


def survey(environ: Mapping[str, str], above: Iterable[Ancestor] | None = None) -> list[Evidence]:
    """Return the evidence of every launcher that is detected, and which one is chosen.

    Args:
        environ: The process's environment.
        above: The process's ancestors, nearest first; None: read them from /proc if several launchers are detected.
    """
    seen = [evidence for name in known() if (evidence := _look(name, environ))]
    seen = [evidence for evidence in seen if not known()[evidence.name].is_protocol_only(environ)] or seen
    if len(seen) <= 1:
        return [_with_reason(evidence, evidence.name, "the only launcher") for evidence in seen]
    programs = dict.fromkeys(
        evidence.name
        for ancestor in (ancestors() if above is None else above)
        for evidence in seen
        if known()[evidence.name].is_program(ancestor)
    )
    chosen = next((evidence for evidence in seen if evidence.name == next(iter(programs), "")), seen[0])
    reason = "the nearest of this process's ancestors" if programs else "the innermost, as launchers are nested"
    if chosen.info and chosen.info.size == 1 and MONITOR not in environ:  # ranks of `launch` have mpirun above them
        for evidence in seen:
            launcher = known()[evidence.name]
            several = evidence.info.size > 1 if evidence.info else launcher.is_unseen
            if several and (launcher.scripts or launcher.is_unseen) and evidence.name not in programs:
                chosen, reason = evidence, "the one with several ranks, and any program may set what it sets"
    return [_with_reason(evidence, chosen.name, reason) for evidence in seen]


def refuse_copies(environ: Mapping[str, str], command: str) -> None:
    """Refuse a command that a launcher has started several times, as in `mpirun -n 2 unilaunch launch train.py`.

    A rank's program may start other jobs: it stands between the launcher and their `launch`.

    Raises:
        EnvironmentMismatchError: It has.
    """
    parent, found = next(ancestors(), None), next((one for one in survey(environ) if one.chosen), None)
    agent, _, number = environ.get(COPIES, "").partition(" ")
    if parent and agent == str(parent.pid) and number != "1":
        raise EnvironmentMismatchError(
            f"unilaunch launch has started {number} processes of `{command}`, and each would start the whole job: type "
            f"`{command}` alone"
        )
    if found and known()[found.name].is_unseen and (copies := known()[found.name].copies(environ)) > 1:
        raise EnvironmentMismatchError(
            f"{known()[found.name].title} has started {copies} processes of `{command}`, one in each pod, and each "
            "would start the whole job: type torchrun -m unilaunch run in its place"
        )
    if parent and found and found.info and found.info.size > 1 and known()[found.name].is_program(parent):
        raise EnvironmentMismatchError(
            f"{found.info.launcher} has started {found.info.size} processes of `{command}`, and each would start the "
            f"whole job: let it start `python -m unilaunch run`, or type `{command}` without it"
        )


def is_helper(environ: Mapping[str, str]) -> bool:
    """Return whether this process is a helper of a launcher, and not a rank.

    Where another launcher is seen, the variable that says so may have been left in the user's shell.
    """
    helped = [launcher for launcher in known().values() if launcher.is_helper(environ)]
    return any(not survey(environ) or any(map(launcher.is_program, ancestors())) for launcher in helped)


def own_prefixes() -> tuple[str, ...]:
    """Return how the names of the launchers' own variables begin."""
    return tuple(dict.fromkeys(prefix for launcher in known().values() for prefix in launcher.prefixes))


def set_by_launchers(environ: Mapping[str, str], but: str = "") -> set[str]:
    """Return the variables in *environ* that launchers, or a Service "master", have set as if the user had.

    Args:
        environ: The process's environment.
        but: The launcher to leave out, by its title: the one that started this process.
    """
    others = (launcher for launcher in known().values() if launcher.title != but)
    of_services = {name for name in ("MASTER_PORT",) if is_of_a_service(name, environ.get(name, ""))}
    return of_services | {name for launcher in others for name in launcher.exports(environ)}


def find_daemon() -> Daemon | None:
    """Return the nearest process above this one of a launcher with an MPI library; None if it is unknown."""
    with_library = [launcher for launcher in known().values() if launcher.libraries]
    for ancestor in ancestors():
        for launcher in with_library:
            if ancestor.program and ancestor.program.name in launcher.programs:
                return Daemon(ancestor.pid, ancestor.program, launcher.libraries)
    return None


def _look(name: str, environ: Mapping[str, str]) -> Evidence | None:
    try:
        info = known()[name].detect(environ)
    except EnvironmentMismatchError as error:
        return Evidence(name, None, str(error))
    except UnilaunchError:
        raise
    except Exception as error:  # a plug-in may raise any exception
        why = f"{type(error).__name__}: {error}"
        raise PluginError(f"launcher {name!r} cannot read this environment: {why}") from error
    return Evidence(name, replace(info, name=name)) if info else None


def _with_reason(evidence: Evidence, chosen: str, reason: str) -> Evidence:
    if evidence.name == chosen:
        return replace(evidence, chosen=True, why=reason)
    return replace(evidence, why=f"{chosen} is {reason}; these variables are around it, or left over")
