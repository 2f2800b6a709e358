"""What the GCN cannot train on or be applied to: found before a graph is divided, and in each rank's part."""

from typing import TYPE_CHECKING

from unilaunch.errors import InputError, SpecError
from unilaunch_gcn.options import refuse_directed
from unilaunch_graph.data.labels import task_of

if TYPE_CHECKING:
    from unilaunch_gcn.spec import TrainingSpec
    from unilaunch_graph.data.graph import Graph
    from unilaunch_graph.partition.part import Part


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
