"""Read the graph that a user's options describe."""

from typing import TYPE_CHECKING, Protocol

from unilaunch.errors import InputError
from unilaunch_graph.data.diffusion import Diffusion, diffuse
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.sources import Dataset, open_dataset

if TYPE_CHECKING:
    from unilaunch_graph.spec import DataSpec


class Log(Protocol):
    """An object that reports the progress of a preparation."""

    def say(self, message: str, /) -> None:
        """Log *message*."""


def read_graph(options: "DataSpec", log: Log, *, as_given: bool = False) -> Graph:
    """Return the graph that *options* describe, with diffusion if they request it.

    Args:
        options: The graph.
        log: Logs the progress.
        as_given: As in `preparation.prepare`.

    Raises:
        InputError: The data set is unknown or damaged, or has a negative weight, which A_hat does not allow.
    """
    return read_dataset(find_dataset(options, log), diffusion_of(options), log, as_given=as_given)


def find_dataset(options: "DataSpec", log: Log) -> Dataset:
    """Return the data set that *options* name; it is not read yet.

    Raises:
        InputError: There is no such data set.
    """
    dataset = open_dataset(
        options.dataset, options.data_dir, options.mirror, options.split_seed, options.normalize_features
    )
    if dataset.is_normalised and options.normalize_features is None:
        log.say(
            f"{dataset.name}: each node's features are divided by their sum, as in the GCN paper; "
            "--no-normalize-features, or normalize_features=False of ug.load, leaves them as they are"
        )
    return dataset


def diffusion_of(options: "DataSpec") -> Diffusion | None:
    """Return the diffusion that *options* request; None: they request none."""
    return Diffusion(options.gdc_alpha, options.gdc_top_k, options.gdc_threshold) if options.use_gdc else None


def read_dataset(dataset: Dataset, how: Diffusion | None, log: Log, *, as_given: bool) -> Graph:
    """Return the graph of a data set, with the diffusion *how*; the other arguments are those of `read_graph`."""
    log.say(f"reading {dataset.name}")
    graph = dataset.load()
    if not as_given:
        graph = _symmetrised(graph, dataset.name, log)
    edges = f"{len(graph.indices):,} directed" if graph.is_directed else f"{len(graph.indices) // 2:,}"
    log.say(f"{dataset.name}: {graph.num_nodes:,} nodes, {edges} edges")
    if how:
        if graph.weights is not None:
            raise InputError(
                f"{dataset.name}: --use-gdc diffuses a graph whose edges have no weights, and these have: leave "
                "--use-gdc out, or edge_weight"
            )
        log.say("diffusing it")
        graph = diffuse(graph, how)
        log.say(f"diffused: {len(graph.indices) // 2:,} edges")
    return graph


def _symmetrised(graph: Graph, name: str, log: Log) -> Graph:
    try:
        graph, changes = graph.symmetrised()
    except ValueError as error:
        raise InputError(f"{name}: {error}") from error
    for change in changes:
        log.say(f"{name}: {change}")
    return graph
