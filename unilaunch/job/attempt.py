"""Start a planned job, wait for its end, and report how it ended."""

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from tempfile import TemporaryDirectory

from unilaunch.errors import REQUEUE, one_line
from unilaunch.folder.claim import is_ours, release
from unilaunch.folder.failure import Cause, Failure, signal_name
from unilaunch.folder.folder import rank_folder
from unilaunch.folder.result import LaunchResult, RankResult
from unilaunch.interfaces.observer import Observed
from unilaunch.interfaces.plugins import load_observer
from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.job.plan import Plan
from unilaunch.job.started import DirectAgents, GuardHandle, Started, StartedMpirun
from unilaunch.job.stop import PROMPT, UserSignals, UserStop
from unilaunch.job.terminal import Console, Live, is_terminal, own_windows
from unilaunch.launchers.mpirun import Mpirun
from unilaunch.machine.limits import allow_files
from unilaunch.monitor.connection import listen
from unilaunch.monitor.inbox import Inbox, RankSeen
from unilaunch.monitor.inspection import Inspection, listen_for_metrics
from unilaunch.monitor.monitor import DOUBT, DOUBT_ON_SEVERAL, Monitor
from unilaunch.monitor.reports import keep_reports, write_report
from unilaunch.monitor.verdict import Verdict, describe, is_consequence, name, ranks, show
from unilaunch.record import Record, replace
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.redaction import redact_words
from unilaunch.spec.task import encode_task
from unilaunch.spec.variables import MONITOR, NO_WINDOWS, SPEC, WINDOWS

#: Seconds that mpirun has to exit after the order to end the ranks, or after the last rank has ended.
GRACE = 10.0
_TICK = 0.2
#: Open files for each rank, in mpirun and in this process.
_FILES = 12


class Caller(Record):
    """The process or thread that has started a job.

    Attributes:
        attended: Whether the user waits at the terminal: there is a live line, and the input goes to rank 0.
        stdin: The descriptor of rank 0's input; None: it has none.
        on_start: Called at each start with the plan and the inbox of the agents' messages.
        guard: A process that can fork the agents of a direct start; None: it is started when it is needed.
    """

    signals: UserSignals
    attended: bool
    on_start: Callable[[Plan, Inbox], None] = lambda *_: None
    guard: GuardHandle | None = None
    stdin: int | None = None


def open_inbox(plan: Plan, key: bytes | None = None) -> Inbox:
    """Listen for the agents of a job, for all attempts.

    Args:
        plan: The plan of the job.
        key: The key of this start; None for a random one.
    """
    hosts = list(dict.fromkeys(row.host for row in plan.rows if row.host != "?")) if plan.request.several else []
    return Inbox(listen(hosts, several=plan.request.several, host_timeout=plan.task.spec.host_timeout, key=key))


def run_attempt(plan: Plan, inbox: Inbox, caller: Caller, agents: DirectAgents) -> LaunchResult:
    """Start the job, show its output, wait, and return how it ended.

    SIGINT, SIGTERM and SIGHUP of the caller stop the job: the ranks get the signal and time to save. A second signal
    ends the job at once. SIGUSR1 and SIGUSR2 are passed on to the ranks. SIGTSTP (Ctrl-Z) pauses the ranks until this
    process is continued. mpirun gets none of these signals, since it would kill the ranks within 2 seconds.

    Args:
        plan: The plan of this attempt.
        inbox: The agents' messages.
        caller: The process or thread that waits for the job.
        agents: Starts the agents of all attempts, if this is a direct start.
    """
    spec, signals = plan.task.spec, caller.signals
    caller.on_start(plan, inbox)
    with (
        TemporaryDirectory(prefix="unilaunch-", ignore_cleanup_errors=True) as session,
        ExitStack() as kept,
    ):
        live = Live(shown=caller.attended and is_terminal(sys.stderr))
        if not allow_files(_FILES * len(plan.rows)):
            live.say(_few_files(len(plan.rows)))
        monitor = Monitor(
            inbox, len(plan.rows), plan.request.several, spec.stall_timeout, spec.abort, start_limit=spec.timeout,
            grace=spec.grace,
            tell_saving=lambda verdict, saving: live.say(_of_saving(verdict, saving, spec.grace)),
        )  # fmt: skip
        inspection = kept.enter_context(_inspecting(plan, monitor, live.say))
        request, command = plan.request.with_hidden_values(), redact_words(sys.orig_argv)
        task = replace(plan.task, spec=_of_ranks(spec), command=command, host=socket.gethostname())
        windows = own_windows() if caller.attended and spec.console == "rank0" else NO_WINDOWS
        environ = {**request.environ, MONITOR: inbox.where, SPEC: encode_task(task)}
        if isinstance(plan.starter, Mpirun):
            inbox.input = caller.stdin
            sizes = {WINDOWS: json.dumps(windows)} if any(windows) else {}
            line = plan.starter.start_line(request, (MONITOR, SPEC, *sizes), session)
            started: Started = StartedMpirun(line, environ | sizes)
        else:
            started = agents.start(request, environ, Console(caller.stdin, live.shown, windows))
        returncode = _run(started, inspection, UserStop(monitor, signals, spec.grace, live), live)
        stopped = 0 if monitor.ending else signals.number  # a failure before the stop is still a failure
        verdict = None if stopped else _find_verdict(plan, monitor, returncode)
        result = _collect(plan, inbox, _exit_code(returncode, verdict, stopped, inbox), verdict)
        result = replace(result, interrupted=bool(signals.number))
    if verdict:
        _show_verdict(plan, verdict, _runs(inbox), live)
    _tell_of_stop(inbox, spec.grace, live, stopped=bool(stopped))
    return result


