"""The options of each command, made from the specs: every field is an option, whose text the spec validates later."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from unilaunch.errors import SpecError
from unilaunch.interfaces import plugins
from unilaunch.interfaces.model import Model
from unilaunch.overriding import override
from unilaunch.spec.help_texts import HELP, OFF
from unilaunch.spec.run_spec import RunSpec, Spec, holds_several, read_several
from unilaunch.version import __version__

#: One-letter names of options.
_SHORT = {"nprocs": ("-n",), "hosts": ("-H",)}


class _Several(argparse.Action):
    """An option that can be given several times; the values of all are joined."""

    @override
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before, new = getattr(namespace, self.dest, None), read_several(values)
        joined = before | new if isinstance(before, dict) and isinstance(new, dict) else [*(before or ()), *new]
        setattr(namespace, self.dest, new if before is None else joined)


class _Pairs(argparse.Action):
    """An option with a name and a value, which can be given several times; `words.split` hides a "-" by a space."""

    @override
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        pair = [text.removeprefix(" ") for text in values]
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, ()), pair])


class Switch(argparse.BooleanOptionalAction):
    """An option that is on or off.

    Attributes:
        shown: Its forms that differ from the default: both forms, if neither is the default.
    """

    shown: tuple[str, ...] = ()


class Parser(argparse.ArgumentParser):
    """A parser that raises a `SpecError`, and gives only the options that were typed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS, **settings)

    @override
    def error(self, message: str) -> NoReturn:
        raise SpecError(message.removeprefix("argument "))

    def takes(self) -> dict[str, int]:
        """Return the number of values of each option."""
        actions = self._option_string_actions.items()
        return {option: 1 if action.nargs is None else int(action.nargs) for option, action in actions}

    def options(self) -> list[argparse.Action]:
        """Return every option and argument, in the order in which they were added."""
        return list(self._actions)

    def groups(self) -> list[tuple[str, list[argparse.Action]]]:
        """Return the headings of `--help`, each with its options."""
        return [(group.title or "", group._group_actions) for group in self._action_groups]  # noqa: SLF001

    def listed_commands(self) -> list[argparse.Action]:
        """Return the commands, each with its help."""
        return [listed for action in self._actions for listed in getattr(action, "_get_subactions", list)()]


def make_parser(command: str, words: Sequence[str] = ()) -> tuple[Parser, dict[str, Parser]]:
    """Return the parser, and the parsers of the commands; only that of *command* if it is given, to save time.

    Args:
        command: The command's name.
        words: The words after it: `--emit NAME` adds the options of that job file.
    """
    parser = Parser(prog="unilaunch")
    parser.add_argument(
        "--version", action="version", version=f"unilaunch {__version__}", help="show the version and exit"
    )
    commands: dict[str, Parser] = {}
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name in [command] if command in CORE else CORE:
        commands[name] = subparsers.add_parser(name, help=HELP[name])
        CORE[name](commands[name])
    if command not in CORE:
        for name, plugin in plugins.commands().items():
            commands[name] = subparsers.add_parser(name, help=plugin.help)
            _add_options(commands[name], plugin.spec)
    if command == "launch":
        _add_job_file(commands[command], words)
    for each in (parser, *commands.values()):
        each.add_argument("-h", "--help", action="store_true", help="show this help")
    for name in {"run", "launch"} & set(commands):
        commands[name].add_argument("--help-all", action="store_true", help="show every option")
    return parser, commands


def model_options(model: Model) -> list[argparse.Action]:
    """Return the options of one model, with its own texts and defaults."""
    _add_options(parser := Parser(), model.spec)
    return parser.options()


def _add_run(parser: Parser, spec: type[RunSpec] = RunSpec) -> None:
    models = {name: model for name, model in plugins.models().items() if not model.is_internal}
    what = f"{', '.join(models)}, a script FILE.py, or package.module:function"
    parser.add_argument("target", nargs="?", metavar="TARGET", help=what)
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module")
    parser.add_argument("--config", metavar="FILE", help="TOML, YAML or JSON file of options")
    spec_help = "a whole spec, as launch writes it; no other option may stand beside it"
    parser.add_argument("--spec", metavar="JSON", help=spec_help)
    own = set(RunSpec.model_fields) - {"target", "args"}
    _add_options(parser, spec, leave_out=set(spec.model_fields) - own)
    taken: set[str] = set()
    for name, model in models.items():
        _add_options(parser.add_argument_group(f"options of {name}"), model.spec, leave_out=taken, models=models)
        taken |= set(model.spec.model_fields)


def _add_doctor(parser: Parser) -> None:
    from unilaunch.spec.launch_spec import DoctorSpec

    own = {"hostfile", "hosts", "output_dir", "measure", "healthy"}
    _add_options(parser, DoctorSpec, leave_out={*DoctorSpec.model_fields} - own)
    _add_mpi(parser)


