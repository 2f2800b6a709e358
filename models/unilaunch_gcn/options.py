"""What the options of the GCN mean, and all that is refused of them: alone, on a device, and with a graph.

Under `launch` a rank gets no spec, but values.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from unilaunch.errors import InputError, SpecError

if TYPE_CHECKING:
    from unilaunch_gcn.spec import GcnSpec, TrainingSpec
    from unilaunch_graph.data.graph import Graph
    from unilaunch_graph.partition.part import Part

#: The default of `--hidden`.
HIDDEN = 16
#: Layers from which on one has its input added: one between the first and the last.
_LAYERS_OF_RESIDUAL = 3


def count_heads(options: "TrainingSpec") -> int:
    """Return the heads of gat's hidden layers: 8 as in the paper, if the user did not choose."""
    return options.heads or 8


def takes_edges_as_given(options: "TrainingSpec") -> bool:
    """Return whether directions, loops and duplicates of edges stay: of sage and gat, if the user did not choose."""
    if options.edges is not None:
        return options.edges == "given"
    return options.conv != "gcn" and not options.use_gdc


def refuse_options(options: "TrainingSpec", device: str = "auto", num_ranks: int | None = None) -> None:
    """Refuse options that exclude each other, and an option that would change nothing.

    Args:
        options: What the user chose.
        device: "cpu", "auto", or a device.
        num_ranks: Ranks of the run; None: nothing runs.

    Raises:
        SpecError: There is one.
    """
    rules = [*_of_layers(options), *_of_conv(options)]
    if options.conv == "gat" and device not in {"auto", "cpu"}:
        rules.append(f"--conv gat --device {device}: attention runs on cpu only; expected --device cpu")
    num_parts = cast("GcnSpec", options).num_parts if num_ranks else None
    if num_parts not in {None, num_ranks}:
        rules.append(
            f"--num-parts {num_parts} with {num_ranks} rank{'s' * (num_ranks != 1)}: each rank trains one part; start "
            f"{num_parts} ranks (mpirun -n {num_parts}), or leave --num-parts out"
        )
    if rules:
        raise SpecError(rules[0])


def _of_layers(options: "TrainingSpec") -> Iterator[str]:
    """Yield what is wrong: an option of hidden layers where there is none, or a residual that no layer has."""
    if options.residual and options.layers < _LAYERS_OF_RESIDUAL:
        yield (
            f"--residual --layers {options.layers}: only a layer between the first and the last adds its input; "
            f"expected --layers {_LAYERS_OF_RESIDUAL} or more, or no --residual"
        )
    given = {
        f"--hidden {options.hidden}": options.hidden != HIDDEN,
        "--layer-norm": options.layer_norm,
        f"--heads {options.heads}": options.heads is not None,
    }
    for option, is_given in given.items():
        if is_given and options.layers == 1:
            yield (
                f"{option} --layers 1: only hidden layers have it, and one layer is no hidden one; expected --layers 2 "
                f"or more, or no {option.split()[0]}"
            )


def _of_conv(options: "TrainingSpec") -> Iterator[str]:
    """Yield what is wrong: what a layer does not have, and edges as they are given where A_hat is symmetric."""
    conv, is_attention = f"--conv {options.conv}", options.conv == "gat"
    wrong = {
        f"--heads {options.heads} {conv}: only --conv gat has heads": options.heads is not None and not is_attention,
        f"--parallel {options.parallel} {conv}: attention needs whole rows; expected --parallel graph": (
            is_attention and options.parallel != "graph"
        ),
        f"--precision bfloat16 {conv}: expected float32 or float64": is_attention and options.precision == "bfloat16",
        f"--use-gdc {conv}: attention uses no weights of edges; leave --use-gdc out": is_attention and options.use_gdc,
        f"--edges given {conv}: A_hat needs a symmetric graph; expected --edges symmetric": (
            options.edges == "given" and options.conv == "gcn"
        ),
        "--edges given --use-gdc: diffusion needs a symmetric graph; expected --edges symmetric": (
            options.edges == "given" and options.use_gdc
        ),
    }
    yield from (line for line, is_wrong in wrong.items() if is_wrong)


def told_of_edges(options: "TrainingSpec", part: "Part") -> str:
    """Return what a layer does with a directed graph, for the log."""
    from unilaunch_graph.data.edges import EDGE_IDS

    has_weights = len(part.owned_weights) + len(part.halo_weights) > 0
    has_features = bool(part.owned_edge_arrays.keys() - {EDGE_IDS})
    if options.conv == "gat":
        unused = ", and uses neither their weights nor their features" if has_weights or has_features else ""
        return f"attention goes along the edges as they are given, in their directions{unused}"
    unused = ", and uses no features of theirs" if has_features else ""
    return (
        f"each node's mean is over the sources of its edges as they are given, in their directions{unused}; "
        "--edges symmetric makes the graph symmetric"
    )


def refuse_untrainable(options: "TrainingSpec", graph: "Graph | Part", device: str) -> None:
    """Refuse a graph that the options cannot train on.

    Args:
        options: What the user chose.
        graph: The graph, or a part of it.
        device: As in `refuse_options`.

    Raises:
        InputError: There are no features, or no node is to train on; or as `refuse_negative_weights`.
        SpecError: The labels are for another task than the user named, a device gets directed edges, or patience waits
            for a validation loss that there is not.
    """
    from unilaunch_graph.data.labels import task_of

    name, labels = options.dataset, graph.labels
    if not graph.num_features:
        raise InputError(
            f"{name}: has no features (x), and this network starts from them: give some, such as "
            "scipy.sparse.eye_array(num_nodes), or write a network of your own that learns them: "
            "torch.nn.Embedding(part.num_nodes, width)(part.owned)"
        )
    if not graph.split_sizes[0]:
        raise InputError(
            f"{name}: no node to train on: there is no y, no label in y is known, or train_mask has no node: give "
            "labels of some nodes; predictions need none"
        )
    if options.task not in {None, task := task_of(labels)}:
        raise SpecError(
            f"--task {options.task}: the labels of {name} are {labels.dtype} with {labels.ndim} dimension(s): "
            f"--task {task}; expected whole numbers (N,) for classes, 0 and 1 (N, C) for multilabel, floats (N,) or "
            "(N, K) for regression"
        )
    if graph.is_directed and device not in {"auto", "cpu"}:
        raise SpecError(
            f"--conv {options.conv} --device {device}: the edges are directed, or have loops or duplicates: expected "
            "--device cpu, or --edges symmetric"
        )
    refuse_negative_weights(options, graph)
    patience: int | None = getattr(options, "patience", None)  # a forecast has none
    if patience is not None and not graph.split_sizes[1]:
        raise SpecError(
            f"--patience {patience}: {name} has no validation nodes, so there is no validation loss to wait for: leave "
            "--patience out, or give the data set a validation split"
        )


def refuse_negative_weights(options: "TrainingSpec", graph: "Graph | Part") -> None:
    """Refuse weights of edges that a mean cannot have; gat uses none.

    Raises:
        InputError: The layer is sage, and a weight is negative.
    """
    if options.conv == "sage" and (least := graph.least_weight) < 0:
        raise InputError(
            f"{options.dataset}: an edge has the weight {least:g}: the mean over the neighbours needs weights of 0 or "
            "more"
        )
