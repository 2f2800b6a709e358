"""The command line: call the function of each command. It reads sys.argv and the environment for all of them."""

import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from errno import EPIPE
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from unilaunch.errors import (
    NO_ROOM,
    InputError,
    LauncherError,
    OutputError,
    SpecError,
    UnilaunchError,
    say,
    say_warning,
)
from unilaunch.interfaces import plugins
from unilaunch.spec.variables import SPEC

if TYPE_CHECKING:
    from unilaunch.rank.status import Status
    from unilaunch.spec.run_spec import RunSpec, Spec
    from unilaunch.spec.task import Task

S = TypeVar("S", bound="Spec")
T = TypeVar("T")


def main() -> NoReturn:
    """Run the command of the command line, and exit."""
    environ = dict(os.environ)  # noqa: TID251  (the one place that reads it)
    _open_closed_outputs()
    try:
        _check_folder()
        code = _do(sys.argv[1:], environ)
    except UnilaunchError as error:
        say(error)
        code = error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        code = 128 + SIGINT
    _forget_unread_errors()
    sys.exit(code)


def _open_closed_outputs() -> None:
    """Open the outputs that the caller has closed: a socket would get such a number, and messages would go into it."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)  # agents inherit it
            if nowhere != number:
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def _forget_unread_errors() -> None:
    """Drop messages that nobody can read any more: at exit Python would fail to write them, and exit with 120."""
    try:
        sys.stderr.flush()
    except OSError:  # the reader (head, less) has ended
        sys.stderr = None  # nothing is left to flush
    except (ValueError, AttributeError):  # a program has closed or replaced it
        pass


def _check_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UnilaunchError("the current folder no longer exists: cd to another one") from None


def _do(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    match arguments[0] if arguments else "":
        case "run" if not _wants_help(arguments):
            return _supervise(arguments, environ)
        case "guard" if arguments[1:] and arguments[1].isdecimal():
            return _guard(arguments)
        case "launch":
            return _launch(arguments, environ)
        case "doctor":
            from unilaunch.doctor.checkup import doctor
            from unilaunch.spec.launch_spec import DoctorSpec, MpiSpec

            shared = {*MpiSpec.model_fields, "hosts", "hostfile", "host_timeout", "output_dir", "measure", "healthy"}
            options = _checked(DoctorSpec, _fields(arguments), environ, shared)
            return _write(lambda: doctor(options, environ))
        case "explain":
            from unilaunch.look.explain import explain
            from unilaunch.spec.run_spec import RunSpec

            spec = _checked(RunSpec, _fields(arguments), environ)
            return _write(lambda: explain(spec, environ))
        case _:
            return _do_command(arguments, environ)


def _wants_help(arguments: Sequence[str]) -> bool:
    if not {"-h", "--help", "--help-all"} & set(arguments):
        return False
    from unilaunch.spec.options import asks_for_help

    return asks_for_help(arguments)


def _supervise(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    from unilaunch.agent.under_launcher import supervise

    if SPEC in environ:
        plugins.use_table(json.loads(environ[SPEC]).get("entry_points", {}))
    return supervise(environ, partial(_be_rank, arguments))


def _guard(arguments: Sequence[str]) -> int:
    """Be the process from which the agents of a direct start are forked; only `launch` types this command."""
    from unilaunch.agent.guard import serve
    from unilaunch.rank import run  # noqa: F401  (every rank needs it)
    from unilaunch.spec import task  # noqa: F401  (the same)

    return serve(arguments[1:], partial(_rank_task, ()), _be_rank)


def _be_rank(arguments: Sequence[str], status: "Status") -> int:
    from unilaunch.rank.run import run  # the agent does not need the rank's imports

    environ = dict(os.environ)  # noqa: TID251  (in a rank of a direct start: its own one)
    return run(lambda: _rank_task(arguments, environ), environ, status)


def _rank_task(arguments: Sequence[str], environ: Mapping[str, str]) -> "Task[RunSpec]":
    """Return a rank's task: from the spec that `launch` has passed, or from its command line."""
    if SPEC in environ:
        from unilaunch.spec.task import decode_task

        return decode_task(environ[SPEC], arguments[arguments.index("--") + 1 :] if "--" in arguments else ())
    from unilaunch.spec.reading import read_task
    from unilaunch.spec.run_spec import RunSpec

    return read_task(RunSpec, _fields(arguments), environ)


