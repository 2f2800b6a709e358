"""A job from Python: `unilaunch.launch`, `unilaunch.start`, and the `Job` that runs in the background of its caller."""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakSet

from unilaunch.errors import SpecError, say
from unilaunch.folder.failure import split_phase
from unilaunch.folder.result import LaunchResult
from unilaunch.folder.values import unpack
from unilaunch.interfaces import plugins
from unilaunch.interfaces.step import Step
from unilaunch.job.attempt import Caller
from unilaunch.job.attempts import prepare, run_attempts
from unilaunch.job.function import Arguments, Found, check_options, find_function, words
from unilaunch.job.plan import Plan
from unilaunch.job.stop import UserSignals, noting_signals
from unilaunch.look import lines as log_lines
from unilaunch.look.lines import LogLine, Stream, find_streams
from unilaunch.monitor.inbox import Inbox, RankSeen, RankState
from unilaunch.record import Record, replace
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import make_task, resolve_ranks, unfold_options
from unilaunch.spec.target import LOADING, Target, read_target
from unilaunch.spec.variables import variable_of

#: What ranks run: a spec, a function, or a target (a model's name, a script, "package.module:function").
Program = LaunchSpec | Callable[..., Any] | str | Path

_TICK = 0.1


def launch(program: Program, *, check: bool | None = None, **options: Any) -> LaunchResult:
    """Run a job, wait for its end, and return how it ended. `start` describes the arguments.

    Rank 0's output is shown (`console="all"` shows every rank's). Ctrl-C stops the job: the ranks have `grace` seconds
    to end; then KeyboardInterrupt is raised.

    Args:
        program: What the ranks run.
        check: Raise JobFailed if the job fails or is stopped (the default); if False, only the result shows that.
        options: Fields of LaunchSpec, and the function's arguments or the model's options.

    Raises:
        UnilaunchError: An argument is not valid, or something is missing; nothing has been started.
        JobFailed: The job has failed or was stopped.
        KeyboardInterrupt: The user has pressed Ctrl-C, and the job has ended.
    """
    own = {} if check is None else {"check": check}
    result = _start(program, options, own, attended=True).wait()
    if check is False:
        return result
    if result.interrupted and result.returncode == 128 + signal.SIGINT:
        raise KeyboardInterrupt  # asyncio's handler has raised nothing here
    result.raise_if_failed()
    return result


def start(program: Program, **options: Any) -> "Job":
    """Start a job, and return it while it runs.

    The ranks of `start(train, nprocs=2, lr=0.1)` call `train(lr=0.1)`: options that are fields of LaunchSpec configure
    the job, and the other options are the function's arguments. `args={"seed": 1}` or `args=[1]` passes arguments that
    have the name of a field too. If the program is a model, the other options are the model's options. If it is a
    script, `args` is its `sys.argv[1:]`.

    Arguments and values can be JSON values (a tuple arrives as a list, the keys of a dict as text), numpy arrays, and
    tensors of the installed frameworks, which arrive on cpu. Arrays are sent as npy data; nothing is pickled.

    Args:
        program: What the ranks run: a function of a module or of the calling script, a target such as "train.py" or
            "package.module:function", or a whole LaunchSpec.
        options: See above.

    Raises:
        UnilaunchError: An argument is not valid, or something is missing; nothing has been started.
    """
    return _start(program, options, {}, attended=False)


