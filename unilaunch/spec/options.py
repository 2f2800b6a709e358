"""The command line: the options of each command, made from the fields of the specs, and how typed words are read.

Values stay text, by field: the spec checks them later.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from unilaunch.errors import SpecError, nearest
from unilaunch.interfaces import plugins
from unilaunch.interfaces.model import Model
from unilaunch.overriding import override
from unilaunch.record import Record
from unilaunch.spec.habits import COMMANDS, LAUNCH, Habit, Instead, Needless, Same
from unilaunch.spec.run_spec import RunSpec, Spec, holds_several, option_of, plain_option_of, read_several
from unilaunch.spec.target import read_target
from unilaunch.version import __version__

_HELP = ("-h", "--help", "--help-all")
#: Commands that start a program.
_STARTING = ("run", "launch")
#: A function: package.module:function, or FILE.py:function.
_FUNCTION = re.compile(r"[\w./-]+:[A-Za-z_][\w.]*")
_GLUED = re.compile(r"(-n|-np|-c)(\d+)|(-x)([A-Za-z_]\w*=.*)|(-H)([^=].*)", re.DOTALL)
_PYTHON = re.compile(r"(.*/)?python[\d.]*")
#: One-letter names of options.
_SHORT = {"nprocs": ("-n",), "hosts": ("-H",)}
#: What an option that only switches something off does, by field; without an entry the text of the field is quoted.
OFF = {"abort": "let the other ranks go on when one has failed"}
HELP = {
    "run": "be one rank: the one that the launcher assigned, or under no launcher the only one",
    "launch": "check everything, then start all ranks, wait and report",
    "doctor": "check the hosts before a run, through the mpirun that it will use; show only what is wrong",
    "explain": "show which launcher was seen, by which variables, and what each framework would find",
}


class _Several(argparse.Action):
    """An option that can be given several times; the values of all are joined."""

    @override
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before, new = getattr(namespace, self.dest, None), read_several(values)
        joined = before | new if isinstance(before, dict) and isinstance(new, dict) else [*(before or ()), *new]
        setattr(namespace, self.dest, new if before is None else joined)


class Switch(argparse.BooleanOptionalAction):
    """An option that is on or off.

    Attributes:
        shown: Its forms that differ from the default: both forms, if neither is the default.
    """

    shown: tuple[str, ...] = ()


class Parser(argparse.ArgumentParser):
    """The options of a command. Its words are read by `split`: argparse has no end of them at the program's name."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS, **settings)

    @property
    def by_name(self) -> Mapping[str, argparse.Action]:
        """Every option by each of its names, with the dashes."""
        return self._option_string_actions

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
            _add_options(commands[name], plugin.spec, plugin.spec.model_fields)
    if command == "launch":
        _add_job_file(commands[command], words)
    for each in (parser, *commands.values()):
        each.add_argument("-h", "--help", action="store_true", help="show this help")
    for name in {"run", "launch"} & set(commands):
        commands[name].add_argument("--help-all", action="store_true", help="show every option")
    return parser, commands


def model_options(model: Model) -> list[argparse.Action]:
    """Return the options of one model, with its own texts and defaults."""
    _add_options(parser := Parser(), model.spec, model.spec.model_fields)
    return parser.options()


def _add_run(parser: Parser, spec: type[RunSpec] = RunSpec) -> None:
    models = {name: model for name, model in plugins.models().items() if not model.is_internal}
    what = f"{', '.join(models)}, FILE.py, or package.module:function"
    parser.add_argument("target", nargs="?", metavar="TARGET", help=what)
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module")
    parser.add_argument("--config", metavar="FILE", help="TOML, YAML or JSON file of options")
    spec_help = "a whole spec, as launch writes it; no other option may stand beside it"
    parser.add_argument("--spec", metavar="JSON", help=spec_help)
    _add_options(parser, spec, RunSpec.model_fields.keys() - {"target", "args"})
    taken: set[str] = set()
    for name, model in models.items():
        group = parser.add_argument_group(f"options of {name}")
        _add_options(group, model.spec, model.spec.model_fields.keys() - taken, models=models)
        taken |= model.spec.model_fields.keys()


def _add_doctor(parser: Parser) -> None:
    from unilaunch.spec.launch_spec import DoctorSpec

    _add_options(parser, DoctorSpec, {"hostfile", "hosts", "output_dir", "measure", "healthy"})
    _add_mpi(parser)


