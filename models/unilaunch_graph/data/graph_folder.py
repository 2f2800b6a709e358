"""The folder of a user's graph: a .npy file for each array, as `unilaunch_graph.data.files` reads it, and names."""

import filecmp
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.arrays import BFLOAT16, Arrays, widened
from unilaunch_graph.data.files import NUM_NODES, OF_EDGES, OF_NODES, SPLIT, check_arrays, count_nodes
from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.data.labels import is_known, known_texts, numbered, read_labels
from unilaunch_graph.data.split import draw_shares, split_of_nodes
from unilaunch_graph.new_files import folder_beside

Folder = str | PathLike[str]
#: Arrays of the user's, by name.
Further = Mapping[str, Any] | None
#: A split that stands beside the data: the nodes of each use, or shares of all nodes.
Split = Mapping[str, Any] | Sequence[float] | None
NAMES = "names.json"
_SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")
#: What to do with a matrix in place of an array.
_OF_MATRIX = dict.fromkeys(("edges", "edge_index"), "the ends of the edges (2, num_edges); of a matrix: from_scipy")


class Names(NamedTuple):
    """The names of nodes and classes in the user's data.

    Attributes:
        nodes: Name of each node, in the order of the rows; None: a node's name is its number.
        classes: Name of each class, in the order of their numbers; None: a class's name is its number.
    """

    nodes: Sequence[str | int] | None
    classes: Sequence[str] | None


NO_NAMES = Names(None, None)


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
            return NO_NAMES
        raise InputError(f"{path.parent}: no such folder: expected one that a converter returned") from None
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise InputError(f"{path}: is damaged: {' '.join(str(error).split())}") from error


def write_graph(  # noqa: PLR0913  (what the converters share)
    folder: Folder,
    arrays: Mapping[str, Any],
    nodes: Sequence[str | int] | range | None = None,
    *,
    num_nodes: int | None = None,
    node_arrays: Further | Sequence[str] = None,
    edge_arrays: Further | Sequence[str] = None,
    split: Split = None,
    overwrite: bool = False,
) -> Path:
    """Write the folder of a graph, whole or not at all: aside, then renamed.

    Args:
        folder: The path of the new folder.
        arrays: The arrays of `unilaunch_graph.data.files` by name; None stands for one that is not given. *x* may be a
            sparse matrix. *y* may be text: its values in order of the alphabet are the classes, "" is none.
        nodes: Name of each node; None, or a range for their number to be checked: its number.
        num_nodes: Number of nodes, where no array tells it; None: that of *nodes*.
        node_arrays: Further arrays of the nodes by name.
        edge_arrays: Further arrays of the edges by name.
        split: The split, in place of masks.
        overwrite: Replace a folder that holds another graph; one that holds this graph stays in any case.

    Returns:
        The folder, for `--dataset` and `load`.

    Raises:
        InputError: The folder holds something else or cannot be written, or the arrays do not fit together.
    """
    folder = Path(folder)
    with _writing(folder):
        folder = folder.expanduser()
    further = _further(OF_NODES, node_arrays or {}) | _further(OF_EDGES, edge_arrays or {})
    given = {name: on_host(array) for name, array in {**arrays, **further}.items() if array is not None}
    classes = None
    if "y" in given:
        given["y"], classes = numbered(widened(as_array("y", known_texts(given["y"]))))
    if sp.issparse(given.get("x")):
        x = sp.csr_array(given.pop("x"))
        given |= dict(zip(_SPARSE, (x.indptr, x.indices, x.data, np.array(x.shape)), strict=True))
    whole = {name: as_array(name, array) for name, array in given.items()}
    num_nodes = len(nodes) if num_nodes is None and nodes is not None else num_nodes
    if num_nodes is not None and {"x", "x_shape", "y", "indptr"}.isdisjoint(whole):
        whole[NUM_NODES] = np.array(num_nodes)
    if split is not None:
        whole |= _masks(whole, split, folder)
    if masks := [whole[name] for name in SPLIT if name in whole]:
        empty = np.zeros(whole.get("y", masks[0]).shape[:1], bool)
        whole |= {name: empty for name in SPLIT if name not in whole}
    count = check_arrays(whole, folder)
    if nodes is not None and len(nodes) != count:
        rows = f"{'y' if 'y' in whole else 'x'} has {count} rows"
        raise InputError(f"{folder}: {len(nodes)} names of nodes, but {rows}: name each node")
    with _writing(folder):
        _write(folder, whole, Names(None if isinstance(nodes, range) else nodes, classes), overwrite=overwrite)
    return folder