def _start(program: Program, options: Mapping[str, Any], own: Mapping[str, Any], *, attended: bool) -> "Job":
    """Start a job; `own` are the caller's options that are no field of LaunchSpec."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise SpecError("the current folder no longer exists: go to another one") from None
    if file := getattr(sys.modules["__main__"], LOADING, None):
        raise SpecError(f'{file}: the ranks load this file too: call launch under if __name__ == "__main__":')
    files = TemporaryDirectory(prefix="unilaunch-")
    try:
        return _prepare(program, options, own, files, attended=attended)
    except BaseException:
        files.cleanup()
        raise


def _prepare(
    program: Program, options: Mapping[str, Any], own: Mapping[str, Any], files: "TemporaryDirectory[str]", *,
    attended: bool,
) -> "Job":  # fmt: skip
    """Read the task, check it, and start the job."""
    environ = dict(os.environ)  # noqa: TID251  (the job gets the caller's environment)
    found, values = _read(program, dict(options))
    if found.target.kind == "function":
        of_spec = isinstance(program, LaunchSpec) and "args" not in options
        given = Arguments.among(values, values.pop("args", ()) if of_spec else ())
        if callable(program):
            check_options(program, {**options, **own}, given)
        values["args"] = words(given, Path(files.name), str(found.target))
    values["target"] = str(found.target)
    values = _of_the_machine(found.target, environ) | values
    resolve_ranks(values, environ)
    task = make_task(LaunchSpec, found.target, values, {name: name for name in values})
    if not attended:  # the caller may go to another folder while the job runs
        task = replace(task, spec=task.spec.model_copy(update={"output_dir": Path.cwd() / task.spec.output_dir}))
    if task.spec.nnodes > 1 and task.spec.node_rank != 0:
        raise SpecError(f"node_rank={task.spec.node_rank}: Python can be node 0; on the others type unilaunch launch")
    plan = prepare(task, environ)
    large = sum(file.stat().st_size for file in Path(files.name).iterdir())
    if plan.request.several and large:
        raise SpecError(
            f"{found.target}: its arguments hold {large / 1e6:.1f} MB of arrays, which other hosts cannot read: save "
            "them in a file that all hosts can read, and pass its path"
        )
    if found.note:
        say(found.note)
    return Job(plan, environ, files, attended=attended)


def _of_the_machine(target: Target, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a machine sets once for all starts: whether root may start, and the data folder."""
    of_model = plugins.models()[target.name].spec.model_fields if target.kind == "model" else {}
    fields = ["allow_run_as_root", *({"data_dir"} & set(of_model))]
    return {field: said for field in fields if (said := environ.get(variable_of(field, environ)))}


def _read(program: Program, options: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
    """Return what the ranks run, and the values of the spec together with the arguments or the model's options."""
    if isinstance(program, str | Path):
        return Found(read_target(str(program), plugins.named_models(str(program)))), options
    if not isinstance(program, LaunchSpec):
        found = find_function(program)
        if roots := [str(root) for root in found.roots if root != Path.cwd() or "cwd" in options]:
            env = options.get("env", {})
            below = env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))  # noqa: TID251
            path = os.pathsep.join(filter(None, [*roots, below]))
            options["env"] = {**env, "PYTHONPATH": path}
        return found, options
    values = {name: getattr(program, name) for name in program.model_fields_set if name != "options"}
    found = Found(read_target(program.target, plugins.named_models(program.target)))
    return found, values | unfold_options(program.options, found.target, program.args) | options


