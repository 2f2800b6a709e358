"""Run a job, and restart it when it has failed; its model chooses the options of the restart."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from unilaunch.errors import LauncherError, SpecError, UnilaunchError, say
from unilaunch.folder.failure import Cause, Failure
from unilaunch.folder.result import LaunchResult
from unilaunch.job import login
from unilaunch.job.attempt import Caller, open_inbox, run_attempt
from unilaunch.job.choice import DirectStart, as_of_a_shell
from unilaunch.job.plan import Plan, hosts_of, make_plan
from unilaunch.job.started import DirectAgents, GuardHandle
from unilaunch.job.stop import UserSignals, noting_signals
from unilaunch.job.terminal import own_input
from unilaunch.launchers.allocation import allocated_hosts
from unilaunch.record import replace
from unilaunch.spec.hostfile import format_hostfile
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.placeholders import placeholder_values, replace_placeholders
from unilaunch.spec.task import Task
from unilaunch.spec.variables import MAX_RESTARTS, RESTARTS, SECRET

#: Seconds between two tries to log in to hosts that do not answer.
_PAUSE = 2.0
#: Variables that the ranks do not get as this process has them.
_OWN = {RESTARTS, MAX_RESTARTS, SECRET}
#: Causes that each start would meet again.
_HOPELESS = {Cause.REFUSED_INPUT, Cause.CANNOT_START}


def launch_attended(
    task: Task[LaunchSpec], environ: Mapping[str, str], guard: GuardHandle | None = None
) -> LaunchResult:  # fmt: skip
    """Run a job for a user at a terminal, in a process that ends after it; see `run_attempts`.

    Args:
        task: The task of the ranks.
        environ: The process's environment.
        guard: A process that can fork the agents, if this becomes a direct start.

    Raises:
        UnilaunchError: It cannot be started.
    """
    plan = prepare(task, environ)
    if guard and not isinstance(plan.starter, DirectStart):
        guard.close()
    with noting_signals(signals := UserSignals(), to_the_end=True):
        if plan.task.spec.nnodes > 1:
            from unilaunch.job.nodes import follow, leads

            if not leads(plan.task.spec):
                return LaunchResult(follow(plan, environ, signals, guard), (), None, plan.task.spec.output_dir, None)
        return run_attempts(plan, environ, Caller(signals, attended=True, guard=guard))


def prepare(task: Task[LaunchSpec], environ: Mapping[str, str]) -> Plan:
    """Return the plan of a job, with its own output folder.

    Raises:
        UnilaunchError: It cannot be started.
    """
    return make_plan(_with_own_folder(task, environ), _counted(environ, 0, task.spec.max_restarts))


def run_attempts(plan: Plan, environ: Mapping[str, str], caller: Caller) -> LaunchResult:
    """Start a job; if it fails, restart it at most `max_restarts` times. Return how the last attempt ended.

    A job is not restarted if the user has ended it, if its input was refused, if it would fail again, or if there is no
    plan for a restart.

    Raises:
        UnilaunchError: The job cannot be started, or `launch` itself has failed.
    """
    allowed, is_direct = plan.task.spec.max_restarts, isinstance(plan.starter, DirectStart)
    login.check_logins(plan, lambda: caller.signals.number)
    if caller.signals.number:
        say("interrupted")
        return LaunchResult(128 + caller.signals.number, (), None, plan.task.spec.output_dir, None, interrupted=True)
    with (
        own_input(attended=caller.attended, inherited=is_direct) as stdin,
        closing(_agents(plan, environ, caller)) as agents,
        open_inbox(plan, agents.key) as inbox,
        TemporaryDirectory(prefix="unilaunch-") as folder,
    ):
        restarts, caller = 0, replace(caller, stdin=stdin)
        while True:
            inbox.begin(restarts)
            result = run_attempt(plan, inbox, caller, agents)
            result = _explained(result, plan, caller)
            agents.exit_code = result.returncode
            if restarts == allowed or not _is_worth_it(result, again=restarts > 0):
                if restarts < allowed and result.failure and result.failure.cause is Cause.CANNOT_START:
                    say("no restart: the program cannot start, and would fail in the same way before its first step")
                return result
            try:
                lost = _hosts_to_leave_out(plan, result.lost_hosts, caller)
                plan = plan_again(plan, lost, _counted(environ, restarts + 1, allowed), Path(folder, "hosts"))
            except UnilaunchError as error:
                say(f"no restart: {error}")
                return result
            restarts += 1
            say(f"restart {restarts} of {allowed}, with {len(plan.rows)} ranks")


def _agents(plan: Plan, environ: Mapping[str, str], caller: Caller) -> DirectAgents:
    """Return what starts the agents of this host in a direct start; under an mpirun it is not asked."""
    if plan.task.spec.nnodes > 1:
        from unilaunch.job.nodes import Leader, StartSecret

        return Leader(plan, StartSecret(plan.task.spec, environ), caller.signals, caller.guard)
    allows_mpi = isinstance(plan.starter, DirectStart) and plan.starter.allows_mpi
    return DirectAgents(plan.task.target, allows_mpi=allows_mpi, guard=caller.guard)


def _with_own_folder(task: Task[LaunchSpec], environ: Mapping[str, str]) -> Task[LaunchSpec]:
    folder = replace_placeholders(task.spec.output_dir, placeholder_values(environ, str(os.getpid())))
    return replace(task, spec=task.spec.model_copy(update={"output_dir": folder}))


def _counted(environ: Mapping[str, str], restarts: int, allowed: int) -> Mapping[str, str]:
    """Return the environment with the number of restarts, or without it if the job is never restarted.

    It must then be removed, since a rank of another, restarted job may have started this `launch`.
    """
    own = {name: value for name, value in as_of_a_shell(environ).items() if name not in _OWN}
    return {**own, RESTARTS: str(restarts), MAX_RESTARTS: str(allowed)} if allowed else own


def _explained(result: LaunchResult, plan: Plan, caller: Caller) -> LaunchResult:
    """Return how an attempt ended; if mpirun itself has failed, with the hosts that do not answer as the cause."""
    if result.returncode and not (result.failure or result.interrupted):
        try:
            login.check_logins(plan, lambda: caller.signals.number)
        except LauncherError as error:
            say(error)
            failure = Failure(Cause.LOST_HOST, str(error), result.returncode)
            return replace(result, failure=failure, verdict=str(error))
    return result


def _is_worth_it(result: LaunchResult, *, again: bool) -> bool:
    """Return whether the job may end well if it is started once more; *again*: it has been started more than once."""
    failure = result.failure
    if failure is None:  # mpirun itself has failed; it has started the ranks before, unless this was the first time
        return again and bool(result.returncode) and not result.interrupted
    if result.interrupted or failure.final:
        return False
    return failure.cause not in _HOPELESS  # a script may exit with any code for any reason


def _hosts_to_leave_out(plan: Plan, lost: Sequence[str], caller: Caller) -> Sequence[str]:
    """Return the *lost* hosts, with `--elastic` also those that do not answer; without it, wait for all hosts.

    The wait is at most as long as that of ranks for each other at a start.

    Raises:
        LauncherError: A host does not answer in that time, or the user has stopped the job.
    """
    spec, waiting_for = plan.task.spec, ""
    until = time.monotonic() + spec.timeout
    while wrong := login.closed_hosts(plan, lambda: caller.signals.number, lost if spec.elastic else ()):
        if spec.elastic:
            lost = [*lost, *wrong]
            break
        if time.monotonic() > until:
            raise LauncherError(next(iter(wrong.values())))
        if waiting_for != (waiting_for := ", ".join(wrong)):
            say(f"the restart waits for {waiting_for}, for at most {spec.timeout:g} s (--timeout)")
        time.sleep(_PAUSE)
    if caller.signals.number:
        raise LauncherError("interrupted")
    return lost


def plan_again(plan: Plan, lost: Sequence[str], environ: Mapping[str, str], hostfile: Path) -> Plan:
    """Return the plan of the restart, with the model's options for it; if it may shrink, without the lost hosts.

    Args:
        plan: The plan of the attempt that has failed.
        lost: Hosts to leave out.
        environ: The environment of the restart.
        hostfile: Where to write the other hosts, if the user's hostfile names a lost one.

    Raises:
        UnilaunchError: There is no such plan.
    """
    task = plan.task
    fewer = bool(lost) and task.spec.elastic
    if task.model:
        task = replace(task, options=task.model.again(task.options, fewer_ranks=fewer))
    if fewer:
        task = replace(task, spec=_without(lost, task.spec, len(plan.rows), environ, hostfile))
    return make_plan(task, environ)


def _without(
    lost: Sequence[str], spec: LaunchSpec, ranks: int, environ: Mapping[str, str], hostfile: Path
) -> LaunchSpec:  # fmt: skip
    hosts = hosts_of(spec) or allocated_hosts(environ)
    left = [host for host in hosts if host.name not in lost]
    if not left or len(left) == len(hosts):
        known = ", ".join(host.name for host in hosts) or "?"
        raise SpecError(
            f"--elastic: {', '.join(lost)} cannot be left out of the hosts {known}: give --hostfile or -H, with two "
            "hosts at least, by the names that they give themselves"
        )
    share = -(-ranks // len(hosts))  # of a host whose slots are not given; -H alone would give it one
    left = [replace(host, slots=host.slots or share) for host in left]
    nprocs = ranks if spec.oversubscribe else min(ranks, sum(host.slots or 0 for host in left))
    if spec.hostfile:  # not -H, in which Open MPI reads no IPv6 address and no max_slots
        hostfile.write_text(format_hostfile(left), encoding="utf-8")
        return spec.model_copy(update={"hostfile": hostfile, "nprocs": nprocs})
    return spec.model_copy(update={"hosts": ",".join(host.entry for host in left), "nprocs": nprocs})
