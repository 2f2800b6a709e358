"""The option `--task`, against the labels that a data set has."""

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from unilaunch.errors import SpecError
from unilaunch_graph.data.labels import task_of

if TYPE_CHECKING:
    from unilaunch_gcn.spec import TrainingSpec


def refuse_other_task(options: "TrainingSpec", labels: NDArray[Any]) -> None:
    """Refuse labels that are not for the task that the user named.

    Args:
        options: What the user chose.
        labels: Those of a graph or of a part.

    Raises:
        SpecError: They are for another one.
    """
    task = task_of(labels)
    if options.task not in {None, task}:
        raise SpecError(
            f"--task {options.task}: the labels of {options.dataset} are {labels.dtype} with {labels.ndim} "
            f"dimension(s): --task {task}; expected whole numbers (N,) for classes, 0 and 1 (N, C) for multilabel, "
            "floats (N,) or (N, K) for regression"
        )
