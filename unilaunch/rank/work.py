"""A rank's work, once all ranks have agreed: set the framework's variables, then run the model or the program."""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from socket import gethostname
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from unilaunch.errors import MixedCallsError, PeerLostError, RefusedTogetherError, UnilaunchError, say
from unilaunch.folder.failure import is_out_of_memory
from unilaunch.folder.log import LINE, Log
from unilaunch.folder.values import into_text, pack
from unilaunch.interfaces.agreement import alike
from unilaunch.interfaces.backend import Backend, Collectives, Peers, Rendezvous
from unilaunch.interfaces.calls import END
from unilaunch.interfaces.model import Framework, Model, Session
from unilaunch.monitor import messages
from unilaunch.rank import current, program
from unilaunch.rank.framework_env import exported_threads, framework_env
from unilaunch.rank.identity import Rank
from unilaunch.rank.interpreter import flush_files, run_exit_functions, uncollected
from unilaunch.record import replace
from unilaunch.rendezvous import mpi

if TYPE_CHECKING:
    from unilaunch.json_value import JsonValue

INTERRUPTED = 130
#: Seconds from the end of a child's connections to its SIGCHLD, at most, as a rule.
_MOMENT = 0.05


def do_task(rank: Rank) -> int:
    """Do the task; show a failure, and send it to the agent."""
    rank.status.runs_program = rank.task.model is None
    try:
        _do(rank)
    except RefusedTogetherError as error:
        if rank.world.rank == 0:
            say(error)
        else:
            rank.output.append_stderr(f"unilaunch: {error}\n")
        rank.status.fail(error, error.exit_code, together=True)
        code = _ended(rank, error.exit_code)
        if rank.status.stopped:  # another rank may still be in MPI, and Open MPI ends it if it finds a socket closed
            rank.status.wait_for_release()
        return code
    except BaseException as error:  # noqa: BLE001  (every failure of a rank, also SystemExit and Ctrl-C of a program)
        return _ended(rank, _send_failure(error, rank))
    return _ended(rank, 0)


def _send_failure(error: BaseException, rank: Rank) -> int:
    """Show a failure, send it to the agent, and return the exit code.

    torch raises in the main thread when a worker of a DataLoader has died, and says which: often while this rank is
    already reporting that it lost its connection to that worker. Then that is the failure.
    """
    try:
        if isinstance(error, ConnectionError):
            time.sleep(_MOMENT)
        return _send_once(error, rank)
    except BaseException as later:  # noqa: BLE001  (whatever a signal handler raises)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return _send_once(later, rank)


def _send_once(error: BaseException, rank: Rank) -> int:
    if rank.task.model is None:
        if not isinstance(error, SystemExit):  # as Python does: the program's exit functions can see that it failed
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        for each in filter(None, (error.__context__, error)):  # both are shown
            program.leave_out_launcher(each)
        current.note_remedies(error)
    exit_code, log = _explain(error, rank)
    rank.status.fail(error, exit_code, together=isinstance(error, KeyboardInterrupt), log=log)
    return exit_code


def _explain(error: BaseException, rank: Rank) -> tuple[int, str]:
    """Return the exit code, and the text on the failure for this rank's log.

    The monitor shows the text, once for all ranks that fail in the same way. If the job continues, or the user has
    ended it, the rank shows the text itself.
    """
    code, text = 1, ""
    match error:
        case UnilaunchError():
            code, text = error.exit_code, f"unilaunch: {error}\n"
        case SystemExit(code=int() | None):
            return program.exit_code(error) or 1, ""  # a model returns, it does not exit
        case SystemExit():
            print(error.code, file=sys.stderr, flush=True)  # noqa: T201  (as Python does)
            return 1, ""
        case _ if rank.task.model and is_out_of_memory(error):
            where = f"rank {rank.world.rank} on {rank.world.host}"
            what = ". ".join(str(error).split(". ")[:3])  # torch's next sentences explain its allocator
            more = "ranks on more hosts" if rank.placement.device == "cpu" else "GPUs"
            say(f"{where}: out of memory: {what}: take more {more}, or a smaller model")
        case _:
            code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
            if sys.excepthook is not sys.__excepthook__:
                with suppress(BaseException):  # then the traceback is shown
                    sys.excepthook(type(error), error, error.__traceback__)
                    return code, ""
            text = "".join(traceback.format_exception(error))
    with suppress(OSError, ValueError, AttributeError):  # the program may have closed its standard error
        shows = code == INTERRUPTED or rank.status.stopped or not rank.task.spec.abort
        sys.stderr.write(text if shows else "")
        sys.stderr.flush()
        return code, "" if shows else text
    return code, text


