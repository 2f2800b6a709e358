"""Data sets by name: generated, public, or a user's own file."""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from unilaunch.errors import InputError
from unilaunch.interfaces import plugins
from unilaunch_graph.data.dataset import Dataset, Request, Source
from unilaunch_graph.data.files import members, open_file
from unilaunch_graph.data.graph import Graph, normalise_rows
from unilaunch_graph.data.ogb import open_ogb
from unilaunch_graph.data.planetoid import open_planetoid
from unilaunch_graph.data.reddit import open_reddit
from unilaunch_graph.data.sbm import open_sbm

#: The source of each name that comes with this library; those of other distributions are a `Source` each.
SOURCES: dict[str, Callable[[Request], Dataset]] = {
    "sbm": open_sbm,
    "cora": open_planetoid,
    "citeseer": open_planetoid,
    "pubmed": open_planetoid,
    "reddit": open_reddit,
    "ogbn-arxiv": open_ogb,
    "ogbn-products": open_ogb,
    "ogbn-papers100M": open_ogb,
}

#: The entry points of other distributions' data sets, and what one of them is.
_GROUP = plugins.Group("unilaunch.datasets", "data set")
#: Data sets whose features are words of a text: the GCN paper divides them by their sum, and results compare with it.
WORDS = ("sbm", "cora", "citeseer", "pubmed")


def open_dataset(
    name: str,
    data_dir: Path | None,
    mirror: str | None,
    split_seed: int,
    normalize_features: bool | None,  # noqa: FBT001  (an option of the spec, passed on by its name)
) -> Dataset:
    """Find the data set *name*, and download its raw files if they are missing; it is not read yet.

    Args:
        name: One of `SOURCES` or an entry point's name; the path of an .npz file, or of a folder of .npy files or of a
            set of the OGB.
        data_dir: Folder of raw files; None for the platform's cache folder.
        mirror: Base address to fetch raw files from; None for their public address.
        split_seed: Seed of the split of a file that brings none.
        normalize_features: Divide each node's features by their absolute sum; None: those of `WORDS`.

    Raises:
        PluginError: Another distribution's data set cannot be loaded.
        InputError: There is no such data set, its files are missing and cannot be downloaded, or it is given a seed for
            a split that it brings.
    """
    try:
        source = _source(name)
        if split_seed and source is not open_file:
            raise InputError(f"{name}: has its own split, so split_seed={split_seed} draws none: leave it out")
        dataset = source(Request(name, data_folder(data_dir), mirror, split_seed))
    except (OSError, RuntimeError) as error:  # a folder that may not be entered; the home of nobody
        raise InputError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    normalises = name in WORDS if normalize_features is None else normalize_features
    return _with_normal_features(dataset) if normalises else dataset


def data_folder(data_dir: Path | None) -> Path:
    """Return the folder of raw files: *data_dir*, or the platform's cache folder."""
    if data_dir is not None:
        return data_dir.expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("unilaunch")


def _source(name: str) -> Callable[[Request], Dataset]:
    folder = Path(name).expanduser()
    if name.endswith(".npz") or (folder / "y.npy").exists():
        return open_file
    if name in SOURCES:  # before a folder of that name: PyG downloads cora to cora/raw
        return SOURCES[name]
    if name in plugins.names(_GROUP):
        source: Source = plugins.make(_GROUP, name)
        return source.open
    if (folder / "raw").is_dir():
        return open_ogb
    if members(folder):  # without y
        return open_file
    known = [*SOURCES, *plugins.names(_GROUP)]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(
        f"no data set {name!r}: {hint}there are {', '.join(known)}; and no graph at {folder.absolute()}: expected a "
        ".npz file, a folder of .npy files (as ug.from_pyg writes it), or an OGB set's folder with raw/ and split/"
    )


def _with_normal_features(dataset: Dataset) -> Dataset:
    def load() -> Graph:
        graph = dataset.load()
        return replace(graph, features=normalise_rows(graph.features))

    identity = {**dataset.identity, "normalize_features": True}
    return replace(dataset, identity=identity, load=load, is_normalised=True)
