"""Split the words of a command line into options of unilaunch and words of the program."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from unilaunch.errors import SpecError, nearest
from unilaunch.record import Record
from unilaunch.spec.habits import Habit, Instead, Needless, Same

_GLUED = re.compile(r"(-n|-np|-c)(\d+)|(-x)([A-Za-z_]\w*=.*)|(-H)([^=].*)", re.DOTALL)
_PYTHON = re.compile(r"(.*/)?python[\d.]*")


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
