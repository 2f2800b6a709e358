"""The folder of a user's graph: a .npy file for each array, as `unilaunch_graph.data.files` reads it, and names."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.aside import folder_beside
from unilaunch_graph.data.files import EDGE_VALUES, SPLIT, check_arrays
from unilaunch_graph.data.text_labels import known_texts, numbered

Folder = str | PathLike[str]
NAMES = "names.json"
_FLOAT32_BYTES = 4
_SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")
_VALUES = frozenset({"x", "x_data", *EDGE_VALUES})  # that are read as float32


class Names(NamedTuple):
    """The names of nodes and classes in the user's data.

    Attributes:
        nodes: Name of each node, in the order of the rows; None: a node's name is its number.
        classes: Name of each class, in the order of their numbers; None: a class's name is its number.
    """

    nodes: Sequence[str | int] | None
    classes: Sequence[str] | None


def read_names(folder: Folder) -> Names:
    """Return the names that a converter wrote into the folder of a graph.

    Args:
        folder: The folder that `from_pyg`, `from_networkx`, `from_scipy` or `from_edges` returned.

    Raises:
        InputError: There is no such folder, or the file of the names is damaged.
    """
    path = Path(folder) / NAMES
    try:
        path = path.expanduser()
        given = json.loads(path.read_text(encoding="utf-8"))
        return Names(given["nodes"], given["classes"])
    except FileNotFoundError:
        if path.parent.is_dir():
            return Names(None, None)
        raise InputError(f"{path.parent}: no such folder: expected one that a converter returned") from None
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise InputError(f"{path}: is damaged: {' '.join(str(error).split())}") from error


def write_graph(folder: Folder, arrays: Mapping[str, Any], nodes: Sequence[str | int] | range | None = None) -> Path:
    """Write the folder of a graph, whole or not at all: aside, then renamed.

    Args:
        folder: The path of the new folder; it must not exist.
        arrays: The arrays of `unilaunch_graph.data.files` by name; None stands for one that is not given. *x* may be a
            sparse matrix. *y* may be text: its values in order of the alphabet are the classes, "" is none.
        nodes: Name of each node; None, or a range for their number to be checked: its number.

    Returns:
        The folder, for `--dataset` and `load`.

    Raises:
        InputError: The folder exists or cannot be written, or the arrays do not fit together.
    """
    folder = Path(folder)
    with _writing(folder):
        folder = folder.expanduser()
        if folder.exists():
            raise InputError(f"{folder}: exists already: give another folder, or delete it")
    given = {name: on_host(array) for name, array in arrays.items() if array is not None}
    classes = None
    if "y" in given:
        given["y"], classes = numbered(as_array("y", known_texts(given["y"])))
    if sp.issparse(given.get("x")):
        x = sp.csr_array(given.pop("x"))
        given |= dict(zip(_SPARSE, (x.indptr, x.indices, x.data, np.array(x.shape)), strict=True))
    whole = {name: as_array(name, array) for name, array in given.items()}
    if masks := [whole[name] for name in SPLIT if name in whole]:
        empty = np.zeros(whole.get("y", masks[0]).shape[:1], bool)
        whole |= {name: empty for name in SPLIT if name not in whole}
    num_nodes = check_arrays(whole, folder)
    if nodes is not None and len(nodes) != num_nodes:
        rows = f"{'y' if 'y' in whole else 'x'} has {num_nodes} rows"
        raise InputError(f"{folder}: {len(nodes)} names of nodes, but {rows}: name each node")
    with _writing(folder):
        _write(folder, whole, Names(None if isinstance(nodes, range) else nodes, classes))
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
    if "sparse" in str(tensor.layout):
        entries = tensor.to_sparse_coo().coalesce()
        return sp.coo_array((entries.values().numpy(), tuple(entries.indices().numpy())), shape=tuple(tensor.shape))
    return tensor.numpy()


def as_array(name: str, values: Any) -> NDArray[Any]:
    """Return values or a tensor as an array on the host.

    Raises:
        InputError: They are none, for instance rows of several lengths, or some are masked: numpy would take what is
            under the mask.
    """
    if isinstance(values, np.ma.MaskedArray) and values.mask.any():
        raise InputError(f"{name} has masked values: fill them: array.filled(value)")
    try:
        return np.asarray(on_host(values))
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{name} is no array: expected rows of one length: {' '.join(str(error).split())}") from None


def _write(folder: Path, arrays: Mapping[str, NDArray[Any]], names: Names) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_beside(folder) as aside:
        for name, array in arrays.items():
            is_wide = array.dtype.itemsize > _FLOAT32_BYTES and (name in _VALUES or array.dtype.kind == "f")
            narrow = np.ascontiguousarray(array, np.float32 if is_wide else None)
            np.save(aside / f"{name}.npy", narrow, allow_pickle=False)
        if names != (None, None):
            (aside / NAMES).write_text(json.dumps(names._asdict()), encoding="utf-8")
        aside.rename(folder)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # a folder that may not be entered; the home of nobody
        raise InputError(f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