def _add_mpi(parser: Parser) -> None:
    from unilaunch.spec.launch_spec import MpiSpec

    mpi = parser.add_argument_group("mpirun's own options, translated to the version that is found")
    mpi.add_argument("--mca", nargs=2, action="append", metavar=("K", "V"), help="an MCA parameter of Open MPI")
    mpi.add_argument("-x", dest="export", action="append", metavar="NAME[=V]", help="a variable that all ranks get")
    mpi.add_argument("--mpi-arg", dest="mpi_args", action="append", metavar="WORD",
                     help="one more argument for mpirun, unchanged")  # fmt: skip
    _add_options(mpi, MpiSpec, MpiSpec.model_fields.keys() - {"mca", "export", "mpi_args"})


def _add_launch(parser: Parser) -> None:
    from unilaunch.spec.launch_spec import LaunchSpec, MpiSpec

    whole = parser.add_argument_group("the job")
    elsewhere = {*RunSpec.model_fields, *MpiSpec.model_fields, "options", "env"}
    _add_options(whole, LaunchSpec, LaunchSpec.model_fields.keys() - elsewhere)
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
    marked = "--" in words  # else what follows a program is its own
    front = takewhile(lambda word: word != "--" if marked else word != "-m" and not word.endswith(".py"), words)
    following = pairwise([*front, ""])
    named = (second if first == "--emit" else first.partition("=")[2] for first, second in following
             if first == "--emit" or first.startswith("--emit="))  # fmt: skip
    kind = next(named, "")
    if kind not in plugins.names(plugins.JOB_FILES):
        return kind, None
    return kind, plugins.make(plugins.JOB_FILES, kind)


def _add_job_file(parser: Parser, words: Sequence[str]) -> None:
    kind, form = job_file_of(words)
    if form:
        group = parser.add_argument_group(f"options of --emit {kind}")
        _add_options(group, form.options, form.options.model_fields, inside="job_file.")


def add_job_files(parser: Parser) -> None:
    """Add the options of every job file, for completion: a shell's script does not change after `--emit`."""
    for kind, form in plugins.make_all(plugins.JOB_FILES).items():
        known = {option.removeprefix("--").replace("-", "_") for option in parser.by_name}
        group = parser.add_argument_group(f"only with --emit {kind}")
        _add_options(group, form.options, form.options.model_fields.keys() - known, inside="job_file.")


CORE: Mapping[str, Callable[[Parser], None]] = {
    "run": _add_run,
    "launch": _add_launch,
    "doctor": _add_doctor,
    "explain": lambda _: None,
}


def _add_options(
    parser: Any,
    spec: type[Spec],
    fields: Collection[str],
    *,
    inside: str = "",
    models: Mapping[str, Model] = MappingProxyType({}),
) -> None:
    """Add an option for each field of *spec* in *fields*.

    Args:
        parser: The parser, or a group of its options.
        spec: The spec.
        fields: Names of fields.
        inside: What the name under which the value is kept begins with.
        models: The models that may have the same option with another default.
    """
    for name, field in spec.model_fields.items():
        if name not in fields:
            continue
        option = plain_option_of(name)
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


class Line(Record):
    """A command line, and what its options mean.

    Attributes:
        command: The command's name.
        words: The words after it.
        options: The meaning of each option, by its name with dashes: one of unilaunch means itself.
        models: The names of the models, if the command starts programs: every other word that is no option is one.
    """

    command: str
    words: Sequence[str]
    options: Mapping[str, Habit]
    models: Collection[str]

    @property
    def starts(self) -> bool:
        """Whether the command starts a program, whose own words follow it."""
        return self.command in _STARTING

    def meaning(self, word: str) -> Habit | None:
        """Return the meaning of an option, with one dash or two, and "_" for "-"; None if there is none."""
        return self.options.get(word) or self.options.get("--" + word.lstrip("-").replace("_", "-"))


class Typed(Record):
    """An option of unilaunch with its values as text; a word that is no option has the name ""."""

    name: str
    values: tuple[str, ...]


