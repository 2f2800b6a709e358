"""The folder of a user's graph: a .npy file for each array, as `unilaunch_graph.data.files` reads it, and names."""

import json
import re
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

NAMES = "names.json"
_FLOAT32_BYTES = 4
#: A number as people write it: 7, -1.5, 1,5, 2e-3, 12 %.
NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*%?\s*")
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


def read_names(folder: str | PathLike[str]) -> Names:
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


def write_graph(
    folder: str | PathLike[str], arrays: Mapping[str, Any], nodes: Sequence[str | int] | range | None = None
) -> Path:
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
        given["y"], classes = _labels(as_array("y", _known_texts(given["y"])))
    if sp.issparse(given.get("x")):
        x = sp.csr_array(given.pop("x"))
        given |= dict(zip(_SPARSE, (x.indptr, x.indices, x.data, np.array(x.shape)), strict=True))
    whole = {name: as_array(name, array) for name, array in given.items()}
    if not {*SPLIT}.isdisjoint(whole) and "y" in whole:
        whole |= {name: np.zeros(len(whole["y"]), bool) for name in SPLIT if name not in whole}
    check_arrays(whole, folder)
    if nodes is not None and len(nodes) != len(whole["y"]):
        raise InputError(f"{folder}: {len(nodes)} names of nodes, but y has {len(whole['y'])} rows: name each node")
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


def _known_texts(y: Any) -> Any:
    """Return text labels with "" where one is unknown (None, NaN), of which numpy would make text; others as they are.

    Raises:
        InputError: Some are text, and others numbers.
    """
    is_list = isinstance(y, list | tuple) or str(getattr(y, "dtype", "")) == "object"
    if not is_list or not any(isinstance(label, str) for label in y):
        return y
    texts = ["" if label is None or label != label else label for label in y]  # noqa: PLR0124  (NaN alone is not itself)
    for node, label in enumerate(texts):
        if not isinstance(label, str):
            raise InputError(f"y of node {node} is {label!r}, but other labels are text: give numbers, or text only")
    return texts


def _labels(y: NDArray[Any]) -> tuple[NDArray[Any], list[str] | None]:
    """Return labels as numbers, and the names of the classes if they were text; "" is -1."""
    if y.dtype.kind == "O" and all(isinstance(value, str) for value in y.flat):
        y = y.astype(str)
    if y.dtype.kind == "U":
        _refuse_spoilt_numbers(y)
        names, numbers = np.unique(y, return_inverse=True)
        unknown = int("" in names[:1])  # "" is the first of the alphabet
        return numbers.reshape(y.shape) - unknown, names[unknown:].tolist()
    return (y[:, 0] if y.dtype.kind in "iu" and y.ndim == 2 and y.shape[1] == 1 else y), None  # noqa: PLR2004


def _refuse_spoilt_numbers(y: NDArray[np.str_]) -> None:
    """Raise an error for numbers that are text since some cells are none, or since they have commas.

    Class names that are whole numbers, also beside others (grades 1, 2 and K), are accepted where nodes share them.
    """
    names = [name for name in np.unique(y) if name]
    numbers = [name for name in names if NUMBER.fullmatch(name)]
    others = [name for name in names if name not in numbers]
    fractions = [name for name in numbers if not name.strip().lstrip("+-").isdecimal()]
    if fractions or (numbers and others and 2 * len(names) > y.size):
        wrong, beside = (others or fractions)[0], f", beside numbers such as {numbers[-1]!r}" if others else ", as text"
        raise InputError(
            f"y of node {np.argwhere(y == wrong)[0][0]} is {wrong!r}{beside}: write numbers to predict as 1.5, and "
            "nothing where one is unknown; name classes by words"
        )


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
