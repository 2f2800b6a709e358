"""Check with pyright that every public name has a type that every type checker sees alike.

`pyright --verifytypes` looks at all modules of a package. docs/stability.md calls fewer things public: the names in
`__all__`, and their members. Without unilaunch_graph.mindspore, since MindSpore ships no type information.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

#: The packages with public names, by the package that pyright is asked for.
PACKAGES = {"unilaunch": ("unilaunch",), "unilaunch_graph": ("unilaunch_graph", "unilaunch_graph.torch")}


def symbols_of(package: str) -> list[dict[str, Any]]:
    """Return what pyright knows of each symbol in the modules of *package*."""
    command = ["pyright", "--ignoreexternal", "--outputjson", "--verifytypes", package]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    symbols: list[dict[str, Any]] = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    return symbols


def public_names(module: str) -> set[str]:
    """Return the full names of what *module* exports: in the modules where they are defined."""
    exported = (getattr(import_module(module), name) for name in import_module(module).__all__)
    return {f"{one.__module__}.{one.__qualname__}" for one in exported if hasattr(one, "__qualname__")}


def faults(package: str) -> Iterator[str]:
    """Give one line for each public symbol whose type is unknown, or could be inferred in several ways."""
    names = set().union(*map(public_names, PACKAGES[package]))
    public = [one for one in symbols_of(package) if any(f"{one['name']}.".startswith(f"{name}.") for name in names)]
    if len(public) < len(names):
        yield f"{package}: pyright knows {len(public)} symbols of {len(names)} public names"
    for symbol in public:
        if symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]:
            reasons = [one["message"].split("\n")[0] for one in symbol["diagnostics"]]
            yield f"{symbol['name']}: {'; '.join(reasons) or 'see its members'}"
    print(f"{package}: the types of {len(public)} public symbols, checked by pyright")  # noqa: T201


if __name__ == "__main__":
    found = [fault for package in PACKAGES for fault in faults(package)]
    sys.exit("\n".join(found) or 0)