@contextmanager
def _inspecting(plan: Plan, monitor: Monitor, say: Callable[[str], None]) -> Iterator[Inspection]:
    """Answer questions on the job while the block runs, and tell the observers its numbers.

    Args:
        plan: The plan of the job.
        monitor: Its monitor.
        say: Shows the user a line; called in other threads.

    Raises:
        UnilaunchError: An observer cannot be told the numbers as the user wants.
    """
    spec = plan.task.spec
    with ExitStack() as kept:
        metrics = listen_for_metrics(spec.metrics_address, spec.metrics_port) if spec.metrics_port else None
        inspection = Inspection(monitor, spec.output_dir, metrics)
        kept.callback(inspection.close)
        for named in spec.observe:
            name, _, where = named.partition("=")
            kept.enter_context(load_observer(name).observing(where, _observed(plan, inspection, say)))
        yield inspection


def _observed(plan: Plan, inspection: Inspection, say: Callable[[str], None]) -> Observed:
    spec, model, ranks = plan.task.spec, plan.task.model, inspection.monitor.inbox.ranks
    root = rank_folder(spec.output_dir, 0, len(plan.rows))

    def find() -> Path | None:
        return root if 0 in ranks and ranks[0].run and is_ours(root, ranks[0].run) else None

    return Observed(
        name=spec.output_dir.name,
        environ=plan.request.environ,
        options=plan.task.options.to_json() if plan.task.options else {},
        layout=model.report if model else ReportLayout(),
        find=find,
        snapshot=inspection.snapshot,
        exit_codes=lambda: {seen.exit_code for seen in list(ranks.values())},
        say=say,
    )


def _of_ranks(spec: LaunchSpec) -> LaunchSpec:
    """Return the spec of the ranks: on several nodes --master-addr and --master-port are node 0's, and not rank 0's."""
    return spec if spec.nnodes == 1 else spec.model_copy(update={"master_addr": None, "master_port": None})


def _tell_of_stop(inbox: Inbox, grace: float, live: Live, *, stopped: bool) -> None:
    """Print which ranks were killed while they saved, and which ranks failed while they ended after a stop."""
    if overdue := [rank for rank, seen in inbox.ranks.items() if seen.overdue]:
        live.say(f"{ranks(overdue)} did not end within the {grace:g} s of --grace: killed")
    for failure in [seen.failure for seen in inbox.ranks.values() if seen.failure and not seen.lost] if stopped else []:
        live.say(one_line(f"{name(failure)} failed while it ended: {describe(failure)}; its log is {failure.log}"))


def _of_saving(verdict: Verdict, saving: Sequence[int], grace: float) -> str:
    return one_line(f"{verdict.line}; {ranks(saving)} {'have' if len(saving) > 1 else 'has'} {grace:g} s to save")


def _few_files(ranks: int) -> str:
    allowed = getrlimit(RLIMIT_NOFILE)[1]
    return (
        f"ulimit -Hn allows {allowed} open files, and {ranks} ranks need up to {_FILES * ranks} on this host: if the "
        "job does not start, have that limit raised (/etc/security/limits.conf; docker run --ulimit nofile=65536)"
    )


def _run(started: Started, inspection: Inspection, stop: UserStop, live: Live) -> int:
    """Return the exit code of an attempt, once it has ended."""
    monitor = inspection.monitor
    with (
        started,
        live.passing(started.stdout, started.stderr, hurried=lambda: stop.signals.again),
        monitor.inbox.awake_at(started.end_descriptor()),
    ):
        returncode = _wait(started, inspection, stop, live)
    _hear_out(monitor)
    if monitor.inbox.on_lost_hosts or not monitor.inbox.ranks:  # a host may be lost that none of its ranks has named
        started.forget_hosts()
    return returncode


