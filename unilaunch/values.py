"""Values between a launching process and its ranks: JSON, with arrays and tensors as npy data. Nothing is unpickled."""

import base64
import io
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from unilaunch import plugins
from unilaunch.json_value import JsonValue
from unilaunch.output.files import open_file

#: An object with this name stands for an array: its kind ("array", "scalar", or the backend of a tensor), its type
#: where numpy has none like it, and its npy data: {"file": PATH} or {"base64": TEXT}.
_MARK = "__npy__"

#: For an error about a value that cannot be packed.
SENDABLE = "expected finite numbers, text, lists, dicts, numpy arrays and tensors"

Store = Callable[[Any], dict[str, JsonValue]]


def pack(value: Any, store: Store) -> Any:
    """Return *value* as JSON has it: arrays, numpy scalars and tensors are what *store* makes of them.

    Args:
        value: Any value. What has no place in JSON stays, and is refused when it is written.
        store: Keeps the data of an array, and returns where it is.

    Raises:
        ValueError: An array cannot be kept without a pickle, or a table has the reserved name.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [pack(one, store) for one in value]
    if isinstance(value, Mapping):
        if _MARK in value:
            raise ValueError(f"the name {_MARK} is reserved")
        return {name: pack(one, store) for name, one in value.items()}
    return _pack_array(value, store)


def unpack(value: Any, folder: Path | None) -> Any:
    """Return the value that was packed.

    Args:
        value: What `pack` returned, as JSON gave it back.
        folder: Where its files are; None if it names them by their whole path.

    Raises:
        OSError: A file is not there.
        ValueError: It holds no array, or one that only a pickle could hold.
        PluginError: The framework of a tensor is not installed here.
    """
    if isinstance(value, list):
        return [unpack(one, folder) for one in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {name: unpack(one, folder) for name, one in value.items()}
    array = _load(value, folder)
    match value[_MARK]:
        case "array":
            return array
        case "scalar":
            return array[()]
        case backend:
            return plugins.load_backend(backend).to_tensor(array, value["type"])


def into_files(folder: Path, name: str, *, absolute: bool = False) -> Store:
    """Return a store that writes each array into a file of its own: FOLDER/NAME.N.npy."""
    count = 0

    def store(array: Any) -> dict[str, JsonValue]:
        nonlocal count
        path = folder / f"{name}.{count}.npy"
        count += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(open_file(path, flags), "wb") as file:
            _numpy().lib.format.write_array(file, array, allow_pickle=False)
        return {"file": str(path) if absolute else path.name}

    return store


def into_text(array: Any) -> dict[str, JsonValue]:
    """Be a store that keeps an array in the JSON itself."""
    file = io.BytesIO()
    _numpy().lib.format.write_array(file, array, allow_pickle=False)
    return {"base64": base64.b64encode(file.getbuffer()).decode()}


def carry_files(value: Any, folder: Path) -> Any:
    """Return a packed value with the data of its files in it, for a host that does not see *folder*."""
    if isinstance(value, list):
        return [carry_files(one, folder) for one in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {name: carry_files(one, folder) for name, one in value.items()}
    data = (folder / value["file"]).read_bytes()
    return {name: one for name, one in value.items() if name != "file"} | {"base64": base64.b64encode(data).decode()}


def _pack_array(value: Any, store: Store) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(value, numpy.ndarray | numpy.generic):
        if hasattr(value, "mask"):
            raise ValueError("a masked array: send value.filled(), or its data and its mask")
        kind = "array" if isinstance(value, numpy.ndarray) else "scalar"
        return {_MARK: kind, **store(numpy.asarray(value))}
    for backend in plugins.backends():
        if backend.framework in sys.modules and (found := backend.to_array(value)):
            return {_MARK: backend.name, "type": found[1], **store(found[0])}
    return value


def _load(value: Mapping[str, Any], folder: Path | None) -> Any:
    if "base64" in value:
        file: Any = io.BytesIO(base64.b64decode(value["base64"]))
        return _numpy().lib.format.read_array(file, allow_pickle=False)
    path = Path(value["file"]) if folder is None else folder / Path(value["file"]).name
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        return _numpy().lib.format.read_array(file, allow_pickle=False)


def _numpy() -> Any:
    """Import numpy: it is there when a value has an array, and the core needs it for nothing else."""
    return import_module("numpy")