class Words(Record):
    """A command line, split.

    Attributes:
        own: Options under unilaunch's names, and the target.
        args: The program's arguments.
        target: The first word that is not an option, or `-m MODULE`; "" if there is none.
    """

    own: tuple[Typed, ...]
    args: tuple[str, ...]
    target: str = ""

    def has(self, *names: str) -> bool:
        """Return whether one of the options was typed."""
        return any(typed.name in names for typed in self.own)


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the given values as text, by field.

    Raises:
        SpecError: The command line cannot be parsed, or has an unknown option.
        SystemExit: The help or the version was requested, and has been shown.
    """
    command, *words = arguments or [""]
    parser, commands = make_parser(command, words)
    if command not in commands:
        return _parse_no_command(arguments, parser, commands)
    options = commands[command]
    found = split(_line(command, words, options))
    if found.has(*_HELP):
        _show_help(command, found, options)
    given = _by_field(command, found.own, options)
    if found.args:
        given["args"] = found.args
    _refuse_of_other_targets(command, found.target, given, " --" if "--" in words else "")
    return given


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether the help of the command is requested, and not that of the program that it starts."""
    command, *words = arguments
    return bool(set(_HELP) & set(words)) and split(_line(command, words)).has(*_HELP)


def own_options(command: str, words: Sequence[str]) -> list[str]:
    """Return the arguments of a program that are also options of *command*, and not of a model."""
    line = _line(command)
    of_models = {option_of(field) for model in plugins.models().values() for field in model.spec.model_fields}
    names = [_name_and_value(word, line)[0] for word in words if word.startswith("-") and word not in _HELP]
    meanings = {name: line.meaning(name) for name in names}
    return [name for name, same in meanings.items() if isinstance(same, Same) and same.option not in of_models]


def _line(command: str, words: Sequence[str] = (), parser: Parser | None = None) -> Line:
    """Return the line of *command* and *words*; *parser* is the command's, if that is there already."""
    parser = parser or make_parser(command, words)[1][command]
    models = plugins.models() if command in _STARTING else {}
    others = () if command in CORE else (plugins.commands()[command],)
    _, form = job_file_of(words if command == "launch" else ())
    of_engine = form.habits if form else {}
    own = {
        name: Same(name, takes=1 if action.nargs is None else int(action.nargs))
        for name, action in parser.by_name.items()
        if name.lstrip("-") not in of_engine  # what a word means in a job file wins
    }
    other_names = {
        option_of(name): own[option_of(field)]
        for each in (*models.values(), *others)
        for name, field in each.spec.other_names.items()
        if option_of(field) in own
    }
    habits = {
        f"--{name}": habit
        for name, habit in ({**LAUNCH, **of_engine} if command in {"launch", "doctor"} else {}).items()
        if not isinstance(habit, Same) or habit.option in own
    }
    return Line(command, words, {**habits, **other_names, **own}, models)


def split(line: Line) -> Words:
    """Return unilaunch's words and the program's; the program may follow `--` if there is none before it.

    Raises:
        SpecError: An option is unknown, or must be typed in another way.
    """
    found = _split_at_program(line)
    if not found.args or found.target or found.has("--config", "--spec"):
        return found
    first, *args = found.args
    _refuse_python(line, line.words.index("--") + 1)
    if first == "-m" and args:
        module = Typed("-m", (args[0],))
        return Words((*found.own, module), tuple(args[1:]), f"-m {args[0]}")
    is_program = first.endswith(".py") or _FUNCTION.fullmatch(first)
    return Words((*found.own, Typed("", (first,))), tuple(args), first) if is_program else found


def _split_at_program(line: Line) -> Words:
    """Return unilaunch's words and the program's.

    All words after a program belong to the program. If there is a `--`, all words before it belong to unilaunch, and
    all words after it to the program.
    """
    marked = line.starts and "--" in line.words
    end = line.words.index("--") if marked else len(line.words)
    front = list(line.words[:end])
    own: list[Typed] = []
    target = program = ""
    while front and (marked or not program):
        word = front.pop(0)
        if word == "--":  # for a command that starts no program: the words after it are not options
            own += [Typed("", (each,)) for each in front]
            front = []
        elif word.startswith("-") and word != "-":
            if typed := _take_option(word, front, program, line):
                own.append(typed)
            if typed and typed.name == "-m":
                target = program = f"-m {' '.join(typed.values)}"
        else:
            if line.starts and not word:
                raise SpecError("'': an empty word before the program's own: is a variable not set?")
            own.append(Typed("", (word,)))
            target = target or word
            if line.starts and not program and word not in line.models:
                _refuse_python(line, end - len(front) - 1)
                program = word
    _refuse_two_numbers(own)
    return Words(tuple(own), tuple(line.words[end + 1 :] if marked else front), target)


