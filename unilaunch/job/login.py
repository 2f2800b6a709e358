"""Log in to all other hosts of a job at once: mpirun waits for minutes for a host that does not answer."""

import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence

from unilaunch.addresses import own_names
from unilaunch.errors import LauncherError
from unilaunch.hostfile import Host
from unilaunch.job.plan import Plan

_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_SSH_FAILED = 255
_PATIENCE = 20.0  # seconds for a host that accepts the connection and does not finish the login
_AT_ONCE = 32
#: mpirun itself logs in to this many hosts; its daemons there log in to the others.
_DIRECT = 64


def check_logins(plan: Plan) -> None:
    """Raise an error if mpirun could not log in to a host that the user has named.

    Raises:
        LauncherError: A host rejects this user, or does not have this Python; the message names the host.
    """
    if wrong := [*closed_hosts(plan).values()]:
        spec = plan.task.spec
        more = f" (and {len(wrong) - 1} more hosts)" if len(wrong) > 1 else ""
        where = f"--hostfile {spec.hostfile}" if spec.hostfile else f"-H {spec.hosts}"
        raise LauncherError(f"{wrong[0]}{more}; to check all hosts: unilaunch doctor {where}")


def closed_hosts(plan: Plan, lost: Collection[str] = ()) -> Mapping[str, str]:
    """Return the hosts that mpirun could not log in to, and why, with what to do.

    There are none if mpirun does not use ssh (in an allocation, or with another remote shell), or if there is no other
    host. The *lost* ones, which would take seconds, are not tried.
    """
    known = {*own_names([host.name for host in plan.request.hosts]), *lost}
    others = [host for host in plan.request.hosts if host.name not in known]
    ssh = plan.mpirun.login_command(plan.request) if others else []
    return {name: why for name, why in log_in(others[:_DIRECT], ssh).items() if why} if ssh else {}


def log_in(hosts: Sequence[Host], ssh: Sequence[str]) -> Mapping[str, str]:
    """Log in to every host at once, and check that this interpreter exists there.

    Args:
        hosts: The hosts other than this one.
        ssh: The ssh command, with its options.

    Returns:
        The fault of each host with what to do, by the host's name; "" for a host without a fault.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_AT_ONCE, len(hosts) or 1)) as pool:
        return dict(zip([host.name for host in hosts], pool.map(lambda host: _log_in(host, ssh), hosts), strict=True))


def _log_in(host: Host, ssh: Sequence[str]) -> str:
    address = f"{host.user}@{host.name}" if host.user else host.name
    line = [*ssh, *_OPTIONS, address, f"test -x {shlex.quote(sys.executable)}"]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, errors="replace", check=False, timeout=_PATIENCE,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return (
            f"{host.name}: ssh connects, and no command runs within {_PATIENCE:.0f} s: does a start-up file "
            f"(~/.bashrc) or the home folder hang there? Try: ssh {address} true"
        )
    except OSError as error:
        return f"{host.name}: no {ssh[0]} here ({error.strerror}): install openssh-client"
    if done.returncode == _SSH_FAILED:
        said = next(reversed(done.stderr.strip().splitlines()), "it says nothing")
        return f"{host.name}: ssh {address}: {said}: is it up? ssh-copy-id {address} lets you in without a password"
    if done.returncode:
        return (
            f"{host.name}: no {sys.executable} there: make the same environment at the same place, or share its folder"
        )
    return ""