def _fields(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options that were typed, by field; the help, if it was requested, is written to its end."""
    from unilaunch.spec.options import parse

    return _write(lambda: parse(arguments))


def _launch(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start a job, and return its exit code; with --dry-run or --emit only show what would start it."""
    given = _fields(arguments)
    if _shows(given, environ):
        return 0
    from unilaunch.spec.launch_spec import OF_MPIRUN

    guard = None
    if given.get("target") and not {"hosts", "hostfile", *OF_MPIRUN} & set(given):  # else mpirun starts nearly all jobs
        from unilaunch.job.started import GuardHandle

        # It imports unilaunch while this process imports what plans the job.
        with suppress(LauncherError):  # tried again when the job is planned
            guard = GuardHandle(str(given["target"]), environ)
    try:
        from unilaunch.job.attempts import launch_attended
        from unilaunch.launchers import refuse_copies
        from unilaunch.spec.launch_spec import LaunchSpec
        from unilaunch.spec.reading import read_task

        task = read_task(LaunchSpec, given, environ)
        if task.spec.nnodes == 1:
            refuse_copies(environ, "unilaunch launch")
        returncode = launch_attended(task, environ, guard).returncode
    finally:
        if guard:
            guard.close()
    if returncode == UnilaunchError.exit_code and task.target.kind != "model":
        _say_which_are_ours(task.spec.args, str(task.target))
    return returncode


def _shows(given: dict[str, Any], environ: Mapping[str, str]) -> bool:
    """Show what would start the job, if --dry-run or --emit is *given*; return whether nothing is left to do.

    These options are taken out of *given*: the others are fields of the spec.
    """
    dry_run, as_json, kind = given.pop("dry_run"), given.pop("json"), given.pop("emit")
    if as_json and not dry_run:
        raise SpecError("--json: it is the form of what --dry-run shows: add --dry-run, or leave it out")
    if kind and dry_run:
        raise SpecError(f"--dry-run --emit {kind}: the file itself says what it will do: leave one out")
    if kind:
        from unilaunch.jobfiles import emit

        _write(lambda: sys.stdout.write(emit(str(kind), given, environ)))
        return True
    _say_services(environ)
    if dry_run:
        from unilaunch.job.plan import make_plan, show_plan
        from unilaunch.spec.launch_spec import LaunchSpec
        from unilaunch.spec.reading import read_task

        task = read_task(LaunchSpec, given, environ)
        _write(lambda: show_plan(make_plan(task, environ), as_json=bool(as_json)))
    return bool(dry_run)


def _say_services(environ: Mapping[str, str]) -> None:
    from unilaunch.spec.variables import describe_services

    if line := describe_services(environ):
        say(line)


def _say_which_are_ours(args: Sequence[str], target: str) -> None:
    """Name the options of unilaunch among a program's arguments, after the program has refused its arguments."""
    from unilaunch.spec.options import own_options

    if ours := own_options("launch", args):
        verb = "are options" if ours[1:] else "is an option"
        say(f"{', '.join(ours)} {verb} of unilaunch: type {'them' if ours[1:] else 'it'} before {target}")


def _do_command(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    warnings.showwarning = say_warning
    given = _fields(arguments)
    command = plugins.commands()[arguments[0]]
    options = _checked(command.spec, given, environ)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names of files and output of ranks may have any encoding
    return _write(lambda: command.run(options))


def _write(run: Callable[[], T]) -> T:
    """Call what writes the output of a command, write that to its end, and return the value.

    A reader who has enough (head, less) is no error.

    Raises:
        InputError: A file cannot be read; the message names it.
        OutputError: There is no room for the output.
        SystemExit: The reader has enough.
    """
    try:
        try:
            value = run()
        except SystemExit:  # the help was shown
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except OSError as error:
        if error.filename and error.strerror:
            raise InputError(f"{error.filename}: {error.strerror}") from None
        if error.errno not in {EPIPE, *NO_ROOM}:
            raise
        sys.stdout = None  # what is left cannot be written either
        if error.errno == EPIPE:
            sys.exit(0)
        raise OutputError(f"the output cannot be written: {error.strerror}") from None
    return value


def _checked(
    kind: "type[S]", given: Mapping[str, object], environ: Mapping[str, str], fields: Collection[str] = ()
) -> "S":
    """Return the options that were *given*; UNILAUNCH_ variables set those of *fields*, or of all, that were not."""
    from unilaunch.spec.reading import read_options

    _say_services(environ)
    return read_options(kind, given, environ, fields)