def _wait(started: Started, inspection: Inspection, stop: UserStop, live: Live) -> int:
    """Return the exit code of an attempt, once it has ended by itself or was ended."""
    monitor = inspection.monitor
    monitor.begin()
    deadline = terminate_at = float("inf")
    had_ranks = ended = False
    while (returncode := started.poll()) is None:
        monitor.inbox.take(_TICK)
        inspection.tick()
        live.follow(monitor.inbox.ranks, inspection.stragglers.current)
        stop.pass_on()
        if not stop.signals.number:
            _look(monitor, started)
        live.banner.active = monitor.ending or bool(stop.signals.number)
        if monitor.ending:
            deadline = _deadline(monitor, deadline)
        if stop.is_over and not ended:
            ended = True
            stop.order_end()
            deadline = time.monotonic() + GRACE
            terminate_at = time.monotonic() + (PROMPT if monitor.inbox.connected else 0.0)
        if time.monotonic() > terminate_at:
            terminate_at = float("inf")
            started.terminate()  # only once: after a second SIGTERM mpirun exits while its ranks still run
        has_ranks = started.has_ranks()
        had_ranks |= has_ranks
        if had_ranks and not has_ranks:  # Open MPI can hang when all ranks end at once
            deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() > deadline:
            started.kill()
    return returncode


def _look(monitor: Monitor, started: Started) -> None:
    """Judge what the agents have sent; one that has ended too early sends nothing."""
    monitor.look()
    if not monitor.ending and (failure := started.early_end(monitor.inbox.ranks)):
        monitor.end(Verdict(failure, failure.exit_code))


def _deadline(monitor: Monitor, before: float) -> float:
    """Return when the launcher is killed, if the ranks have been ordered to end."""
    if any(seen.lost for seen in monitor.inbox.ranks.values()):
        return min(before, time.monotonic() + PROMPT)
    return monitor.awaiting + GRACE if monitor.awaiting else min(before, time.monotonic() + GRACE)


def _hear_out(monitor: Monitor) -> None:
    """Receive the last messages of ranks that still run after mpirun; they end when the connection closes, or before.

    Nothing is sent, since that would delay the moment at which a lost host is noticed.
    """
    inbox, patience = monitor.inbox, DOUBT_ON_SEVERAL if monitor.several else DOUBT
    inbox.take(0)
    deadline = time.monotonic() + patience
    while inbox.connected and not monitor.finished and time.monotonic() < deadline:
        received = inbox.received
        inbox.take(_TICK)
        if inbox.received > received and any(agent.unread for agent in inbox.connections):  # a part of a large value
            deadline = time.monotonic() + patience


def _find_verdict(plan: Plan, monitor: Monitor, returncode: int) -> Verdict | None:
    """Return how the job failed; None if it did not. Where the launcher was killed, that is the failure."""
    verdict = monitor.conclude()
    if returncode < 0 and not monitor.ending and (verdict is None or is_consequence(verdict.first)):
        message = f"{plan.starter.process} was killed by {signal_name(-returncode)}"
        failure = Failure(Cause.LOST_LAUNCHER, message, 128 - returncode, host=socket.gethostname())
        first = {"ranks": verdict.alike, "what": describe(verdict.first)} if verdict else {}
        return Verdict(failure, 128 - returncode, [first, *verdict.consequences] if verdict else ())
    return verdict


def _collect(plan: Plan, inbox: Inbox, returncode: int, verdict: Verdict | None) -> LaunchResult:
    """Return how the job ended; write the messages of ranks without a shared file system into the output folder."""
    root = plan.task.spec.output_dir
    size = len(plan.rows)
    results = []
    for row in plan.rows:
        seen = inbox.ranks.get(row.rank, RankSeen())
        results.append(
            RankResult(
                rank=row.rank,
                host=row.host if seen.host == "?" else seen.host,
                device=row.device if seen.device == "?" else seen.device,
                returncode=seen.exit_code,
                log_dir=rank_folder(root, row.rank, size),
                value=seen.value,
            )
        )
    keep_reports(root, size, inbox.ranks)
    for run in _runs(inbox):
        release(root, run)
    result = inbox.ranks[0].result if 0 in inbox.ranks else None
    named = {row.rank: row.host for row in plan.rows if row.host != "?"}
    lost = dict.fromkeys(named.get(rank, results[rank].host) for rank in inbox.on_lost_hosts)
    first, line = (verdict.first, verdict.line) if verdict else (None, "")
    return LaunchResult(returncode, tuple(results), first, root, result, line, tuple(lost))


def _exit_code(returncode: int, verdict: Verdict | None, stopped: int, inbox: Inbox) -> int:
    if stopped:
        can_go_on = {seen.exit_code for seen in inbox.ranks.values()} == {REQUEUE}
        return REQUEUE if can_go_on else 128 + stopped
    if verdict:
        return verdict.exit_code
    return 128 - returncode if returncode < 0 else returncode


def _runs(inbox: Inbox) -> set[str]:
    """Return the run that the ranks report, once they have an output folder."""
    return {seen.run for seen in inbox.ranks.values() if seen.run}


def _show_verdict(plan: Plan, verdict: Verdict, runs: set[str], live: Live) -> None:
    """Show the verdict and write it to the output folder; a refusal of all ranks has been shown by rank 0."""
    root = plan.task.spec.output_dir
    for run in runs:
        if said := write_report(root, run, verdict.as_json(), rank_folder(root, 0, len(plan.rows))):
            live.say(said)
    if not verdict.was_shown:
        unseen = bool(verdict.first.rank) and plan.task.spec.console == "rank0"
        live.report(show(verdict, unseen=unseen))
