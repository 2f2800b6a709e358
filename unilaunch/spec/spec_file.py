"""Read the fields of a spec from a file."""

import os
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from unilaunch.errors import SpecError, say
from unilaunch.overriding import override

#: A field of `spec.json`: true if secret values of `args` are left out.
LEFT_OUT = "secrets_left_out"
#: A field of `spec.json`: the folder in which the run was started, to which its relative paths are relative.
STARTED_IN = "started_in"
#: Fields of earlier versions, and what became of them.
_GONE = {
    "share_import": "a direct start imports the framework once by itself",
    "output_filename": "the ranks' output is in output_dir",
    "tag_output": "write console: labelled",
    "merge_stderr_to_stdout": "unilaunch logs shows both streams in the order of time",
}
_LARGEST = 1 << 20  # bytes


def read_file(path: Path, given: Container[str] = ()) -> dict[str, Any]:
    """Return the fields that a TOML, YAML or JSON file sets.

    Args:
        path: The file.
        given: The fields that the command line sets.

    Raises:
        SpecError: There is no such file, it cannot be parsed, it is not a table of fields, or values are left out.
    """
    path = Path(os.path.expanduser(path))  # noqa: PTH111  (raises nothing where there is no home)
    try:
        if path.exists() and not path.is_file():
            raise SpecError(f"{path}: cannot be read: it is no file")
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        text = data.decode("utf-8-sig")  # editors on Windows put a byte order mark first
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from error
    if len(data) > _LARGEST:
        raise SpecError(f"{path}: it has more than {_LARGEST >> 20} MiB: expected a file of options")
    fields = _parse(path, text)
    if not isinstance(fields, dict):
        raise SpecError(f"{path}: expected fields (name and value), found {type(fields).__name__}")
    fields.pop(STARTED_IN, None)  # paths of the file are relative to where it is used
    if fields.pop(LEFT_OUT, False) and "args" not in given:
        raise SpecError(
            f"{path}: args: the values of secrets are left out: give the target and all its arguments on the command "
            "line"
        )
    named = [(str(name).replace("-", "_"), value) for name, value in fields.items()]
    for name in [name for name, _ in named if name in _GONE]:
        say(f"{path}: {name} is ignored: {_GONE[name]}")
    named = [(name, value) for name, value in named if name not in _GONE]
    try:
        return _table(named)
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None


def _table(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a table of names and values; raise a ValueError if a name is there twice: one of them would be lost."""
    table = dict(pairs)
    if len(table) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name}: it is there twice")
    return table


def _parse(path: Path, text: str) -> object:
    try:
        match path.suffix:
            case ".toml":
                import tomllib

                return tomllib.loads(text)
            case ".yaml" | ".yml":
                return _parse_yaml(text)
            case ".json":
                import json

                return json.loads(text, object_pairs_hook=_table)
    except Exception as error:  # each library has its own exception; each message names the place
        raise SpecError(f"{path}: {' '.join(str(error).split())}") from error
    raise SpecError(f"{path}: the file's name must end in .toml, .yaml, .yml or .json")


def _parse_yaml(text: str) -> object:
    import yaml

    if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):  # a few lines can expand to gigabytes
        raise ValueError("aliases (*name) are not read: write the value out")

    class Loader(yaml.SafeLoader):
        @override
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            _table([(key.value, value) for key, value in node.value])
            return super().construct_mapping(node, deep)

    return yaml.load(text, Loader)  # noqa: S506  (it is a SafeLoader)