def _refuse_other(folder: Path, *, overwrite: bool) -> None:
    """Raise an error unless *folder* may be replaced: it holds a graph alone."""
    if not overwrite:
        raise InputError(
            f"{folder}: exists already, with other content: give another folder, delete it, or set overwrite=True"
        )
    if not folder.is_dir() or any(path.suffix != ".npy" and path.name != NAMES for path in folder.iterdir()):
        raise InputError(f"{folder}: holds more than a graph, and is not overwritten: give another folder")


def _further(prefix: str, arrays: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Return further arrays of the nodes or of the edges by the names of their files."""
    if not isinstance(arrays, Mapping):
        raise InputError(f"{prefix[:-1]}_arrays: expected arrays by name, as in {{'time': times}}: there is no table")
    if strange := [name for name in arrays if not name.isidentifier()]:
        raise InputError(f"the array {strange[0]!r}: expected a name of letters, digits and _, since it names a file")
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def _masks(arrays: Mapping[str, NDArray[Any]], split: Mapping[str, Any] | Sequence[float], folder: Path) -> Any:
    """Return the three masks that *split* says."""
    if beside := [name for name in SPLIT if name in arrays]:
        raise InputError(f"{folder}: split= and {beside[0]} are given: leave one of them out")
    try:
        if isinstance(split, Mapping):
            chosen = {name: as_array(f"split[{name!r}]", nodes) for name, nodes in split.items()}
            uses = split_of_nodes(chosen, count_nodes(Arrays(arrays)))
        elif "y" not in arrays:
            raise ValueError("split= are shares of the nodes with a label, and there is no y")  # noqa: TRY301
        else:
            uses = draw_shares(is_known(read_labels(Arrays(arrays))), split)
    except (ValueError, TypeError) as error:
        raise InputError(f"{folder}: {error}") from None
    return {name: uses == use for name, use in zip(SPLIT, (TRAIN, VAL, TEST), strict=True)}


def on_host(values: Any) -> Any:
    """Return a tensor of torch as an array, or a sparse one as a matrix of SciPy; other values as they are.

    bfloat16 becomes words of `BFLOAT16`, of a sparse tensor float32, as float16 there: SciPy has neither. torch is not
    imported for it.
    """
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    is_sparse = "sparse" in str(tensor.layout)
    dtype = str(tensor.dtype)
    if is_sparse:
        tensor = tensor.float() if dtype in {"torch.bfloat16", "torch.float16"} else tensor
        entries = tensor.to_sparse_coo().coalesce()
        return sp.coo_array((entries.values().numpy(), tuple(entries.indices().numpy())), shape=tuple(tensor.shape))
    if dtype == "torch.bfloat16":
        words: Any = tensor.contiguous().view(sys.modules["torch"].int16).numpy()
        return words.view(BFLOAT16)
    return tensor.numpy()


def as_array(name: str, values: Any) -> NDArray[Any]:
    """Return values or a tensor as an array on the host, in this machine's byte order.

    Raises:
        InputError: They are none, for instance rows of several lengths, or some are masked: numpy would take what is
            under the mask.
    """
    if isinstance(values, np.ma.MaskedArray) and values.mask.any():
        raise InputError(f"{name} has masked values: fill them: array.filled(value)")
    if sp.issparse(values := on_host(values)):
        raise InputError(f"{name} is a sparse matrix: expected {_OF_MATRIX.get(name, 'an array: matrix.toarray()')}")
    try:
        array = np.asarray(values)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{name} is no array: expected rows of one length: {' '.join(str(error).split())}") from None


def _write(folder: Path, arrays: Mapping[str, NDArray[Any]], names: Names, *, overwrite: bool) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_beside(folder) as aside:
        new = aside / "new"
        new.mkdir()
        for name, array in arrays.items():
            np.save(new / f"{name}.npy", np.asarray(array, order="C"), allow_pickle=False)  # rows are mapped
        if names != NO_NAMES:
            (new / NAMES).write_text(json.dumps(names._asdict()), encoding="utf-8")
        if not folder.exists():
            with suppress(OSError):  # another process may have written it meanwhile
                new.rename(folder)
                return
        if _is_same(folder, new):
            return
        _refuse_other(folder, overwrite=overwrite)
        folder.rename(aside / "old")
        new.rename(folder)


def _is_same(folder: Path, new: Path) -> bool:
    """Return whether two folders hold files of the same names and contents."""
    names = sorted(path.name for path in new.iterdir())
    if not folder.is_dir() or names != sorted(path.name for path in folder.iterdir()):
        return False
    return not any(filecmp.cmpfiles(folder, new, names, shallow=False)[1:])


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # a folder that may not be entered; the home of nobody
        raise InputError(f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
