"""The command line: commands to calls. The only reader of the process's arguments and environment."""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGINT
from typing import Any, Literal, NoReturn, get_args, get_origin

from typing_extensions import override

from unilaunch import plugins
from unilaunch.command import Command
from unilaunch.errors import SpecError, UnilaunchError
from unilaunch.model import Model
from unilaunch.rank.run import run
from unilaunch.rank.task import read_task
from unilaunch.spec import RunSpec, Spec, nearest, read_variables, validate, variable_of

EXAMPLES = {
    "unilaunch": """examples:
  mpirun -n 2 python -m unilaunch run
  mpirun -n 8 --output-filename log_output python -m unilaunch run --backend mindspore
  python -m unilaunch partition --dataset cora --num-parts 4
""",
    "run": """examples:
  mpirun -n 2 python -m unilaunch run --dataset cora
  mpirun --hostfile hosts -n 16 python -m unilaunch run --backend torch --epochs 100
  python -m unilaunch run --config run.toml --seed 3

Every option can also stand in the file of --config, and in the environment: --epochs as UNILAUNCH_EPOCHS.
An option wins over the environment, the environment over the file.
""",
}


def main() -> NoReturn:
    """Do what the command line says, and exit."""
    started = time.monotonic()
    environ = dict(os.environ)  # noqa: TID251  (the one place that reads it)
    arguments = sys.argv[1:]
    try:
        if arguments[:1] == ["run"]:
            sys.exit(run(lambda world_size: read_task(parse(arguments), environ, world_size), environ, started))
        sys.exit(_do_command(arguments, environ))
    except UnilaunchError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(128 + SIGINT)


def _say(line: str) -> None:
    print(f"unilaunch: {line}", file=sys.stderr)  # noqa: T201  (the one line that the user is to read)


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options that were given, as text, by field."""
    running = arguments[:1] == ["run"]
    parser = _parser(plugins.models(), {} if running else plugins.commands())
    namespace, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise SpecError(_unknown(unknown[0]))
    given = vars(namespace)
    if running:
        del given["command"]
    return given


def _unknown(argument: str) -> str:
    if not argument.startswith("-"):
        return f"{argument!r}: there is one TARGET, and every other word follows its option"
    specs: list[type[Spec]] = [RunSpec, *(model.spec for model in plugins.models().values())]
    specs += [command.spec for command in plugins.commands().values()]
    options = [f"--{field.replace('_', '-')}" for spec in specs for field in spec.model_fields]
    return f"{argument}: no such option{nearest(argument.partition('=')[0], options)}"


def _do_command(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    given = parse(arguments)
    command = plugins.commands()[given.pop("command")]
    mine = set(command.spec.model_fields)
    elsewhere = {field for model in plugins.models().values() for field in model.spec.model_fields}
    known = mine | elsewhere | set(RunSpec.model_fields)
    variables = {field: value for field, value in read_variables(environ, known).items() if field in mine}
    sources = {field: variable_of(field, environ) for field in set(variables) - set(given)}
    return command.run(validate(command.spec, {**variables, **given}, sources))


class _Parser(argparse.ArgumentParser):
    """A parser that refuses with a `SpecError`, and draws its help with rich."""

    @override
    def error(self, message: str) -> NoReturn:
        raise SpecError(message)

    @override
    def format_help(self) -> str:
        from rich_argparse import RawDescriptionRichHelpFormatter

        self.formatter_class = RawDescriptionRichHelpFormatter
        return super().format_help()


def _parser(models: Mapping[str, Model], commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Return the parser: every field of a spec is an option, passed on as text for the spec to judge."""
    parser = _Parser(prog="unilaunch", description=_summary(), epilog=EXAMPLES["unilaunch"], allow_abbrev=False)
    parser.add_argument("--version", action="version", version=_version())
    if "--print-completion" in sys.argv:
        import shtab

        shtab.add_argument_to(parser)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    run_help = "be one rank: the one that the launcher assigned, or under no launcher the only one"
    rank = subparsers.add_parser("run", help=run_help, description=run_help, epilog=EXAMPLES["run"], allow_abbrev=False)
    rank.add_argument("target", nargs="?", default=argparse.SUPPRESS, help=f"what to run: {', '.join(models)}")
    rank.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="TOML, YAML or JSON file of options")
    _add_options(rank, RunSpec, leave_out="target")
    for model in models.values():
        _add_options(rank.add_argument_group(f"options of {model.name}"), model.spec)
    for name, command in commands.items():
        sub = subparsers.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
        _add_options(sub, command.spec)
    return parser


def _add_options(parser: Any, spec: type[Spec], leave_out: str = "") -> None:
    for name, field in spec.model_fields.items():
        if name == leave_out:
            continue
        option = f"--{name.replace('_', '-')}"
        text = (field.description or "").replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
            continue
        default = "" if field.default in (None, ...) or field.is_required() else f" (default: {field.default})"
        parser.add_argument(option, metavar=_metavar(field.annotation), default=argparse.SUPPRESS, help=text + default)


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "{" + ",".join(map(str, get_args(annotation))) + "}"
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    names = {int: "N", float: "X", Path: "PATH", str: "NAME"}
    return names.get(kinds[0], "VALUE")


def _summary() -> str:
    return "One launch spec, any MPI, either framework."


def _version() -> str:
    from unilaunch import __version__

    return f"unilaunch {__version__}"