def _take_option(word: str, front: list[str], program: str, line: Line) -> Typed | None:
    """Return the option of unilaunch that *word* means, with its values, which are removed from *front*; or None.

    Raises:
        SpecError: There is no such option, or another way to say it. If *program* is not empty, it stands before
            *word*, and `--` behind it.
    """
    name, value = _name_and_value(word, line)
    habit = line.meaning(name)
    if not habit:
        behind = f"; what stands in front of -- is unilaunch's: type {program} -- {word} ..." if program else ""
        raise SpecError(f"{word}: {_unknown(word, line)}{behind}")
    if value is not None and not (habit.takes or isinstance(habit, Instead)):
        raise SpecError(f"{name}={value}: this option takes no value: type {name}, or leave it out")
    values = tuple(front[: habit.takes]) if value is None else (value,)
    if value is None:
        del front[: habit.takes]
    return _translate(name, habit, values)


def _translate(name: str, habit: Habit, values: tuple[str, ...]) -> Typed | None:
    """Return the option of unilaunch with the same meaning; None if none is needed."""
    first = "".join(values[:1])
    match habit:
        case Instead(text):
            raise SpecError(f"{name}: {text}")
        case Needless(_, allowed, instead):
            if allowed and first not in allowed:
                raise SpecError(f"{name} {first}: {instead}")
            return None
        case Same(ours, "{}"):
            return Typed(ours, values)
        case Same(ours, text):
            return Typed(ours, (text.replace("{}", first),) if values or "{}" not in text else ())


def _name_and_value(word: str, line: Line) -> tuple[str, str | None]:
    """Return an option's name, and the value that stands in the same word, as in --seed=3 and -n4; or None."""
    if (glued := _GLUED.fullmatch(word)) and word not in line.options:
        name, value = filter(None, glued.groups())
        return name, value
    name, equals, text = word.partition("=")
    return name, text if equals else None


def _unknown(word: str, line: Line) -> str:
    """Return what is wrong with an unknown option: which other command or job file has it, or the nearest one."""
    if line.command == "run" and _is_option(word, _line("launch")):
        launch = shlex.join(["unilaunch", "launch", *line.words])
        return f"run is one rank, which mpirun starts; to start several type {launch}"
    name = "--" + word.partition("=")[0].lstrip("-").replace("_", "-")
    field = name.removeprefix("--no-").removeprefix("--").replace("-", "_")
    forms = plugins.make_all(plugins.JOB_FILES) if line.command == "launch" else {}
    if takers := [kind for kind, form in forms.items() if field in form.options.model_fields]:
        return f"only --emit {' or '.join(takers)} takes it"
    own = [each for each, same in line.options.items() if isinstance(same, Same) and same.option == each]
    return f"no such option{nearest(name, [each for each in own if each.startswith('--')])}"


def _is_option(word: str, line: Line) -> bool:
    """Return whether *word* is an option of the command, in any spelling."""
    return word.startswith("-") and isinstance(line.meaning(_name_and_value(word, line)[0]), Same | Needless)


def _refuse_two_numbers(own: Sequence[Typed]) -> None:
    """Raise an error for two different numbers of ranks."""
    numbers = dict.fromkeys(number for typed in own if typed.name in {"-n", "--nprocs"} for number in typed.values)
    if len(numbers) > 1:
        raise SpecError(f"{' and '.join(numbers)} ranks: give one number, -n")


def _refuse_python(line: Line, at: int) -> None:
    """Raise an error if the program's word is an interpreter, which users of mpirun type before the program."""
    word = line.words[at]
    if _PYTHON.fullmatch(word):
        before, program = [each for each in line.words[:at] if each != "--"], list(line.words[at + 1 :])
        while program and program[0].startswith("-") and program[0] != "-m":  # an option of Python's
            del program[: 2 if program[0] in {"-X", "-W"} else 1]
        shown = shlex.join(["unilaunch", line.command, *before, *program])
        raise SpecError(
            f"{word}: unilaunch starts Python itself: type {shown}; its own options are variables, as PYTHONDEVMODE=1"
        )


