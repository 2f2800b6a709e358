"""A function object and its arguments, for the ranks.

They find the function by its module, by its source file, or by the cells of a notebook. The arguments are words of
their command line; large arrays are in files.
"""

import ast
import inspect
import json
import symtable
import sys
import sysconfig
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from types import ModuleType
from typing import Any, Literal, Self

from unilaunch.errors import OutputError, SpecError, nearest, one_line
from unilaunch.folder.values import SENDABLE, Store, into_files, into_text, pack
from unilaunch.json_value import JsonValue
from unilaunch.record import Record
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.mpi_programs import imported
from unilaunch.spec.reading import named_word
from unilaunch.spec.target import Target

#: Most characters of a notebook's source: it is passed in one environment variable, which can hold 128 KiB.
_LARGEST_SOURCE = 60_000
#: Options of the command line that have no field of their name.
_SHORT = {"n": "nprocs", "np": "nprocs"}
_STANDARD = sysconfig.get_path("stdlib")  # modules in C are in a folder below it
_OF_ANY_NUMBER = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
#: Expressions that may have any effect, or take long.
_ACTIONS = (ast.Call, ast.Await, ast.NamedExpr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: Most bytes of a word: Linux allows 128 KiB for one word of a command line.
_LARGEST = 120_000
#: Most bytes of arrays that are written into a word; larger arrays are written to files.
_INLINE = 48_000
#: The same for all words together: Linux allows 2 MiB for a command line with its environment.
_INLINE_TOGETHER = 480_000


class Found(Record):
    """How ranks find a function.

    Attributes:
        target: The target that the ranks run.
        roots: The folders in which they must look for modules that not every Python finds.
        note: A note for the user; "" for none.
    """

    target: Target
    roots: tuple[Path, ...] = ()
    note: str = ""


class Arguments(Record):
    """The arguments of a function, as Python values.

    Attributes:
        words: Arguments from a spec, as text.
        positional: Arguments by position.
        named: Arguments by name.
    """

    words: tuple[str, ...]
    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    @classmethod
    def among(cls, values: dict[str, Any], words: tuple[str, ...]) -> Self:
        """Remove the arguments from the values of a call: `args`, `options`, and names that LaunchSpec does not have.

        Raises:
            SpecError: They are not valid arguments, or one is given twice.
        """
        named = {name: values.pop(name) for name in list(values) if name not in LaunchSpec.model_fields}
        options, args = values.pop("options", {}), values.pop("args", ())
        if not isinstance(options, Mapping):
            raise SpecError(f'options: must be a dict by name, as {{"lr": 0.1}}, not {options!r}')
        named |= options
        if isinstance(args, Mapping):
            if wrong := [name for name in args if not isinstance(name, str)]:
                raise SpecError(f"args: the name of an argument must be text, not {wrong[0]!r}")
            if twice := sorted(set(args) & set(named)):
                raise SpecError(f"{twice[0]}: it is given twice, in args and beside it")
            return cls(words, (), {**args, **named})
        if isinstance(args, str) or not isinstance(args, Sequence):
            raise SpecError(f'args: must be a list of arguments, or a dict by name, as {{"lr": 0.1}}, not {args!r}')
        return cls(words, tuple(args), named)


def find_function(function: Callable[..., Any]) -> Found:
    """Return how ranks find *function*.

    Raises:
        SpecError: The ranks cannot find it.
    """
    name, module = _name(function)
    main = sys.modules["__main__"]
    if module is not main:
        if (file := getattr(module, "__file__", None)) and not _is_named_as(file, module):
            raise SpecError(
                f"{module.__name__} was loaded from {file}: ranks find a module by its name: import it by that"
            )
        return Found(Target("function", f"{module.__name__}:{name}"), _roots(module))
    spec = getattr(main, "__spec__", None)  # python -m pdb deletes it
    if spec and spec.name != "__main__":  # python -m package.module; not python FOLDER
        return Found(Target("function", f"{spec.name}:{name}"), _roots(main))
    if (file := getattr(main, "__file__", None)) and Path(file).is_file():
        if not file.endswith(".py"):
            raise SpecError(f"{name} is in {file}: ranks load a file whose name ends in .py: rename it")
        return Found(Target("function", f"{Path(file).absolute()}:{name}"))
    if cells := main.__dict__.get("In"):  # IPython's, of a notebook
        source, chosen = select(name.partition(".")[0], cells, main.__dict__)
        if len(source) > _LARGEST_SOURCE:
            raise SpecError(f"{name}: the cells that it uses have {len(source) / 1e3:.0f} kB: write a module")
        numbers = f"cell{'s' * (len(chosen) > 1)} {', '.join(map(str, chosen))}"
        # A package may be a folder without __init__.py: what is imported from it has a file, and the package has none.
        loaded = [sys.modules[one] for one in imported(source) if one in sys.modules]
        note = f"{name} is of a notebook: the ranks run what it uses of {numbers}: imports, definitions and constants"
        return Found(Target("function", f"<{numbers}>:{name}", source), _roots(*loaded), note)
    raise SpecError(f"{name}: its source is in no file: write it into a module, or into a script that calls launch")


def check_options(function: Callable[..., Any], options: Mapping[str, Any], given: Arguments) -> None:
    """Raise an error for arguments that do not fit the function, and for options that may be meant as its arguments.

    Args:
        function: The function.
        options: All options of the caller.
        given: The part of them that is passed to the function.

    Raises:
        SpecError: The arguments do not fit.
    """
    name = function.__qualname__
    if inspect.iscoroutinefunction(function):
        raise SpecError(f"{name}: an async function: launch one that calls asyncio.run({name}(...))")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function in C has no signature
        return
    parameters = [one.name for one in signature.parameters.values() if one.kind not in _OF_ANY_NUMBER]
    both = [option for option in options if option in {"check", *LaunchSpec.model_fields} and option in parameters]
    if both and not isinstance(options.get("args"), Mapping):
        raise SpecError(
            f"{both[0]}: an option of launch, and a parameter of {name}: give {name} its arguments as "
            f"args={{{both[0]!r}: ...}}"
        )
    try:
        signature.bind(*given.positional, **given.named)
    except TypeError as error:
        with suppress(TypeError):  # what is missing may be an argument that a decorator supplies
            signature.bind_partial(*given.positional, **given.named)
            inspect.signature(function, follow_wrapped=False).bind(*given.positional, **given.named)
            return
        unknown = [_SHORT.get(name, name) for name in given.named if name not in signature.parameters]
        hint = nearest(unknown[0], [*LaunchSpec.model_fields, *signature.parameters]) if unknown else ""
        raise SpecError(f"{name}(): {error}{hint}") from None


def _name(function: Callable[..., Any]) -> tuple[str, ModuleType]:
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not name or module is None or found is not function:
        raise SpecError(
            f"{name or function!r}: ranks cannot find it by this name: launch a function that stands at the top level "
            "of a module or a script (no lambda, partial, bound method or inner function)"
        )
    return name, module


def _roots(*modules: ModuleType) -> tuple[Path, ...]:
    """Return the folders from which modules were imported, but those of the standard library and installed packages."""
    found = [path for module in modules if (path := _root(module))]
    return tuple(dict.fromkeys(found))


def _root(module: ModuleType) -> Path | None:
    if not (file := getattr(module, "__file__", None)) or not _is_named_as(file, module):
        return None
    path = Path(file).absolute()
    root = path.parents[_full_name(module).count(".") + (path.stem == "__init__")]
    return None if root.name in {"site-packages", "dist-packages"} or root.is_relative_to(_STANDARD) else root


def _is_named_as(file: str, module: ModuleType) -> bool:
    path = Path(file).absolute()
    own = path.parent if path.stem == "__init__" else path.parent / path.name.partition(".")[0]
    return own.match(_full_name(module).replace(".", "/"))


def _full_name(module: ModuleType) -> str:
    return module.__spec__.name if module.__spec__ else module.__name__


class _Statement(Record):
    """A statement at the top level of a cell.

    Attributes:
        cell: The cell's number.
        text: Its source.
        kind: What it is; a rank may run all but the other statements.
        binds: The names that it sets.
        reads: The global names that it reads when it runs.
        uses: The global names that the functions in it read when they are called.
        changes: The names of what it changes a part of.
    """

    cell: int
    text: str
    kind: Literal["import", "definition", "constant", "other"]
    binds: frozenset[str]
    reads: frozenset[str]
    uses: frozenset[str]
    changes: frozenset[str]


def select(function: str, cells: Sequence[str], held: Mapping[str, Any]) -> tuple[str, list[int]]:
    """Return the source of the statements that *function* needs, in the order in which they were run, and their cells.

    Args:
        function: Its name.
        cells: The source of each cell that was run, by its number (0 is none), as IPython's `In` has it.
        held: The notebook's names, and what they are now.

    Raises:
        SpecError: The function reads a name that a cell has computed, or changed since; or no cell defines it.
    """
    statements = [one for number, text in enumerate(cells) for one in _statements(number, text)]
    chosen = {index for index, one in enumerate(statements) if one.text.endswith("import *")}  # it can set any name
    end = len(statements)
    wanted = [(function, end)]  # names, and the statement before which they must be set
    seen = set(wanted)
    while wanted:
        name, before = wanted.pop()
        setters = [index for index, one in enumerate(statements[:before]) if name in one.binds]
        if not setters and name == function:
            raise SpecError(
                f"{function}: no cell defines it by itself: take %%time or %run off that cell, or write a module"
            )
        if not setters:
            continue  # a builtin, or an error that Python itself will report
        last = statements[setters[-1]]
        _check_part(function, name, last, statements[setters[-1] + 1 : before])
        # `import xml.dom` sets xml, and leaves what an earlier `import xml.sax` has loaded.
        chosen |= {setters[-1], *(index for index in setters if statements[index].text.startswith(f"import {name}."))}
        new = {(one, setters[-1]) for one in last.reads} | {(one, end) for one in last.uses}
        wanted += new - seen
        seen |= new
    needed = [statements[index] for index in sorted(chosen)]
    _compare(function, needed, held, {name for name, _ in seen})
    return "\n".join(one.text for one in needed), list(dict.fromkeys(one.cell for one in needed))


def _check_part(function: str, name: str, last: _Statement, later: Sequence[_Statement]) -> None:
    """Raise an error if the statement that sets a name computes it, or if a later one changes a part of it."""
    changed = [] if last.kind == "import" else [one for one in later if name in one.changes]
    if changed:
        raise _refusal(function, name, f"which cell {changed[-1].cell} changes")
    if last.kind == "other":
        raise _refusal(function, name, f"which cell {last.cell} computes")


def _compare(function: str, needed: Sequence[_Statement], held: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise an error if the constants that the ranks will compute are not the notebook's.

    A call can have changed them, and a cell that ended with an error may not have set them.
    """
    found = dict(held)
    setters: dict[str, _Statement] = {}
    for one in needed:
        if one.kind == "constant":
            with suppress(Exception):  # what it reads has been deleted; what it should set keeps its value
                exec(one.text, found)  # noqa: S102  (it has no call; the notebook has run it)
        else:
            found |= {name: held[name] for name in one.binds & held.keys()}
        setters |= dict.fromkeys(one.binds, one)
    for name in setters.keys() & names:
        if setters[name].kind == "constant" and not _is_same(found.get(name), held.get(name)):
            raise _refusal(function, name, f"which is no longer what cell {setters[name].cell} says")


def _is_same(said: Any, now: Any) -> bool:
    try:
        return said is now or (type(said) is type(now) and bool(said == now))
    except Exception:  # noqa: BLE001  (arrays in a list, or an object with any `__eq__`)
        return False


def _refusal(function: str, name: str, why: str) -> SpecError:
    return SpecError(
        f"{function} uses {name}, {why}: pass it as an argument ({name}={name}), or compute it inside {function}; "
        "ranks get imports, definitions and constants"
    )


def _statements(cell: int, text: str) -> list[_Statement]:
    """Return the statements of a cell; none for a cell that Python cannot parse, and so did not run."""
    try:
        body = ast.parse(text).body
        return [_describe(cell, ast.unparse(node), node) for node in body]
    except SyntaxError:
        return []


def _describe(cell: int, text: str, node: ast.stmt) -> _Statement:
    table = symtable.symtable(text, "cell", "exec")
    binds = {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}
    if isinstance(node, ast.AnnAssign) and not node.value:
        binds.clear()
    kind = _kind(node)
    changes = frozenset() if kind == "definition" else frozenset(filter(None, map(_changed, ast.walk(node))))
    reads, uses = _globals(table)
    kind = "other" if kind == "constant" and changes else kind
    return _Statement(cell, text, kind, frozenset(binds), frozenset(reads), frozenset(uses), changes)


def _kind(node: ast.stmt) -> Literal["import", "definition", "constant", "other"]:
    match node:
        case ast.Import() | ast.ImportFrom():
            return "import"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return "definition"
        case ast.Assign() | ast.AnnAssign():
            parts = list(ast.walk(node))
            if any(isinstance(part, _ACTIONS) for part in parts):
                return "other"
            return "definition" if any(isinstance(part, ast.Lambda) for part in parts) else "constant"
    return "other"


def _changed(node: ast.AST) -> str:
    """Return the name of what a node changes a part of, as `name.a["b"] = 1` and `del name[0]` do; "" for none."""
    if not isinstance(node, ast.Subscript | ast.Attribute) or isinstance(node.ctx, ast.Load):
        return ""
    whole: ast.AST = node
    while isinstance(whole, ast.Subscript | ast.Attribute):
        whole = whole.value
    return whole.id if isinstance(whole, ast.Name) else ""


def _globals(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """Return the global names that a block reads when it runs, and those that the functions in it read later."""
    kind = str(table.get_type())
    names = {
        one.get_name() for one in table.get_symbols() if one.is_referenced() and (kind == "module" or one.is_global())
    }
    inner = [_globals(child) for child in table.get_children()]
    now, later = names.union(*(one[0] for one in inner)), set[str]().union(*(one[1] for one in inner))
    return (set(), now | later) if kind == "function" else (now, later)


def words(arguments: Arguments, folder: Path, function: str) -> tuple[str, ...]:
    """Return the words from which `unilaunch.rank.program.read_arguments` reads the arguments.

    Args:
        arguments: The arguments.
        folder: The folder for larger arrays.
        function: The function's name, for an error.

    Raises:
        SpecError: One of them cannot be sent.
    """
    store = _store(folder)
    positional = [
        _word(value, store(), f"{function}: argument {at}") for at, value in enumerate(arguments.positional, 1)
    ]
    named = [named_word(name, _word(value, store(), f"{function}: {name}")) for name, value in arguments.named.items()]
    return (*arguments.words, *positional, *named)


def _store(folder: Path) -> Callable[[], Store]:
    """Return what makes the store of each word: small arrays are written into the word, as long as there is room."""
    into_file = into_files(folder, "argument", absolute=True)
    together = _INLINE_TOGETHER

    def of_word() -> Store:
        left = _INLINE

        def store(array: Any) -> dict[str, JsonValue]:
            nonlocal left, together
            if array.nbytes > min(left, together):
                return into_file(array)
            left, together = left - array.nbytes, together - array.nbytes
            return into_text(array)

        return store

    return of_word


def _word(value: Any, store: Store, where: str) -> str:
    try:
        text = json.dumps(pack(value, store), allow_nan=False)
    except OSError as error:
        raise OutputError(f"{where} cannot be written to {error.filename or gettempdir()} ({error.strerror})") from None
    except (TypeError, ValueError, RecursionError, RuntimeError) as error:  # RuntimeError: torch's, of meta tensors
        raise SpecError(f"{where} cannot be sent to the ranks ({one_line(str(error))}): {SENDABLE}") from None
    if len(text) > _LARGEST:
        raise SpecError(
            f"{where} is {len(text) / 1e3:.0f} kB of JSON: at most {_LARGEST // 1000} kB can be sent; pass a numpy "
            "array, or the path of a file"
        )
    return text
