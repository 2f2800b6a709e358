"""Log in to all other hosts of a job at once: mpirun waits for minutes for a host that does not answer."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Event

from unilaunch.errors import LauncherError
from unilaunch.job.plan import Plan
from unilaunch.machine.addresses import own_names
from unilaunch.spec.hostfile import Host

_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_SSH_FAILED = 255
_PATIENCE = 20.0  # seconds for a host that accepts the connection and does not finish the login
_AT_ONCE = 32
_TICK = 0.1  # seconds between two looks at whether the user has stopped the job
#: mpirun itself logs in to this many hosts; its daemons there log in to the others.
_DIRECT = 64


def check_logins(plan: Plan, is_stopped: Callable[[], object]) -> None:
    """Raise an error if mpirun could not log in to a host that the user has named.

    Args:
        plan: The plan of the job.
        is_stopped: Returns whether the user has stopped the job: the logins end then, and no host is at fault.

    Raises:
        LauncherError: A host rejects this user, or does not have this Python; the message names the host.
    """
    if wrong := [*closed_hosts(plan, is_stopped).values()]:
        spec = plan.task.spec
        more = f" (and {len(wrong) - 1} more hosts)" if len(wrong) > 1 else ""
        where = f"--hostfile {spec.hostfile}" if spec.hostfile else f"-H {spec.hosts}"
        raise LauncherError(f"{wrong[0]}{more}; to check all hosts: unilaunch doctor {where}")


def closed_hosts(plan: Plan, is_stopped: Callable[[], object], lost: Collection[str] = ()) -> Mapping[str, str]:
    """Return the hosts that mpirun could not log in to, and why, with what to do.

    There are none if mpirun does not use ssh (in an allocation, or with another remote shell), or if there is no other
    host. The *lost* ones, which would take seconds, are not tried.
    """
    known = {*own_names([host.name for host in plan.request.hosts]), *lost}
    others = [host for host in plan.request.hosts if host.name not in known]
    ssh = plan.starter.login_command(plan.request) if others else []
    return {name: why for name, why in log_in(others[:_DIRECT], ssh, is_stopped).items() if why} if ssh else {}


def log_in(
    hosts: Sequence[Host], ssh: Sequence[str], is_stopped: Callable[[], object] = lambda: False
) -> Mapping[str, str]:
    """Log in to every host at once, and check that this interpreter exists there.

    Args:
        hosts: The hosts other than this one.
        ssh: The ssh command, with its options.
        is_stopped: As for `check_logins`.

    Returns:
        The fault of each host with what to do, by the host's name; "" for a host without a fault.
    """
    from concurrent.futures import ThreadPoolExecutor

    left = Event()  # an exception has ended this function, such as KeyboardInterrupt
    with ThreadPoolExecutor(min(_AT_ONCE, len(hosts) or 1)) as pool:
        try:
            faults = pool.map(lambda host: _log_in(host, ssh, lambda: left.is_set() or is_stopped()), hosts)
            return dict(zip([host.name for host in hosts], faults, strict=True))
        finally:
            left.set()


def _log_in(host: Host, ssh: Sequence[str], is_stopped: Callable[[], object]) -> str:
    address = f"{host.user}@{host.name}" if host.user else host.name
    line = [*ssh, *_OPTIONS, address, f"test -x {shlex.quote(sys.executable)}"]
    try:
        returncode, stderr = _run(line, is_stopped)
    except subprocess.TimeoutExpired:
        return (
            f"{host.name}: ssh connects, and no command runs within {_PATIENCE:.0f} s: does a start-up file "
            f"(~/.bashrc) or the home folder hang there? Try: ssh {address} true"
        )
    except OSError as error:
        return f"{host.name}: no {ssh[0]} here ({error.strerror}): install openssh-client"
    if is_stopped():
        return ""
    if returncode == _SSH_FAILED:
        said = next(reversed(stderr.strip().splitlines()), "it says nothing")
        return f"{host.name}: ssh {address}: {said}: is it up? ssh-copy-id {address} lets you in without a password"
    if returncode:
        return (
            f"{host.name}: no {sys.executable} there: make the same environment at the same place, or share its folder"
        )
    return ""


def _run(line: Sequence[str], is_stopped: Callable[[], object]) -> tuple[int, str]:
    """Run a command to its end or to the user's stop; return its exit code and what it wrote to standard error.

    It has a session of its own: a terminal's Ctrl-C does not reach it, and would look like a fault of the host.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It still ran after _PATIENCE seconds, and is ended.
    """
    deadline = time.monotonic() + _PATIENCE
    with subprocess.Popen(
        line, text=True, errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        while True:
            try:
                _, stderr = process.communicate(timeout=_TICK)
            except subprocess.TimeoutExpired:
                is_late = time.monotonic() > deadline
                if is_late or is_stopped():
                    os.killpg(process.pid, signal.SIGKILL)
                if is_late:
                    raise
            else:
                return process.returncode, stderr
