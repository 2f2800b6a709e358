"""What the options of the GCN mean, and all that is refused of them: alone, on a device, and with a graph.

Under `launch` a rank gets no spec, but values.
"""

from typing import TYPE_CHECKING

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


def refuse_parts(options: "GcnSpec", world_size: int) -> None:
    """Refuse another number of parts than of ranks.

    Raises:
        SpecError: They differ.
    """
    if options.num_parts not in {None, world_size}:
        raise SpecError(
            f"--num-parts {options.num_parts} with {world_size} rank{'s' * (world_size != 1)}: each rank trains "
            f"one part; start {options.num_parts} ranks (mpirun -n {options.num_parts}), or leave --num-parts out"
        )


def refuse_options(options: "TrainingSpec") -> None:
    """Refuse options that exclude each other, and an option that would change nothing.

    Raises:
        SpecError: There is one.
    """
    _refuse_unused(options)
    _refuse_what_attention_lacks(options)
    _refuse_edges_as_given(options)


def _refuse_unused(options: "TrainingSpec") -> None:
    """Refuse an option of hidden layers where there is none, and a residual that no layer has."""
    if options.residual and options.layers < _LAYERS_OF_RESIDUAL:
        raise SpecError(
            f"--residual --layers {options.layers}: only a layer between the first and the last adds its input; "
            f"expected --layers {_LAYERS_OF_RESIDUAL} or more, or no --residual"
        )
    if options.layers > 1:
        return
    given = {
        f"--hidden {options.hidden}": options.hidden != HIDDEN,
        "--layer-norm": options.layer_norm,
        f"--heads {options.heads}": options.heads is not None,
    }
    for option, is_given in given.items():
        if is_given:
            raise SpecError(
                f"{option} --layers 1: only hidden layers have it, and one layer is no hidden one; expected --layers 2 "
                f"or more, or no {option.split()[0]}"
            )


def _refuse_what_attention_lacks(options: "TrainingSpec") -> None:
    """Refuse an option that attention does not have, or that only attention has.

    Raises:
        SpecError: There is one.
    """
    if options.conv != "gat":
        if options.heads is not None:
            raise SpecError(f"--heads {options.heads} --conv {options.conv}: only --conv gat has heads")
        return
    if options.parallel != "graph":
        raise SpecError(
            f"--parallel {options.parallel} --conv gat: attention needs whole rows; expected --parallel graph"
        )
    if options.precision == "bfloat16":
        raise SpecError("--precision bfloat16 --conv gat: expected float32 or float64")
    if options.use_gdc:
        raise SpecError("--use-gdc --conv gat: attention uses no weights of edges; leave --use-gdc out")


def _refuse_edges_as_given(options: "TrainingSpec") -> None:
    """Refuse edges as they are given where a symmetric graph is needed.

    Raises:
        SpecError: They are chosen for gcn, or with diffusion.
    """
    if options.edges != "given":
        return
    if options.conv == "gcn":
        raise SpecError("--edges given --conv gcn: A_hat needs a symmetric graph; expected --edges symmetric")
    if options.use_gdc:
        raise SpecError("--edges given --use-gdc: diffusion needs a symmetric graph; expected --edges symmetric")


def refuse_directed(graph: "Graph | Part", conv: str, device: str) -> None:
    """Refuse what a layer does with a symmetric graph only.

    Args:
        graph: The graph, or a part of it.
        conv: The layer.
        device: "cpu", "auto", or a device.

    Raises:
        SpecError: The graph is directed, and the device is not the CPU.
    """
    if not graph.is_directed:
        return
    given = "the edges are directed, or have loops or duplicates"
    if device not in {"auto", "cpu"}:
        raise SpecError(f"--conv {conv} --device {device}: {given}: expected --device cpu, or --edges symmetric")


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


def refuse_on_device(options: "TrainingSpec", device: str) -> None:
    """Refuse what is for the CPU alone.

    Args:
        options: What the user chose.
        device: "cpu", "auto", or a device.

    Raises:
        SpecError: The device is another one, and the layer is attention.
    """
    if options.conv == "gat" and device not in {"auto", "cpu"}:
        raise SpecError(f"--conv gat --device {device}: attention runs on cpu only; expected --device cpu")


def refuse_untrainable(options: "TrainingSpec", graph: "Graph | Part", device: str) -> None:
    """Refuse a graph that the options cannot train on.

    Args:
        options: What the user chose.
        graph: The graph, or a part of it.
        device: As in `refuse_on_device`.

    Raises:
        InputError: There are no features, or no node is to train on; or as `refuse_negative_weights`.
        SpecError: The labels are for another task than the user named; or as `refuse_directed`.
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
    refuse_directed(graph, options.conv, device)
    refuse_negative_weights(options, graph)


def refuse_no_validation(options: "GcnSpec", graph: "Graph | Part") -> None:
    """Refuse to wait for a validation loss that there is not.

    Raises:
        SpecError: Patience is limited, and no node is to validate on.
    """
    if options.patience is not None and not graph.split_sizes[1]:
        raise SpecError(
            f"--patience {options.patience}: {options.dataset} has no validation nodes, so there is no validation loss "
            "to wait for: leave --patience out, or give the data set a validation split"
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
