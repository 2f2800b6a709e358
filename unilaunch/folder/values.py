"""Values between a launching process and its ranks: JSON, with arrays and tensors as npy data. Nothing is unpickled."""

import base64
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from errno import ENOSPC
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

from unilaunch.folder.files import open_file
from unilaunch.interfaces import plugins
from unilaunch.json_value import JsonValue

#: An object with this name represents an array: its kind ("array", "scalar", or the backend of a tensor), its type if
#: numpy has no such type, and its npy data: {"file": PATH} or {"base64": TEXT}. Or a number that JSON does not have.
_MARK = "__npy__"

#: For an error about a value that cannot be packed.
SENDABLE = "expected numbers, text, lists, dicts, numpy arrays and tensors"

Store = Callable[[Any], dict[str, JsonValue]]


def pack(value: Any, store: Store) -> Any:
    """Return *value* as JSON; *store* replaces arrays, numpy scalars and tensors.

    Args:
        value: Any value. Other objects that JSON does not have are kept; writing the JSON then raises an error.
        store: Stores the data of an array, and returns where they are.

    Raises:
        TypeError: A name in a dict is neither text nor a number.
        ValueError: An array cannot be kept without a pickle, or a dict has the reserved name, or two names that are the
            same text in JSON.
    """
    if isinstance(value, float) and not isfinite(value):
        return {_MARK: "float", "text": repr(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [pack(one, store) for one in value]
    if isinstance(value, Mapping):
        if _MARK in value:
            raise ValueError(f"the name {_MARK} is reserved")
        if len(json.loads(json.dumps(dict.fromkeys(value)))) < len(value):
            raise ValueError("two names in a dict are the same text, such as 1 and '1'")
        return {name: pack(one, store) for name, one in value.items()}
    return _pack_array(value, store)


def unpack(value: Any, folder: Path | None) -> Any:
    """Return the value that was packed.

    Args:
        value: The value from `pack`, after it was read from JSON.
        folder: The folder of its files; None if the value has their absolute paths.

    Raises:
        OSError: A file does not exist.
        ValueError: The data are not an array or a number, or are an array that needs a pickle.
        PluginError: The framework of a tensor is not installed here.
    """
    if isinstance(value, list):
        return [unpack(one, folder) for one in value]
    if not isinstance(value, dict):
        return value
    if _MARK in value:
        return _unpack_marked(value, folder)
    return {name: unpack(one, folder) for name, one in value.items()}


def into_files(folder: Path, name: str, *, absolute: bool = False) -> Store:
    """Return a store that writes each array into a separate file: FOLDER/NAME.N.npy."""
    count = 0

    def store(array: Any) -> dict[str, JsonValue]:
        nonlocal count
        path = folder / f"{name}.{count}.npy"
        count += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            with os.fdopen(open_file(path, flags), "wb") as file:
                _numpy().lib.format.write_array(file, array, allow_pickle=False)
        except OSError as error:  # numpy's own has neither number nor name
            raise OSError(error.errno or ENOSPC, error.strerror or str(error), str(path)) from None
        return {"file": str(path) if absolute else path.name}

    return store


def into_text(array: Any) -> dict[str, JsonValue]:
    """Return an array's data as text, to be kept in the JSON; this function is a store."""
    file = io.BytesIO()
    _numpy().lib.format.write_array(file, array, allow_pickle=False)
    return {"base64": base64.b64encode(file.getbuffer()).decode()}


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


def _unpack_marked(value: Mapping[str, Any], folder: Path | None) -> Any:
    match value[_MARK]:
        case "float":
            return float(value["text"])
        case "array":
            return _load(value, folder)
        case "scalar":
            return _load(value, folder)[()]
        case backend:
            return plugins.load_backend(backend).to_tensor(_load(value, folder), value["type"])


def _load(value: Mapping[str, Any], folder: Path | None) -> Any:
    if "base64" in value:
        file: Any = io.BytesIO(base64.b64decode(value["base64"]))
        return _numpy().lib.format.read_array(file, allow_pickle=False)
    path = Path(value["file"]) if folder is None else folder / Path(value["file"]).name
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        return _numpy().lib.format.read_array(file, allow_pickle=False)


def _numpy() -> Any:
    """Import numpy: it is installed if a value has an array, and the core needs it only here."""
    return import_module("numpy")
