"""A function of a notebook: the imports, definitions and constants of the cells that it needs."""

import ast
import symtable
from collections.abc import Sequence

from unilaunch.errors import SpecError
from unilaunch.record import Record

_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Expressions that may have any effect, or take long.
_ACTIONS = (ast.Call, ast.Await, ast.NamedExpr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: Methods that change a list, a dict or a set.
_CHANGING = {
    "add", "append", "clear", "difference_update", "discard", "extend", "insert", "intersection_update", "pop",
    "popitem", "remove", "reverse", "setdefault", "sort", "symmetric_difference_update", "update",
}  # fmt: skip


class _Statement(Record):
    """A statement at the top level of a cell.

    Attributes:
        cell: The cell's number.
        text: Its source.
        binds: The names that it sets.
        uses: The global names that it reads, inside functions too.
        changes: The names of what it changes a part of.
        can_repeat: A rank may run it: an import, a definition or a constant.
        is_import: It is an import.
    """

    cell: int
    text: str
    binds: frozenset[str]
    uses: frozenset[str]
    changes: frozenset[str]
    can_repeat: bool
    is_import: bool


def select(function: str, cells: Sequence[str]) -> tuple[str, list[int]]:
    """Return the source of the statements that *function* needs, in the order in which they were run, and their cells.

    Args:
        function: Its name.
        cells: The source of each cell that was run, by its number (0 is none), as IPython's `In` has it.

    Raises:
        SpecError: The function reads a name that a cell has computed, or changed since; or no cell defines it.
    """
    statements = [one for number, text in enumerate(cells) for one in _statements(number, text)]
    chosen = {index for index, one in enumerate(statements) if one.text.endswith("import *")}  # it can set any name
    wanted, seen = [function], {function}
    while wanted:
        name = wanted.pop()
        setters = [index for index, one in enumerate(statements) if name in one.binds]
        if not setters and name == function:
            raise SpecError(
                f"{function}: no cell defines it by itself: take %%time or %run off that cell, or write a module"
            )
        if not setters:
            continue  # a builtin, or an error that Python itself will report
        last = statements[setters[-1]]
        changed = [] if last.is_import else [one for one in statements[setters[-1] + 1 :] if name in one.changes]
        if changed or not last.can_repeat:
            cell, does = (changed[-1].cell, "changes") if changed else (last.cell, "computes")
            raise SpecError(
                f"{function} uses {name}, which cell {cell} {does}: pass it as an argument "
                f"({name}={name}), or compute it inside {function}; ranks get imports, definitions and constants"
            )
        chosen.add(setters[-1])
        new = last.uses - seen
        seen |= new
        wanted += new
    needed = [statements[index] for index in sorted(chosen)]
    return "\n".join(one.text for one in needed), list(dict.fromkeys(one.cell for one in needed))


def _statements(cell: int, text: str) -> list[_Statement]:
    """Return the statements of a cell; none for a cell that Python cannot parse, and so did not run."""
    try:
        body = ast.parse(text).body
        return [_describe(cell, ast.unparse(node), node) for node in body]
    except SyntaxError:
        return []


def _describe(cell: int, text: str, node: ast.stmt) -> _Statement:
    table = symtable.symtable(text, "cell", "exec")
    symbols = table.get_symbols()
    binds = {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}
    constant = isinstance(node, ast.Assign | ast.AnnAssign) and not any(isinstance(n, _ACTIONS) for n in ast.walk(node))
    is_definition, is_import = isinstance(node, _DEFINITIONS), isinstance(node, ast.Import | ast.ImportFrom)
    changes = frozenset() if is_definition else frozenset(filter(None, map(_changed, ast.walk(node))))
    uses = frozenset(_globals(table))
    return _Statement(cell, text, frozenset(binds), uses, changes, is_definition or constant, is_import)


def _changed(node: ast.AST) -> str:
    """Return the name of what a node changes a part of, as `name.a["b"] = 1` and `name.append(1)` do; "" for none."""
    whole: ast.AST = node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        whole = node.func.value
    elif not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        return ""
    elif not isinstance(node, ast.Subscript | ast.Attribute):
        return ""  # the whole: it is bound
    while isinstance(whole, ast.Subscript | ast.Attribute):
        whole = whole.value
    return whole.id if isinstance(whole, ast.Name) else ""


def _globals(table: symtable.SymbolTable) -> set[str]:
    """Return the global names that a block and the blocks inside it read."""
    top = table.get_type() == "module"
    names = {one.get_name() for one in table.get_symbols() if one.is_referenced() and (top or one.is_global())}
    return names.union(*map(_globals, table.get_children()))
