"""The option `--task`, against the labels that a data set has."""

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from unilaunch_graph.data.labels import task_of

if TYPE_CHECKING:
    from unilaunch_gcn.spec import TrainingSpec


def refusal_of_task(options: "TrainingSpec", labels: NDArray[Any]) -> str | None:
    """Return why labels are not for the task that the user named; None: they are, or no task is named.

    Args:
        options: What the user chose.
        labels: Those of a graph or of a part.
    """
    task = task_of(labels)
    if options.task in {None, task}:
        return None
    return (
        f"--task {options.task}: the labels of {options.dataset} are {labels.dtype} with {labels.ndim} dimension(s): "
        f"--task {task}; expected whole numbers (N,) for classes, 0 and 1 (N, C) for multilabel, floats (N,) or (N, K) "
        "for regression"
    )
