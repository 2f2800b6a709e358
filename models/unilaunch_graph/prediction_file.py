"""The file of predictions: what a network says of every node, as arrays or as a table, whole or not at all."""

import csv
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError, PluginError
from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.arrays import Rows
from unilaunch_graph.data.graph_folder import NO_NAMES, Names, read_names
from unilaunch_graph.data.labels import Task, predicted_classes
from unilaunch_graph.exchange.gather import gather_rows
from unilaunch_graph.network.ranks import ScriptRanks
from unilaunch_graph.new_files import folder_beside, map_new_file, refuse_no_file
from unilaunch_graph.partition.part import Part

#: The .npy file of each array, by its name.
Files = Mapping[str, Path]
#: Rows that are in memory at a time.
_ROWS = 1 << 14
#: By their numbers in the array *split*.
_USES = np.array(["", "train", "val", "test"])


def refuse_no_predictions(path: Path | str, option: str = "") -> None:
    """Refuse a name that no file of predictions can have, before the work.

    Raises:
        InputError: Its ending is another, it is a folder's, or its folder is not there; *option* stands before it.
        PluginError: It ends in .parquet, and pyarrow is not installed.
    """
    refuse_no_file(path, option)
    if (ending := Path(path).suffix) not in _WRITERS:
        raise InputError(f"{option}{path}: expected a name that ends in {', '.join(_WRITERS)}")
    if ending == ".parquet":
        _parquet()


def names_of(graph: Path | str) -> Names:
    """Return the names in the folder of a graph; none if *graph* is no folder."""
    return read_names(graph) if Path(graph).is_dir() else NO_NAMES


def save_predictions(
    path: Path, part: Part, output: tuple[Rows, Rows | None], collectives: Collectives, names: Names = NO_NAMES
) -> None:  # fmt: skip
    """Write what a network says of all nodes, in the user's order. All ranks must call this.

    .npz: "scores"; "classes" if there is a score for each class or label; "split": 0 none, 1 training, 2 validation,
    3 test; "embeddings" if there are some. .npy: the scores. .csv and .parquet: a table of a row for each node.

    Rank 0 puts the rows in order in files beside the result, so that no rank has more than one block of other ranks'
    rows in its memory.

    Args:
        path: The file; only rank 0 writes it.
        part: This rank's part.
        output: Scores (num_owned, width) or (num_owned,), and embeddings (num_owned, w) of its owned nodes.
        collectives: The ranks' collectives on host arrays.
        names: The names of nodes and classes, for a table.

    Raises:
        InputError: On rank 0: the file cannot be written, or is a folder.
    """
    scores, embeddings = output
    ranks = ScriptRanks(part.index, part.num_parts, collectives)
    with TemporaryDirectory(prefix="unilaunch-") as own:
        classes = _classes(part, scores, Path(own) / "classes.npy")
        every = {"scores": scores, "classes": classes, "split": np.asarray(part.split), "embeddings": embeddings}
        arrays = {name: array for name, array in every.items() if array is not None}
        if path.suffix == ".npy":
            arrays = {"scores": scores}
        if part.index:
            for array in arrays.values():
                deque(gather_rows(part, array, ranks), maxlen=0)
            return
        try:
            if path.is_dir():
                raise InputError(f"{path}: is a folder: expected the name of a file")
            with folder_beside(path) as folder:
                files = {name: folder / f"{name}.npy" for name in arrays}
                for name, array in arrays.items():
                    _map_rows(files[name], part, array, ranks)
                whole = folder / "whole"  # no array's file: the user may have called the result scores.npy
                _WRITERS[path.suffix or ".npz"](whole, files, names)
                shutil.move(whole, path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _map_rows(file: Path, part: Part, array: NDArray[Any], ranks: ScriptRanks) -> None:
    whole = map_new_file(file, array.dtype, (part.num_nodes, *array.shape[1:]))
    for nodes, rows in gather_rows(part, array, ranks):
        whole[nodes] = rows
    if isinstance(whole, np.memmap):
        whole.flush()


def _classes(part: Part, scores: Rows, file: Path) -> NDArray[Any] | None:
    """Return the classes of the owned nodes in a mapped file, if there is a score for each class or label."""
    width = scores.shape[1] if scores.ndim == 2 else 0  # noqa: PLR2004  (nodes and columns)
    fits = width >= part.num_classes > 0 if part.task is Task.CLASSES else width == part.num_classes
    first = predicted_classes(part.task, scores[:_ROWS]) if fits else None
    if first is None:
        return None
    classes = map_new_file(file, first.dtype, (len(scores), *first.shape[1:]))
    for begin in range(0, len(scores), _ROWS):
        span = slice(begin, begin + _ROWS)
        classes[span] = predicted_classes(part.task, scores[span])
    return classes


def _tables(files: Files, names: Names) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the columns of some nodes at a time, by name."""
    arrays = {name: np.load(file, mmap_mode="r") for name, file in files.items()}
    is_named = names.classes is not None and "classes" in arrays and arrays["classes"].ndim == 1
    is_named = is_named and arrays["scores"].shape[1] <= len(names.classes or ())
    for begin in range(0, len(arrays["scores"]), _ROWS):
        rows = {name: array[begin : begin + _ROWS] for name, array in arrays.items()}
        nodes = np.arange(begin, begin + len(rows["scores"]))
        table = {"node": nodes}
        if names.nodes is not None:
            table["name"] = np.array([str(names.nodes[node]) for node in nodes])
        if "classes" in rows:
            classes = rows["classes"]
            named = {"class": np.array(names.classes)[classes]} if is_named else _columns("class", classes, names)
            table |= named
        table["split"] = _USES[rows["split"]]
        table |= _columns("score", rows["scores"], names)
        if "embeddings" in rows:
            table |= _columns("embedding", rows["embeddings"])
        yield table


def _columns(name: str, array: NDArray[Any], names: Names = NO_NAMES) -> dict[str, NDArray[Any]]:
    """Return the columns of an array, called after the classes if there are as many."""
    if array.ndim == 1:
        return {name: array}
    flat = array.reshape(len(array), -1)
    width = flat.shape[1]
    called = names.classes if names.classes is not None and len(names.classes) == width else range(width)
    return {f"{name}_{column}": flat[:, place] for place, column in enumerate(called)}


def _write_csv(file: Path, files: Files, names: Names) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        for number, table in enumerate(_tables(files, names)):
            if not number:
                writer.writerow(table)
            writer.writerows(zip(*(column.astype(str) for column in table.values()), strict=True))


def _write_parquet(file: Path, files: Files, names: Names) -> None:
    import pyarrow as pa

    with ExitStack() as opened:
        writer = None
        for table in map(pa.table, _tables(files, names)):
            writer = writer or opened.enter_context(_parquet().ParquetWriter(file, table.schema))
            writer.write_table(table)


def _write_npz(file: Path, files: Files, names: Names) -> None:  # noqa: ARG001  (as the others)
    with ZipFile(file, "w", allowZip64=True) as archive:
        for array in files.values():
            archive.write(array, array.name)


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise PluginError(".parquet needs pyarrow: pip install 'unilaunch[tables]'") from None
    return parquet


#: What makes the file of the files of its arrays, by its ending.
_WRITERS: dict[str, Callable[[Path, Files, Names], object]] = {
    ".npz": _write_npz, ".npy": lambda file, files, _names: files["scores"].rename(file),
    ".csv": _write_csv, ".parquet": _write_parquet,
}  # fmt: skip
