"""The command line: the options of each command, made from the fields of the specs, and how typed words are read.

Values stay text, by field: the spec checks them later.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from unilaunch.errors import SpecError, nearest
from unilaunch.interfaces import entry_points, plugins
from unilaunch.interfaces.model import Model
from unilaunch.overriding import override
from unilaunch.record import Record, replace
from unilaunch.spec.habits import COMMANDS, LAUNCH, Habit, Instead, Needless, Same
from unilaunch.spec.run_spec import RunSpec, Spec, holds_several, read_several
from unilaunch.spec.target import read_target
from unilaunch.version import __version__

_HELP = ("-h", "--help", "--help-all")
Hint = Callable[[str], str]
#: A function: package.module:function, or FILE.py:function.
_FUNCTION = re.compile(r"[\w./-]+:[A-Za-z_][\w.]*")
#: Commands that start a program.
_STARTING = ("run", "launch")
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
    kinds = entry_points.names(entry_points.JOB_FILES)
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
    if kind not in entry_points.names(entry_points.JOB_FILES):
        return kind, None
    return kind, entry_points.make(entry_points.JOB_FILES, "job file", kind)


def _add_job_file(parser: Parser, words: Sequence[str]) -> None:
    kind, form = job_file_of(words)
    if form:
        _add_options(parser.add_argument_group(f"options of --emit {kind}"), form.options, inside="job_file.")


def add_job_files(parser: Parser) -> None:
    """Add the options of every job file, for completion: a shell's script does not change after `--emit`."""
    for kind, form in entry_points.make_all(entry_points.JOB_FILES, "job file").items():
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


class Grammar(Record):
    """The words that a command accepts.

    Attributes:
        command: The command's name.
        takes: The number of values of each option, by the option with its dashes.
        other_names: Other names of options, without dashes, with unilaunch's names.
        habits: Options of other launchers, without dashes.
        is_program: Returns whether a word that is not an option is a program; None if the command starts no program.
        hint: Returns a hint about an option that the command does not have; "" for none.
    """

    command: str
    takes: Mapping[str, int]
    other_names: Mapping[str, str]
    habits: Mapping[str, Habit]
    is_program: Callable[[str], bool] | None = None
    hint: Callable[[str], str] = lambda _: ""


class Words(Record):
    """A command line, split.

    Attributes:
        own: Options under unilaunch's names, and the target.
        args: The program's arguments.
        target: The first word that is not an option, or `-m MODULE`; "" if there is none.
    """

    own: tuple[str, ...]
    args: tuple[str, ...]
    target: str = ""


class _Option(Record):
    """An option as it was typed.

    Attributes:
        name: Unilaunch's name, or the typed name of another launcher's option.
        value: The value in the same word, as in --seed=3; None if there is none.
        takes: Number of its values.
        habit: Its meaning in unilaunch, if it is an option of another launcher.
    """

    name: str
    value: str | None
    takes: int
    habit: Habit | None = None


def split(words: Sequence[str], grammar: Grammar) -> Words:
    """Return unilaunch's words and the program's.

    All words after a program belong to the program. If there is a `--`, all words before it belong to unilaunch, and
    all words after it to the program.

    Args:
        words: The command line, without the command.
        grammar: The words that the command accepts.

    Raises:
        SpecError: An option is unknown, or must be typed in another way.
    """
    marked = bool(grammar.is_program) and "--" in words
    end = words.index("--") if marked else len(words)
    front = list(words[:end])
    own: list[str] = []
    target = program = ""
    while front and (marked or not program):
        word = front.pop(0)
        if word == "--":  # for a command that starts no program: the words after it are not options
            own += [word, *front]
            front = []
            break
        if not word.startswith("-") or word == "-":
            if grammar.is_program and not word:
                raise SpecError("'': an empty word before the program's own: is a variable not set?")
            own.append(word)
            target = target or word
            if grammar.is_program and not program and grammar.is_program(word):
                refuse_python(word, words[: end - len(front) - 1], words[end - len(front) :], grammar)
                program = word
            continue
        option = _known(word, program, grammar)
        values = _take_values(option, front)
        own += _write(option, values)
        if option.name == "-m" and grammar.is_program:
            target = program = f"-m {' '.join(values)}"
    _refuse_two_numbers(own)
    return Words(tuple(own), tuple(words[end + 1 :] if marked else front), target)


def _take_values(option: _Option, front: list[str]) -> list[str]:
    """Return the values of an option; values in separate words are removed from *front*."""
    if option.value is not None:
        if not (option.takes or isinstance(option.habit, Instead)):
            raise SpecError(
                f"{option.name}={option.value}: this option takes no value: type {option.name}, or leave it out"
            )
        return [option.value]
    values = front[: option.takes]
    del front[: option.takes]
    return values


def _known(word: str, program: str, grammar: Grammar) -> _Option:
    """Return the option that *word* is.

    Raises:
        SpecError: There is no such option. If *program* is not empty, it comes before *word*, and `--` after it.
    """
    if option := _read(word, grammar):
        return option
    behind = f"; what stands in front of -- is unilaunch's: type {program} -- {word} ..." if program else ""
    raise SpecError(f"{word}: {_unknown(word, grammar)}{behind}")


