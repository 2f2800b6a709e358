"""The command line's grammar, made from the specs: every field is an option, left as text for the spec to judge."""

import argparse
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn, get_args, get_origin

from typing_extensions import override

from unilaunch import entry_points, plugins
from unilaunch.errors import SpecError, nearest
from unilaunch.help_texts import EXAMPLES, HELP, NOTES, STARTS, epilog
from unilaunch.model import Model
from unilaunch.spec import RunSpec, Spec, holds_several, read_several

#: What mpirun's users type, as an option of ours.
_MPIRUN_NAMES = {
    "-np": "--nprocs", "-n": "--nprocs", "--np": "--nprocs", "-c": "--nprocs",
    "-hostfile": "--hostfile", "-machinefile": "--hostfile", "--machinefile": "--hostfile", "-f": "--hostfile",
    "-H": "--hosts", "-host": "--hosts", "--host": "--hosts", "-hosts": "--hosts",
    "-prefix": "--prefix", "-allow-run-as-root": "--allow-run-as-root", "-oversubscribe": "--oversubscribe",
    "-bind-to": "--bind-to", "-map-by": "--map-by", "-rank-by": "--rank-by", "-mca": "--mca",
    "-output-filename": "--output-filename", "-tag-output": "--tag-output",
    "-merge-stderr-to-stdout": "--merge-stderr-to-stdout",
}  # fmt: skip


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Return what was given, as text, by field, and under "command" the command.

    Raises:
        SpecError: It does not parse, or names an option that does not exist.
    """
    command = next(iter(arguments), "")
    own, args = _split(arguments) if command in {"run", "launch"} else (list(arguments), [])
    if command in {"launch", "doctor"}:
        own = [_MPIRUN_NAMES.get(word, word) for word in own]
    parser, commands = _parser(command)
    valued = commands[command].valued() if command in commands else ()
    namespace, unknown = parser.parse_known_args(_tie(own, valued))
    if unknown:
        raise SpecError(_unknown(unknown[0], command))
    given = vars(namespace)
    if args:
        given["args"] = tuple(args)
    return _fold(given)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our own words, and those behind `--`, which are the program's."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def _tie(words: Sequence[str], valued: Collection[str]) -> list[str]:
    """Return the words with each value that begins with a dash tied to its option.

    Args:
        words: The command's and its options.
        valued: The options that take a value.
    """
    tied: list[str] = []
    for word in words:
        if tied and tied[-1] in valued and word.startswith("-"):
            tied[-1] += f"={word}"
        else:
            tied.append(word)
    return tied


def _fold(given: dict[str, Any]) -> dict[str, Any]:
    """Put `-m NAME` into the target, and mpirun's options into `mpi`."""
    module = given.pop("module", None)
    if module and "target" in given:
        raise SpecError(f"-m {module} and {given['target']}: there is one TARGET; its arguments stand behind --")
    if module:
        given["target"] = f"-m {module}"
    mpi = {name.removeprefix("mpi."): given.pop(name) for name in list(given) if name.startswith("mpi.")}
    return given | ({"mpi": mpi} if mpi else {})


def _unknown(argument: str, command: str) -> str:
    if not argument.startswith("-"):
        hint = "; a script's arguments stand behind --" if command in {"run", "launch"} else ""
        return f"{argument!r}: there is one TARGET, and every other word follows its option{hint}"
    from unilaunch.launch_spec import MpiSpec
    from unilaunch.reading import known_fields

    fields = known_fields() | (set(MpiSpec.model_fields) if command == "launch" else set())
    options = [f"--{field.replace('_', '-')}" for field in fields]
    return f"{argument}: no such option{nearest(argument.partition('=')[0], options)}"


class _Several(argparse.Action):
    """An option that can be given several times; what each holds joins what the others hold."""

    @override
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before, new = getattr(namespace, self.dest, None), read_several(values)
        joined = before | new if isinstance(before, dict) and isinstance(new, dict) else [*(before or ()), *new]
        setattr(namespace, self.dest, new if before is None else joined)


class _Parser(argparse.ArgumentParser):
    """A parser that refuses with a `SpecError`, and draws its help with rich."""

    @override
    def error(self, message: str) -> NoReturn:
        raise SpecError(message)

    def valued(self) -> set[str]:
        """Return the long options that take one value."""
        actions = self._option_string_actions.items()
        return {option for option, action in actions if action.nargs is None and option.startswith("--")}

    @override
    def format_help(self) -> str:
        from rich_argparse import RawDescriptionRichHelpFormatter

        self.formatter_class = RawDescriptionRichHelpFormatter
        return super().format_help()


def _parser(command: str) -> tuple[argparse.ArgumentParser, dict[str, "_Parser"]]:
    """Return the parser, and those of the commands: of *command* only, if there is one, since a rank needs its own."""
    parser = _Parser(
        prog="unilaunch", description="One launch spec, any MPI, either framework.", allow_abbrev=False,
        epilog=epilog(EXAMPLES["unilaunch"]),
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=_version())
    if "--print-completion" in sys.argv:
        import shtab

        shtab.add_argument_to(parser)
    commands: dict[str, _Parser] = {}
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name in [command] if command in _CORE else _CORE:
        sub = subparsers.add_parser(
            name, help=HELP[name], description=HELP[name], epilog=epilog(_examples(name), NOTES.get(name, "")),
            allow_abbrev=False,
        )  # fmt: skip
        _CORE[name](sub)
        commands[name] = sub
    if command not in _CORE:
        for name, plugin in plugins.commands().items():
            sub = subparsers.add_parser(
                name, help=plugin.help, description=plugin.help, epilog=epilog(plugin.examples), allow_abbrev=False
            )
            _add_options(sub, plugin.spec)
            commands[name] = sub
    return parser, commands