class JobStatus(StrEnum):
    """The state of a job."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class RankStatus(Record):
    """The state of one rank.

    Attributes:
        rank: Its number.
        host: The host that it runs on; "?" before that is known, like the device.
        device: "cpu", "cuda:1".
        state: Its state, as far as the monitor knows.
        phase: What it is doing; None if it has not reported that.
        step: The step of its model or program; None if it has not reported one.
    """

    rank: int
    host: str
    device: str
    state: RankState
    phase: str | None
    step: Step | None


class Job:
    """A job that runs in the background of its caller. Every method may be called from any thread.

    When the interpreter exits, the jobs that still run are stopped as by `cancel`.

    Args:
        plan: The plan to start.
        environ: The environment of the job.
        files: The folder of its arguments; it is removed when the job has ended.
        attended: Whether the caller only waits for the job, at a terminal.
    """

    def __init__(
        self, plan: Plan, environ: Mapping[str, str], files: "TemporaryDirectory[str]", *, attended: bool
    ) -> None:
        self._plan, self._environ, self._files = plan, environ, files
        self._caller = Caller(UserSignals(), attended, self._on_start)
        self._inbox: Inbox | None = None
        self._end: Future[LaunchResult] = Future()
        self._thread = threading.Thread(target=self._run, name="unilaunch job", daemon=True)
        _running.add(self)
        self._thread.start()

    @property
    def output_dir(self) -> Path:
        """The output folder."""
        return self._plan.task.spec.output_dir

    @property
    def status(self) -> JobStatus:
        """The state of the job."""
        if not self._end.done():
            if self._caller.signals.number:
                return JobStatus.STOPPING
            known = self._known().values()
            return JobStatus.RUNNING if any(seen.run for seen in known) else JobStatus.STARTING
        if self._end.exception():
            return JobStatus.FAILED
        if self._end.result().interrupted:
            return JobStatus.STOPPED
        return JobStatus.FAILED if self._end.result().returncode else JobStatus.DONE

    @property
    def ranks(self) -> tuple[RankStatus, ...]:
        """The state of each rank, by rank."""
        known = self._known()
        return tuple(_status(row.rank, known.get(row.rank, RankSeen())) for row in self._plan.rows)

    def wait(self, timeout: float | None = None) -> LaunchResult:
        """Wait for the job's end, and return how it ended; a failure of the job raises no exception here.

        In the main thread Ctrl-C (and SIGTERM and SIGHUP) stops the job as `cancel` does. When the job has ended, the
        signal has its usual effect: Ctrl-C raises KeyboardInterrupt.

        Args:
            timeout: Seconds to wait; None: no limit.

        Raises:
            TimeoutError: The job still runs.
            UnilaunchError: The job could not be started, or a returned value cannot be read.
            KeyboardInterrupt: The user has pressed Ctrl-C, and the job has ended.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        with noting_signals(self._caller.signals) as received:
            while self._thread.is_alive() and (received or time.monotonic() < deadline):
                self._thread.join(_TICK)
        if received:
            signal.raise_signal(received[0])
        if self._thread.is_alive():
            raise TimeoutError(f"the job in {self.output_dir} still runs after {timeout:g} s")
        return self._end.result()

    def cancel(self) -> None:
        """Stop the job as SIGTERM does: the ranks have `grace` seconds to end; a second call ends them at once."""
        signals = self._caller.signals
        signals.again |= bool(signals.number)  # also at once: unlike a signal, a call comes once
        signals.note(signal.SIGTERM)

    def logs(self, rank: int | None = None, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield what the ranks have written so far, in the order of time; `str(line)` is the text.

        Args:
            rank: Only the output of this rank; None: of all ranks.
            follow: Continue until the job has ended.
        """
        while follow and self.status is JobStatus.STARTING:
            time.sleep(_TICK)
        if not any(seen.run for seen in self._known().values()):
            return  # the output in the folder is of an earlier run
        if follow:
            lines = log_lines.follow(self._end.done, lambda: self._streams(rank))
            yield from (line for line in lines if line)
        else:
            yield from log_lines.read(self._streams(rank))

    def _streams(self, rank: int | None) -> list[Stream]:
        return [stream for stream in find_streams(self.output_dir) if rank in {None, stream.rank}]

    def _run(self) -> None:
        try:
            result = run_attempts(self._plan, self._environ, self._caller)
            ranks = tuple(replace(one, value=unpack(one.value, one.log_dir)) for one in result.ranks)
            self._end.set_result(replace(result, ranks=ranks))
        except BaseException as error:  # noqa: BLE001  (`wait` raises it)
            self._end.set_exception(error)
        finally:
            self._files.cleanup()

    def _on_start(self, plan: Plan, inbox: Inbox) -> None:
        self._plan, self._inbox = plan, inbox

    def _known(self) -> dict[int, RankSeen]:
        return dict(self._inbox.ranks) if self._inbox else {}


def _status(rank: int, seen: RankSeen) -> RankStatus:
    phase, _ = split_phase(seen.progress)
    return RankStatus(rank, seen.host, seen.device, seen.state, phase, Step.last_from_facts(seen.progress))


_running: WeakSet[Job] = WeakSet()


@atexit.register
def _stop_all() -> None:
    left = [job for job in _running if job._thread.is_alive()]  # noqa: SLF001  (the same module)
    for job in left:
        if job.status is not JobStatus.STOPPING:  # a second stop would end it at once
            job.cancel()
    for job in left:
        job._thread.join()  # noqa: SLF001