def is_option(word: str, grammar: Grammar) -> bool:
    """Return whether *word* is an option of the command, in any spelling."""
    option = _read(word, grammar) if word.startswith("-") else None
    return option is not None and not isinstance(option.habit, Instead)


def _read(word: str, grammar: Grammar) -> _Option | None:
    """Return the option that *word* is; None if there is none."""
    name, equals, text = word.partition("=")
    value = text if equals else None
    if (glued := _GLUED.fullmatch(word)) and word not in grammar.takes:
        name, value = filter(None, glued.groups())
    key = name.lstrip("-").replace("_", "-")
    other = grammar.other_names.get(key.replace("-", "_"), "").replace("_", "-")
    for option in (name, f"--{key}", f"--{other}"):
        if option in grammar.takes:
            return _Option(option, value, grammar.takes[option])
    habit = grammar.habits.get(key)
    if isinstance(habit, Same) and habit.option not in grammar.takes:
        return None
    return _Option(name, value, habit.takes, habit) if habit else None


def _write(option: _Option, values: Sequence[str]) -> list[str]:
    """Return an option with its values under unilaunch's names, as --name=value if there is one: it may be negative.

    Args:
        option: The option.
        values: Its values.
    """
    name, first = option.name, "".join(values[:1])
    match option.habit:
        case Instead(text):
            raise SpecError(f"{name}: {text}")
        case Needless(_, allowed, instead):
            if allowed and first not in allowed:
                raise SpecError(f"{name} {first}: {instead}")
            return []
        case Same(ours, text):
            return [f"{ours}={text.replace('{}', first)}"] if values or "{}" not in text else [ours]
    if name.startswith("--") and len(values) == 1:
        return [f"{name}={first}"]
    return [name, *(f" {value}" if value.startswith("-") else value for value in values)]  # argparse: not an option


def _refuse_two_numbers(own: Sequence[str]) -> None:
    """Raise an error for two different numbers of ranks."""
    numbers = dict.fromkeys(word.partition("=")[2] for word in own if word.startswith("--nprocs="))
    numbers |= {after: None for word, after in pairwise(own) if word == "-n"}
    if len(numbers) > 1:  # srun's -c is no number of ranks
        raise SpecError(f"{' and '.join(numbers)} ranks: give one number, -n; the threads of each rank are --threads 4")


def refuse_python(word: str, before: Sequence[str], behind: Sequence[str], grammar: Grammar) -> None:
    """Raise an error for an interpreter before the program, which users of mpirun type."""
    if _PYTHON.fullmatch(word):
        variables, program = _without_options(behind)
        line = shlex.join([*variables, "unilaunch", grammar.command, *before, *program])
        raise SpecError(f"{word}: unilaunch starts Python itself: type {line}")