def _examples(command: str) -> list[str]:
    """Return the examples of a command of the core, behind those of the models that it can run."""
    models = plugins.models().values() if command in STARTS else ()
    return [*(f"{STARTS[command]} {words}" for model in models for words in model.examples), *EXAMPLES[command]]


def _add_run(parser: argparse.ArgumentParser) -> None:
    models = {name: model for name, model in plugins.models().items() if not model.is_internal}
    what = f"{', '.join(models)}, a script FILE.py, or package.module:function"
    parser.add_argument("target", nargs="?", default=argparse.SUPPRESS, help=f"what to run: {what}")
    parser.add_argument("-m", dest="module", metavar="MODULE", default=argparse.SUPPRESS, help="run a module")
    parser.add_argument(
        "--config", metavar="FILE", default=argparse.SUPPRESS, help="TOML, YAML or JSON file of options"
    )
    parser.add_argument(
        "--spec",
        metavar="JSON",
        default=argparse.SUPPRESS,
        help="a whole spec, as launch writes it; it says everything",
    )
    _add_options(parser, RunSpec, leave_out={"target", "args"})
    taken: set[str] = set()
    for name, model in models.items():
        _add_options(parser.add_argument_group(f"options of {name}"), model.spec, leave_out=taken, models=models)
        taken |= set(model.spec.model_fields)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    from unilaunch.doctor.spec import DoctorSpec

    _add_options(parser, DoctorSpec, leave_out={*DoctorSpec.model_fields} - {"hostfile", "hosts", "measure", "healthy"})
    _add_mpi(parser)


def _add_mpi(parser: argparse.ArgumentParser) -> None:
    from unilaunch.launch_spec import MpiSpec

    mpi = parser.add_argument_group("mpirun's own options, translated to the version that is found")
    mpi.add_argument("--mca", dest="mpi.mca", nargs=2, action="append", metavar=("K", "V"), default=argparse.SUPPRESS,
                     help="an MCA parameter of Open MPI")  # fmt: skip
    mpi.add_argument("-x", dest="mpi.x", action="append", metavar="NAME[=V]", default=argparse.SUPPRESS,
                     help="a variable that all ranks get")  # fmt: skip
    mpi.add_argument("--mpi-arg", dest="mpi.args", action="append", metavar="WORD", default=argparse.SUPPRESS,
                     help="a further word for mpirun, as it is")  # fmt: skip
    _add_options(mpi, MpiSpec, leave_out={"mca", "x", "args"}, inside="mpi.")


def _add_launch(parser: argparse.ArgumentParser) -> None:
    from unilaunch.launch_spec import LaunchSpec

    whole = parser.add_argument_group("the job")
    _add_options(whole, LaunchSpec, leave_out={*RunSpec.model_fields, "options", "mpi"})
    whole.add_argument("--dry-run", action="store_true", help="show the mpirun line and where every rank goes")
    whole.add_argument("--json", action="store_true", help="show that as JSON")
    whole.add_argument("--emit", choices=entry_points.names(entry_points.JOB_FILES), default=None,
                       help="write a job file instead, for Slurm, Kubernetes or mpirun")  # fmt: skip
    _add_mpi(parser)
    _add_run(parser)


def _add_nothing(parser: argparse.ArgumentParser) -> None:
    pass


_CORE: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {
    "run": _add_run,
    "launch": _add_launch,
    "doctor": _add_doctor,
    "explain": _add_nothing,
}


def _add_options(
    parser: Any,
    spec: type[Spec],
    leave_out: set[str] | frozenset[str] = frozenset(),
    inside: str = "",
    models: Mapping[str, Model] = MappingProxyType({}),
) -> None:
    for name, field in spec.model_fields.items():
        if name in leave_out:
            continue
        option = f"--{name.removeprefix('as_').replace('_', '-')}"  # as_json: pydantic's own method is called json
        text = (field.description or "").replace("%", "%%")
        if name in spec.positional:
            parser.add_argument(name, nargs="?", metavar=name.upper(), default=argparse.SUPPRESS,
                                help=text + _default(name, field.default, models))  # fmt: skip
            continue
        if bool in {field.annotation, *get_args(field.annotation)}:
            parser.add_argument(option, dest=inside + name, action=argparse.BooleanOptionalAction,
                                default=argparse.SUPPRESS, help=text)  # fmt: skip
            continue
        default = _default(name, field.default, models)
        action = _Several if holds_several(field.annotation) else "store"
        parser.add_argument(option, dest=inside + name, action=action, metavar=_metavar(field.annotation),
                            default=argparse.SUPPRESS, help=text + default)  # fmt: skip


def _default(field: str, default: Any, models: Mapping[str, Model]) -> str:
    """Return the words for a default, or for each model's where several have the option."""
    each = {
        name: model.spec.model_fields[field].default
        for name, model in models.items()
        if field in model.spec.model_fields
    }
    if len(set(map(str, each.values()))) > 1:
        return f" (default: {', '.join(f'{name} {value}' for name, value in each.items())})"
    return "" if default in (None, ...) else f" (default: {default})"


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "{" + ",".join(map(str, get_args(annotation))) + "}"
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    names = {int: "N", float: "X", Path: "PATH", str: "NAME"}
    return names.get(kinds[0], "VALUE")


def _version() -> str:
    from unilaunch.version import __version__

    return f"unilaunch {__version__}"