def _add_mpi(parser: Parser) -> None:
    from unilaunch.spec.launch_spec import MpiSpec

    mpi = parser.add_argument_group("mpirun's own options, translated to the version that is found")
    mpi.add_argument("--mca", nargs=2, action=_Pairs, metavar=("K", "V"), help="an MCA parameter of Open MPI")
    mpi.add_argument("-x", dest="export", action="append", metavar="NAME[=V]", help="a variable that all ranks get")
    mpi.add_argument("--mpi-arg", dest="mpi_args", action="append", metavar="WORD",
                     help="one more argument for mpirun, unchanged")  # fmt: skip
    _add_options(mpi, MpiSpec, leave_out={"mca", "export", "mpi_args"})


def _add_launch(parser: Parser) -> None:
    from unilaunch.spec.launch_spec import LaunchSpec, MpiSpec

    whole = parser.add_argument_group("the job")
    _add_options(whole, LaunchSpec, leave_out={*RunSpec.model_fields, *MpiSpec.model_fields, "options", "env"})
    whole.add_argument(
        "--dry-run", action="store_true", default=False, help="show how ranks are started, and where each goes"
    )
    whole.add_argument("--json", action="store_true", default=False, help="show that as JSON")
    kinds = plugins.names(plugins.JOB_FILES)
    whole.add_argument("--emit", choices=kinds, default=None, metavar="KIND",
                       help=f"write a job file instead: {', '.join(kinds)}")  # fmt: skip
    _add_mpi(parser)
    _add_run(parser, LaunchSpec)


def job_file_of(words: Sequence[str]) -> tuple[str, Any]:
    """Return the kind that `--emit` names, and its job file; None if there is none. No other job file is imported."""
    following = pairwise([*words, ""])
    named = (second if first == "--emit" else first.partition("=")[2] for first, second in following
             if first == "--emit" or first.startswith("--emit="))  # fmt: skip
    kind = next(named, "")
    if kind not in plugins.names(plugins.JOB_FILES):
        return kind, None
    return kind, plugins.make(plugins.JOB_FILES, "job file", kind)


def _add_job_file(parser: Parser, words: Sequence[str]) -> None:
    kind, form = job_file_of(words)
    if form:
        _add_options(parser.add_argument_group(f"options of --emit {kind}"), form.options, inside="job_file.")


def add_job_files(parser: Parser) -> None:
    """Add the options of every job file, for completion: a shell's script does not change after `--emit`."""
    for kind, form in plugins.make_all(plugins.JOB_FILES, "job file").items():
        known = {option.removeprefix("--").replace("-", "_") for option in parser.takes()}
        _add_options(parser.add_argument_group(f"only with --emit {kind}"), form.options, known, inside="job_file.")


CORE: Mapping[str, Callable[[Parser], None]] = {
    "run": _add_run,
    "launch": _add_launch,
    "doctor": _add_doctor,
    "explain": lambda _: None,
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
        option = f"--{name.removeprefix('as_').replace('_', '-')}"  # as_json: pydantic has a method named json
        text = (field.description or "").replace("%", "%%")
        if name in spec.positional:
            parser.add_argument(
                name, nargs="?", metavar=name.upper(), help=text + _default(name, field.default, models)
            )
            continue
        if bool in {field.annotation, *get_args(field.annotation)}:
            switch = parser.add_argument(option, dest=inside + name, action=Switch, help=text)
            forms = switch.option_strings
            switch.shown = {True: (forms[1],), False: (forms[0],)}.get(field.default, tuple(forms))
            if switch.shown == (forms[1],):
                switch.help = OFF.get(name, f"switch this off: {text}")
            continue
        default = _default(name, field.default, models)
        action = _Several if holds_several(field.annotation) else "store"
        names = (*_SHORT.get(name, ()), option)
        added = parser.add_argument(*names, dest=inside + name, action=action, metavar=_metavar(field.annotation),
                                    help=text + default)  # fmt: skip
        added.examples = field.examples  # for completion


def _default(field: str, default: Any, models: Mapping[str, Model]) -> str:
    """Return the text for a default, or for each model's default if several models have the option."""
    each = {
        name: model.spec.model_fields[field].default
        for name, model in models.items()
        if field in model.spec.model_fields
    }
    if len(set(map(str, each.values()))) > 1:
        return f" (default: {', '.join(f'{name} {value}' for name, value in each.items())})"
    return "" if default in (None, ..., ()) else f" (default: {default})"


def _metavar(annotation: Any) -> str:
    choices = [annotation] if get_origin(annotation) is Literal else get_args(annotation) or [annotation]
    kind = next(kind for kind in choices if kind is not type(None))
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    return {int: "N", float: "X", Path: "PATH", str: "TEXT"}.get(kind, "VALUE")