def _by_field(command: str, own: Sequence[Typed], parser: Parser) -> dict[str, Any]:
    """Return the values of the options by field, those of a job file under `job_file`.

    Raises:
        SpecError: An option lacks a value or has one that it cannot have, or there is a second target.
    """
    fields = argparse.Namespace()
    for action in parser.options():
        if action.default != argparse.SUPPRESS:
            setattr(fields, action.dest, action.default)
    positional = [action for action in parser.options() if not action.option_strings]
    for typed in own:
        if not (typed.name or positional):
            rule = "there is one TARGET, and every other word" if command in _STARTING else "every word"
            raise SpecError(f"{typed.values[0]!r}: {rule} follows its option")
        action = parser.by_name[typed.name] if typed.name else positional.pop(0)
        action(parser, fields, _values(action, typed.values), typed.name)
    given = vars(fields)
    module = given.pop("module", None)
    if module is not None and "target" in given:
        raise SpecError(f"-m {module} and {given['target']}: there is one TARGET; its arguments stand behind it")
    if module is not None:
        given["target"] = f"-m {module}"
    inside = {name: given.pop(name) for name in list(given) if name.startswith("job_file.")}
    if inside:
        given["job_file"] = {name.partition(".")[2]: value for name, value in inside.items()}
    return given


def _values(action: argparse.Action, values: Sequence[str]) -> Any:
    """Return the values of an option as argparse gives them to its action.

    Raises:
        SpecError: There are too few, or one is none of its choices.
    """
    name = "/".join(action.option_strings)
    if isinstance(action.nargs, int):
        if len(values) < action.nargs:
            raise SpecError(f"{name}: expected {action.nargs} arguments")
        return list(values)
    if not values:
        raise SpecError(f"{name}: expected one argument")
    if action.choices and values[0] not in action.choices:
        raise SpecError(f"{name}: invalid choice: {values[0]!r} (choose from {', '.join(map(repr, action.choices))})")
    return values[0]


def _refuse_of_other_targets(command: str, target: str, given: Mapping[str, Any], mark: str) -> None:
    """Raise an error for options of another model than the target; *mark* is `--` if it was typed.

    Raises:
        SpecError: There is such an option, or the target is not valid.
    """
    if command not in _STARTING or not target:
        return
    fields = {name: set(model.spec.model_fields) for name, model in plugins.models().items()}
    for field in given:
        takers = [name for name in fields if field in fields[name]]
        if takers and target not in takers:
            read_target(target, fields, here=False)
            option = option_of(field)
            behind = "" if target in fields else f"; if {target} takes it, type {target}{mark} {option} ..."
            raise SpecError(f"{option}: an option of {' and '.join(takers)}, not of {target}{behind}")


def _parse_no_command(arguments: Sequence[str], parser: Parser, commands: Mapping[str, Parser]) -> NoReturn:
    """Show the help or the version for a command line without a command, or raise an error.

    Raises:
        SpecError: There is no such command.
        SystemExit: The text was shown.
    """
    first = arguments[0] if arguments else ""
    if first == "help" and arguments[1:]:
        parse([*arguments[1:], "--help"])
    if first in {"", "help", *_HELP}:
        from unilaunch.spec.help import overview

        sys.stdout.write(overview(parser))
        sys.exit(0 if first else SpecError.exit_code)
    if first in {"--version", "-V"}:
        sys.stdout.write(f"unilaunch {__version__}\n")
        sys.exit(0)
    if first.partition("=")[0] == "--print-completion":
        from unilaunch.spec.help import completion

        sys.stdout.write(completion(parser, commands, first.partition("=")[2] or "".join(arguments[1:2]) or "bash"))
        sys.exit(0)
    raise SpecError(_no_command(first, arguments, list(commands)))


def _no_command(first: str, arguments: Sequence[str], commands: Sequence[str]) -> str:
    if first.endswith(".py") or first in plugins.models() or _is_option(first, _line("launch")):
        return f"{first}: a command is missing; type {shlex.join(['unilaunch', 'launch', *arguments])}"
    near = f"; type unilaunch {COMMANDS[first]}" if first in COMMANDS else nearest(first, commands)
    return f"{first}: no such command{near}; there are {', '.join(commands)}"


def _show_help(command: str, found: Words, parser: Parser) -> NoReturn:
    from unilaunch.spec.help import page

    model = plugins.models().get(found.target) if command in _STARTING else None
    sys.stdout.write(page(command, parser, model, whole=found.has("--help-all")))
    sys.exit(0)