def _ended(rank: Rank, exit_code: int) -> int:
    modules = {name: sys.modules.get(name) for name in ("numpy", *(each.framework for each in rank.task.backends))}
    versions = {name: str(getattr(module, "__version__", "?")) for name, module in modules.items() if module}
    rank.output.record(phase="end", exit_code=exit_code, versions=versions)
    return exit_code


def _do(rank: Rank) -> None:
    """Set the framework's variables, then run the model or the program."""
    task, world, placement, output = rank.task, rank.world, rank.placement, rank.output
    rank.peers.calls.publish(rank.status.page.calls)
    rendezvous = _find_rank_0(rank)
    chosen = framework_env(
        task.backends, world, placement, rendezvous, rank.environ,
        program=task.model is None, threads=task.spec.threads,
        master=(task.spec.master_addr, task.spec.master_port),
    )  # fmt: skip
    os.environ.update(chosen)  # noqa: TID251  (written once, before numpy and the framework read it)
    _renew_after_fork(task.backends)
    output.record(phase="prepare", host=world.host, device=world.device, threads=placement.threads, variables=chosen)
    if task.model:
        _run_model(rank, task.model, task.backends[0], rendezvous)
    else:
        _run_program(rank, cast("Rendezvous", rendezvous))


def _renew_after_fork(backends: Sequence[Backend]) -> None:
    """Give the modules that were imported before the fork this rank's random numbers and number of threads."""
    if "numpy" not in sys.modules:  # nothing was imported before the fork
        return
    sys.modules["numpy"].random.seed()
    threads = exported_threads(os.environ, ()) or 1  # noqa: TID251  (a library reads them when it is imported)
    if threads > 1:
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads)
    for backend in backends:
        if backend.framework in sys.modules:
            backend.after_fork(threads)


def _run_model(rank: Rank, model: Model, backend: Backend, rendezvous: Rendezvous | None) -> None:
    """Check the input, then start the framework, then train."""
    task, world, output = rank.task, rank.world, rank.output
    log = Log(task.spec.log_level, LINE, f"{world.host}:{world.rank}", output.stderr if world.rank else None)
    session = Session(
        world, rank.placement, rank.peers, output, log, task.spec.seed, rank.status.note_step, backend=backend.name
    )
    prepared = model.prepare(task.options, session)
    if world.rank == 0:
        options = task.options.to_json() if task.options else {}
        output.write_spec(task.spec.to_json() | {"options": options})
    output.record(phase="framework import")
    with uncollected():
        backend.start(world, rank.placement)
    output.record(phase="init")
    framework = Framework(backend, _collectives(rank, backend, rendezvous))
    if model.stops_patiently:
        session = replace(session, stop_asked=rank.status.note_stops(patient=world.patient))
    result = dict(model.run(task.options, prepared, session, framework))
    alike(lambda: program.check_value(result, f"model {model.name}"))
    backend.stop()  # not after an error: it holds the frames that hold NCCL's work, and NCCL would wait for that
    if world.rank == 0:
        whole = _heading(rank, model, backend) | result
        output.write_result(whole)
        rank.status.send(messages.Returned(result=whole))


def _run_program(rank: Rank, rendezvous: Rendezvous) -> None:
    """Set the variables that the framework's launcher would set, and run the user's program."""
    task, world, output = rank.task, rank.world, rank.output
    if world.rank == 0:
        output.write_spec(task.spec.to_json())
    served = [backend for backend in task.backends if backend.launcher != world.launcher]
    parts = [backend.hooks(rendezvous, world, rank.peers) for backend in served]
    parts += [backend.wait_hooks(rank.status) for backend in task.backends if world.size > 1]
    hooks: dict[str, list[program.Hook]] = {backend.framework: [] for backend in task.backends}
    for name, hook in (one for part in parts for one in part.items()):
        hooks.setdefault(name, []).append(hook)
    if isinstance(rank.peers, mpi.MpiPeers):
        mpi.lend()
    program.around_import(hooks)
    rank.status.registrations.watch()
    current.member = current.Member(world, rank.placement, rank.peers, rank.environ, supervised=True)
    appended = [f"--local-rank={world.local_rank}"] if task.spec.local_rank_argument else []
    output.record(phase="program", target=str(task.target))
    _run_to_the_end(rank, [*appended, *task.spec.args])
    _wait_for_all(rank)
    with suppress(OSError):  # the program may have closed every descriptor
        rendezvous.close()


