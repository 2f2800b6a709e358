"""The folder of a user's graph: a .npy file for each array, as `unilaunch_graph.data.files` reads it, and names."""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.aside import folder_beside
from unilaunch_graph.data.files import SPLIT, check_arrays

NAMES = "names.json"
_FLOAT32_BYTES = 4
_SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")


class Names(NamedTuple):
    """The names of nodes and classes in the user's data.

    Attributes:
        nodes: Name of each node, in the order of the rows; None: a node's name is its number.
        classes: Name of each class, in the order of their numbers; None: a class's name is its number.
    """

    nodes: Sequence[str | int] | None
    classes: Sequence[str] | None


def read_names(folder: str | PathLike[str]) -> Names:
    """Return the names that a converter wrote into the folder of a graph.

    Args:
        folder: The folder that `from_pyg`, `from_networkx`, `from_scipy` or `from_edges` returned.

    Raises:
        InputError: The file of the names is damaged.
    """
    path = Path(folder) / NAMES
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        return Names(given["nodes"], given["classes"])
    except FileNotFoundError:
        return Names(None, None)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path}: is damaged: {' '.join(str(error).split())}") from error


def write_graph(
    folder: str | PathLike[str], arrays: Mapping[str, Any], nodes: Sequence[str | int] | None = None
) -> Path:
    """Write the folder of a graph, whole or not at all: aside, then renamed.

    Args:
        folder: The path of the new folder; it must not exist.
        arrays: The arrays of `unilaunch_graph.data.files` by name; None stands for one that is not given. *x* may be a
            sparse matrix. *y* may be text: its values in order of the alphabet are the classes.
        nodes: Name of each node; None: its number.

    Returns:
        The folder, for `--dataset` and `load`.

    Raises:
        InputError: The folder exists or cannot be written, or the arrays do not fit together.
    """
    folder = Path(folder).expanduser()
    if folder.exists():
        raise InputError(f"{folder}: exists already: give another folder, or delete it")
    given = {name: on_host(array) for name, array in arrays.items() if array is not None}
    classes = None
    if "y" in given:
        given["y"], classes = _labels(np.asarray(given["y"]))
    if sp.issparse(given.get("x")):
        x = sp.csr_array(given.pop("x"))
        given |= dict(zip(_SPARSE, (x.indptr, x.indices, x.data, np.array(x.shape)), strict=True))
    whole = {name: np.asarray(array) for name, array in given.items()}
    if not {*SPLIT}.isdisjoint(whole) and "y" in whole:
        whole |= {name: np.zeros(len(whole["y"]), bool) for name in SPLIT if name not in whole}
    check_arrays(whole, folder)
    _write(folder, whole, Names(nodes, classes))
    return folder


def on_host(values: Any) -> Any:
    """Return a tensor of torch as an array, or a sparse one as a matrix of SciPy; other values as they are.

    numpy has no bfloat16: such numbers become float32. torch is not imported for it.
    """
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize < _FLOAT32_BYTES:
        tensor = tensor.float()
    if tensor.is_sparse or tensor.is_sparse_csr:
        entries = tensor.to_sparse_coo().coalesce()
        return sp.coo_array((entries.values().numpy(), tuple(entries.indices().numpy())), shape=tuple(tensor.shape))
    return tensor.numpy()


def _labels(y: NDArray[Any]) -> tuple[NDArray[Any], list[str] | None]:
    """Return labels as numbers, and the names of the classes if they were text."""
    if y.dtype.kind == "O" and all(isinstance(value, str) for value in y.flat):
        y = y.astype(str)
    if y.dtype.kind == "U":
        names, numbers = np.unique(y, return_inverse=True)
        return numbers.reshape(y.shape), names.tolist()
    return (y[:, 0] if y.dtype.kind in "iu" and y.ndim == 2 and y.shape[1] == 1 else y), None  # noqa: PLR2004


def _write(folder: Path, arrays: Mapping[str, NDArray[Any]], names: Names) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder_beside(folder) as aside:
            for name, array in arrays.items():
                np.save(aside / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
            if names != (None, None):
                (aside / NAMES).write_text(json.dumps(names._asdict(), ensure_ascii=False), encoding="utf-8")
            aside.rename(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
