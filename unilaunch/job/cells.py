"""A function of a notebook: the imports, definitions and constants of the cells that it needs."""

import ast
import symtable
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from unilaunch.errors import SpecError
from unilaunch.record import Record

#: Expressions that may have any effect, or take long.
_ACTIONS = (ast.Call, ast.Await, ast.NamedExpr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


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