def _run_to_the_end(rank: Rank, args: Sequence[str]) -> None:
    """Run the program, its threads and its exit functions; all of them may use the communication."""
    target, own = rank.task.target, os.getpid()
    try:
        value = program.run_program(target, args)
    except BaseException as error:
        if os.getpid() != own:
            program.end_fork(error)
        if not isinstance(error, SystemExit) or program.exit_code(error):
            raise
    else:
        if os.getpid() != own:
            program.end_fork(None)
        if target.kind == "function":
            _return(rank, value)
    run_exit_functions()
    gc.collect()  # torch's threads can abort an interpreter that ends while DistributedDataParallel's cycles hold them


def _return(rank: Rank, value: Any) -> None:
    """Write the function's value to a file, and send it to the monitor: other hosts may not see this rank's files."""
    name, folder = str(rank.task.target), rank.output.rank_dir
    kept = program.keep_value(value, name, folder)
    rank.output.write_value(kept)
    here = rank.world.num_hosts == 1 and rank.task.host in {"", gethostname()}
    told = kept if here else pack(value, into_text)
    program.check_value(told, name)
    rank.status.send(messages.Returned(value=told))


def _wait_for_all(rank: Rank) -> None:
    """Wait until all ranks have ended: rank 0 serves the store that the others use.

    If a rank has exited too early, the others notice at once, since its connections are closed. SIGTERM, the
    order to end, ends the wait only: the program's objects still have files to write.
    """
    for backend in rank.task.backends:
        if backend.framework in sys.modules and rank.placement.device == "cpu":
            backend.stop()
    rank.status.note(phase="waiting for the other ranks' end")
    if rank.status.stopped:
        rank.status.wait_for_release()
        return
    flush_files()  # in case that this process is killed
    try:  # a rank may end in any way, for instance by os._exit; its agent reports how
        with _noting_sigterm():  # first: if this program was the last one, the order to end follows the message at once
            rank.status.send(messages.Done())
            if isinstance(rank.peers, mpi.MpiPeers) and mpi.is_finalized():
                return  # the program has finalized MPI, which has waited for the others
            _end_together(rank.peers)
    except (PeerLostError, _TerminatedError) as error:
        rank.status.left_alone = True
        rank.status.terminated = isinstance(error, _TerminatedError)
    rank.status.send(messages.Done(leaving=True))


def _end_together(peers: Peers) -> None:
    """Wait until all ranks have ended.

    Raises:
        MixedCallsError: They have not called the same collectives. It was not noticed: devices' messages do not say it.
    """
    called, peers.calls.purpose = peers.calls.hash(), END
    if len({*map(str, peers.share(called))}) > 1:
        raise MixedCallsError(
            "the ranks have called different collectives before their last ones: what they have computed is wrong: "
            "all ranks must call the same ones in the same order"
        )


class _TerminatedError(Exception):
    """SIGTERM has arrived."""


@contextmanager
def _noting_sigterm() -> Iterator[None]:
    """Let SIGTERM raise an error inside the block, and ignore it afterwards, since the process ends."""

    def terminate(_: int, __: FrameType | None) -> None:
        raise _TerminatedError

    if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _find_rank_0(rank: Rank) -> Rendezvous | None:
    """Find rank 0, if the framework's communication is needed: between devices, and for a program."""
    if rank.task.model and (rank.world.size == 1 or rank.placement.device == "cpu"):
        return None
    from unilaunch.rendezvous.rendezvous import meet

    return alike(lambda: meet(rank.peers, rank.world, rank.task.spec))


def _collectives(rank: Rank, backend: Backend, rendezvous: Rendezvous | None) -> Collectives:
    if rendezvous:
        return backend.connect(rank.world, rank.placement, rendezvous, rank.task.spec.timeout)
    return rank.peers.collectives()


def _heading(rank: Rank, model: Model, backend: Backend) -> "dict[str, JsonValue]":
    return {
        "model": model.name,
        "backend": backend.name,
        "device": rank.placement.device,
        "world_size": rank.world.size,
        "num_hosts": rank.world.num_hosts,
        "launcher": rank.world.launcher,
        "threads": rank.placement.threads,
        "seed": rank.task.spec.seed,
        "versions": dict(backend.versions()),
    }