def _without_options(words: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """Return the variables that stand for an interpreter's options, and the words that follow these options."""
    variables: list[str] = []
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        name, value = (before, word) if before in {"-X", "-W"} else (word[:2], word[2:])
        if not (before in {"-X", "-W"} or word.startswith("-")) or name == "-m":
            return variables, words[at:]
        match name, value:
            case "-X", "dev":
                variables.append("PYTHONDEVMODE=1")
            case "-W", str(value) if value:
                variables.append(f"PYTHONWARNINGS={value}")
            case "-O", _:
                variables.append(f"PYTHONOPTIMIZE={len(word) - 1}")
            case _:
                pass
    return variables, ()


def _unknown(word: str, grammar: Grammar) -> str:
    if hint := grammar.hint(word):
        return hint
    name = "--" + word.partition("=")[0].lstrip("-").replace("_", "-")
    return f"no such option{nearest(name, [option for option in grammar.takes if option.startswith('--')])}"


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the given values as text, by field, and the command under "command".

    Raises:
        SpecError: The command line cannot be parsed, or has an unknown option.
        SystemExit: The help or the version was requested, and has been shown.
    """
    command, *words = arguments or [""]
    parser, commands = make_parser(command, words)
    if command not in commands:
        return _parse_no_command(arguments, parser, commands)
    found = _split(command, words, commands[command])
    if set(_HELP) & set(found.own):
        _show_help(command, found, commands[command])
    namespace, unknown = parser.parse_known_args([command, *found.own])
    if unknown:
        rule = "there is one TARGET, and every other word" if command in _STARTING else "every word"
        raise SpecError(f"{unknown[0]!r}: {rule} follows its option")
    given = vars(namespace)
    if found.args:
        given["args"] = found.args
    _refuse_of_other_targets(command, found.target, given, " --" if "--" in words else "")
    return _fold(given)


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether the help of the command is requested, and not that of the program that it starts."""
    command, *words = arguments
    if not set(_HELP) & set(words):
        return False
    _, commands = make_parser(command, words)
    return bool(set(_HELP) & set(_split(command, words, commands[command]).own))


def own_options(command: str, words: Sequence[str]) -> list[str]:
    """Return the arguments of a program that are also options of *command*."""
    grammar = _grammar(command, (), make_parser(command)[1][command])
    of_models = {
        f"--{field.replace('_', '-')}" for model in plugins.models().values() for field in model.spec.model_fields
    }
    own = replace(
        grammar,
        takes={name: grammar.takes[name] for name in set(grammar.takes) - of_models},
        other_names={},
        habits={name: habit for name, habit in LAUNCH.items() if isinstance(habit, Same)},
    )
    return [word.partition("=")[0] for word in words if word not in _HELP and is_option(word, own)]


def _split(command: str, words: Sequence[str], parser: Parser) -> Words:
    """Return unilaunch's words and the program's; the program may follow `--` if there is none before it."""
    grammar = _grammar(command, words, parser)
    found = split(words, grammar)
    if not found.args or found.target or {"--config", "--spec"} & {word.partition("=")[0] for word in found.own}:
        return found
    first, *args = found.args
    refuse_python(first, words[: words.index("--")], args, grammar)
    if first == "-m" and args:
        return replace(found, own=(*found.own, *found.args[:2]), args=found.args[2:], target=f"-m {args[0]}")
    is_program = first.endswith(".py") or _FUNCTION.fullmatch(first)
    return replace(found, own=(*found.own, first), args=tuple(args), target=first) if is_program else found


def _grammar(command: str, words: Sequence[str], parser: Parser) -> Grammar:
    """Return the grammar of *command*, which *words* follow."""
    starts = command in _STARTING
    models = plugins.models() if starts else {}
    others = () if starts or command in CORE else (plugins.commands()[command],)
    _, form = job_file_of(words if command == "launch" else ())
    hints: dict[str, Hint] = {"launch": _hint_at_job_file, "run": partial(_hint_at_launch, words)}
    return Grammar(
        command=command,
        takes={  # what a word means in a job file wins
            name: number for name, number in parser.takes().items() if not form or name.lstrip("-") not in form.habits
        },
        other_names={
            name: field for each in (*models.values(), *others) for name, field in each.spec.other_names.items()
        },
        habits=_habits(command, words),
        is_program=(lambda word: word not in models) if starts else None,
        hint=hints.get(command, lambda _: ""),
    )


def _habits(command: str, words: Sequence[str]) -> Mapping[str, Habit]:
    """Return the options of other launchers that *command* takes; a job file has its engine's own."""
    if command not in {"launch", "doctor"}:
        return {}
    _, form = job_file_of(words if command == "launch" else ())
    return {**LAUNCH, **(form.habits if form else {})}


def _hint_at_job_file(word: str) -> str:
    """Return which job files have an option of this name."""
    field = word.partition("=")[0].removeprefix("--no-").lstrip("-").replace("-", "_")
    forms = entry_points.make_all(entry_points.JOB_FILES, "job file")
    takers = [name for name, form in forms.items() if field in form.options.model_fields]
    return f"only --emit {' or '.join(takers)} takes it" if takers else ""


def _hint_at_launch(words: Sequence[str], word: str) -> str:
    """Return the command line with `launch`, if `launch` has the option and `run` does not."""
    if not is_option(word, _grammar("launch", (), make_parser("launch")[1]["launch"])):
        return ""
    return f"run is one rank, which mpirun starts; to start several type {shlex.join(['unilaunch', 'launch', *words])}"


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
            option = f"--{field.replace('_', '-')}"
            behind = "" if target in fields else f"; if {target} takes it, type {target}{mark} {option} ..."
            raise SpecError(f"{option}: an option of {' and '.join(takers)}, not of {target}{behind}")


def _fold(given: dict[str, Any]) -> dict[str, Any]:
    """Put `-m NAME` into the target, and a job file's options into `job_file`."""
    module = given.pop("module", None)
    if module is not None and "target" in given:
        raise SpecError(f"-m {module} and {given['target']}: there is one TARGET; its arguments stand behind it")
    if module is not None:
        given["target"] = f"-m {module}"
    inside = {name: given.pop(name) for name in list(given) if name.startswith("job_file.")}
    if inside:
        given["job_file"] = {name.partition(".")[2]: value for name, value in inside.items()}
    return given


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
    launch = make_parser("launch")[1]["launch"]
    if first.endswith(".py") or first in plugins.models() or is_option(first, _grammar("launch", (), launch)):
        return f"{first}: a command is missing; type {shlex.join(['unilaunch', 'launch', *arguments])}"
    near = f"; type unilaunch {COMMANDS[first]}" if first in COMMANDS else nearest(first, commands)
    return f"{first}: no such command{near}; there are {', '.join(commands)}"


def _show_help(command: str, found: Words, parser: Parser) -> NoReturn:
    from unilaunch.spec.help import page

    model = plugins.models().get(found.target) if command in _STARTING else None
    sys.stdout.write(page(command, parser, model, whole="--help-all" in found.own))
    sys.exit(0)
