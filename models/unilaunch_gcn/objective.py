"""What is trained: the loss and the metrics of each task. The same formulas serve host arrays and a device's tensors.

| task | labels | loss of one node | metrics |
|---|---|---|---|
| classes | int64 (N,), -1 unknown | cross entropy | accuracy |
| multilabel | uint8 (N, C) | binary cross entropy with logits, the mean of the labels | micro-F1 |
| regression | float32 (N,) or (N, K) | squared error, the mean of the values | MAE, RMSE |

The training loss is the mean over the training nodes, as the default of torch's CrossEntropyLoss, BCEWithLogitsLoss and
MSELoss.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.model import Session
from unilaunch.interfaces.report_layout import Plot, ReportLayout, Value
from unilaunch_graph.arrays import Floats, FloatType
from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.data.labels import Task
from unilaunch_graph.partition.part import Part

#: Training, validation and test, as the metrics' names begin.
SPLITS = {"train": TRAIN, "val": VAL, "test": TEST}
#: The place of "val" among them.
VALIDATION = list(SPLITS).index("val")
Metrics = dict[str, float | None]


@dataclass(frozen=True)
class Objective(ABC):
    """A loss and its metrics.

    Attributes:
        num_outputs: Columns of the scores: classes, labels, or values of a node.
    """

    num_outputs: int

    @property
    def values_per_node(self) -> int:
        """Number of losses whose mean is the loss of one node."""
        return self.num_outputs

    @abstractmethod
    def targets(self, labels: NDArray[Any], dtype: FloatType) -> Floats:
        """Return the labels of nodes as numbers, one column for each score; 0 where unknown. (n, num_outputs)"""

    @abstractmethod
    def losses(self, scores: Any, targets: Any, xp: Any) -> tuple[Any, Any]:
        """Return the losses and their gradient.

        Args:
            scores: The network's output. (n, num_outputs)
            targets: What `targets` returns, in the scores' type.
            xp: The functions of the scores' library, under numpy's names.

        Returns:
            The sum of each node's losses (n, 1), and its derivative by each score (n, num_outputs).
        """

    @abstractmethod
    def counts(self, scores: Any, labels: Any, xp: Any) -> list[Any]:
        """Return sums over nodes, from which `metrics_of` makes metrics of the whole graph; *xp* as in `losses`."""

    @abstractmethod
    def metrics_of(self, counts: NDArray[np.float64], num_nodes: int) -> dict[str, float]:
        """Return the metrics of a split of the whole graph.

        Args:
            counts: The sum of all ranks' `counts`.
            num_nodes: Number of nodes in the split, at least 1.
        """

    def evaluate(self, scores: Floats, part: Part) -> NDArray[np.float64]:
        """Return this rank's share of an evaluation: each split's `counts`, then the validation losses, summed.

        The last one is NaN if any owned node's score is not finite: a metric of it would mean nothing.
        """
        rows = [part.split == use for use in SPLITS.values()]
        labels = [part.labels[own] for own in rows]
        targets = self.targets(labels[VALIDATION], np.dtype(np.float64))
        return np.array(self.evaluated(scores, rows, labels, targets, np), np.float64)

    def evaluated(self, scores: Any, rows: list[Any], labels: list[Any], targets: Any, xp: Any) -> list[Any]:
        """Return the numbers of `evaluate`, of arrays of any library.

        Args:
            scores: Of the owned nodes. (num_owned, num_outputs)
            rows: The owned nodes of each split.
            labels: Theirs.
            targets: Of the validation nodes, in float64.
            xp: The functions of the scores' library, under numpy's names.
        """
        counts = [self.counts(scores[own], known, xp) for own, known in zip(rows, labels, strict=True)]
        losses, _ = self.losses(xp.asarray(scores[rows[VALIDATION]], dtype=xp.float64), targets, xp)
        loss = xp.where(xp.isfinite(scores).all(), losses.sum(), xp.nan)
        return [*(number for split in counts for number in split), loss]

    def metrics(self, counts: NDArray[np.float64], sizes: tuple[int, int, int]) -> Metrics:
        """Return the metrics and the validation loss of the whole graph; None of a split without nodes.

        Args:
            counts: The sum of all ranks' `evaluate`.
            sizes: Training, validation and test nodes of the whole graph.
        """
        found: Metrics = {}
        for split, size, own in zip(SPLITS, sizes, np.split(counts[:-1], len(SPLITS)), strict=True):
            values = self.metrics_of(own, max(1, size))
            found |= {f"{split}_{name}": value if size else None for name, value in values.items()}
        found["val_loss"] = float(counts[-1]) / (sizes[1] * self.values_per_node) if sizes[1] else None
        return found


class Classes(Objective):
    """One class for each node."""

    @property
    @override
    def values_per_node(self) -> int:
        return 1

    @override
    def targets(self, labels: NDArray[Any], dtype: FloatType) -> Floats:
        one_hot: Floats = (labels[:, None] == np.arange(self.num_outputs)).astype(dtype)
        return one_hot

    @override
    def losses(self, scores: Any, targets: Any, xp: Any) -> tuple[Any, Any]:
        shifted = scores - xp.amax(scores, axis=1, keepdims=True) if len(scores) else scores
        exponentials = xp.exp(shifted)
        sums = xp.sum(exponentials, axis=1, keepdims=True)
        losses = xp.log(sums) - xp.sum(shifted * targets, axis=1, keepdims=True)
        exponentials /= sums  # in place: arrays of this size do not stay in the cache
        exponentials -= targets
        return losses, exponentials

    @override
    def counts(self, scores: Any, labels: Any, xp: Any) -> list[Any]:
        return [(xp.argmax(scores, axis=1) == labels).sum()]

    @override
    def metrics_of(self, counts: NDArray[np.float64], num_nodes: int) -> dict[str, float]:
        return {"accuracy": float(counts[0]) / num_nodes}


class MultiLabel(Objective):
    """Any number of labels for each node; a score above 0 says that a node has the label."""

    @override
    def targets(self, labels: NDArray[Any], dtype: FloatType) -> Floats:
        numbers: Floats = labels.astype(dtype)
        return numbers

    @override
    def losses(self, scores: Any, targets: Any, xp: Any) -> tuple[Any, Any]:
        """As torch's documentation of BCEWithLogitsLoss, with log(1 + exp(-|x|)) so that nothing overflows."""
        small = xp.exp(-xp.abs(scores))
        positive = (scores + xp.abs(scores)) * 0.5
        losses = positive - scores * targets + xp.log(small + 1.0)
        above = (scores >= 0) * 1.0
        probability = (above + (1.0 - above) * small) / (small + 1.0)
        return xp.sum(losses, axis=1, keepdims=True), probability - targets

    @override
    def counts(self, scores: Any, labels: Any, xp: Any) -> list[Any]:
        said, has = scores > 0, labels > 0
        return [(said & has).sum(), said.sum(), has.sum()]

    @override
    def metrics_of(self, counts: NDArray[np.float64], num_nodes: int) -> dict[str, float]:
        """F1 over all pairs of node and label: 2 TP / (2 TP + FP + FN); 0 if there is no label and none is said."""
        right, said, has = (float(count) for count in counts)
        return {"micro_f1": 2 * right / max(1.0, said + has)}


class Regression(Objective):
    """One or more numbers for each node."""

    @override
    def targets(self, labels: NDArray[Any], dtype: FloatType) -> Floats:
        numbers: Floats = np.nan_to_num(labels.reshape(len(labels), self.num_outputs)).astype(dtype)
        return numbers

    @override
    def losses(self, scores: Any, targets: Any, xp: Any) -> tuple[Any, Any]:
        errors = scores - targets
        return xp.sum(errors * errors, axis=1, keepdims=True), errors * 2.0

    @override
    def counts(self, scores: Any, labels: Any, xp: Any) -> list[Any]:
        errors = xp.asarray(scores, dtype=xp.float64) - xp.nan_to_num(labels.reshape(scores.shape))
        return [xp.abs(errors).sum(), (errors * errors).sum()]

    @override
    def metrics_of(self, counts: NDArray[np.float64], num_nodes: int) -> dict[str, float]:
        values = num_nodes * self.num_outputs
        return {"mae": float(counts[0]) / values, "rmse": float(np.sqrt(counts[1] / values))}


_OBJECTIVES: dict[Task, type[Objective]] = {
    Task.CLASSES: Classes,
    Task.MULTILABEL: MultiLabel,
    Task.REGRESSION: Regression,
}


def objective_of(part: Part) -> Objective:
    """Return the objective that the form of the labels asks for."""
    return _OBJECTIVES[part.task](part.num_classes)


def shown(metrics: Mapping[str, float | None], split: str) -> str | None:
    """Return the metrics of a split in words ("accuracy 81.5%", "MAE 0.31, RMSE 0.4"); None of one without nodes."""
    found = [(metric, metrics.get(f"{split}_{metric.name}")) for metric in _METRICS]
    return ", ".join(f"{metric.label}{value:{metric.form}}" for metric, value in found if value is not None) or None


class _Metric(NamedTuple):
    """How a metric is shown.

    Attributes:
        name: As the objectives call it.
        title: Of its plot.
        word: In a table.
        label: What stands before the number in a line.
        form: The number's format.
    """

    name: str
    title: str
    word: str
    label: str
    form: str


#: Each task has some of them.
_METRICS = (
    _Metric("accuracy", "Accuracy", "accuracy", "", ".1%"),
    _Metric("micro_f1", "Micro-F1", "micro-F1", "micro-F1 ", ".1%"),
    _Metric("mae", "Mean absolute error", "mean absolute error", "MAE ", ".4g"),
    _Metric("rmse", "Root of the mean squared error", "RMSE", "RMSE ", ".4g"),
)
#: The splits, as the report calls them.
_WORDS = {"train": "train", "val": "validation", "test": "test"}
#: The layout of `unilaunch report`.
LAYOUT = ReportLayout(
    step="epoch",
    series="epochs.jsonl",
    plots=(
        Plot("Loss", (Value("loss", "loss"),)),
        Plot("Validation loss", (Value("val_loss", "validation loss"),)),
        *(
            Plot(
                metric.title,
                tuple(Value(f"{split}_{metric.name}", word) for split, word in _WORDS.items()),
                percent=metric.form == ".1%",
            )
            for metric in _METRICS
        ),
    ),
    figures=(
        Value("dataset", "data set"),
        Value("epochs", "epochs"),
        *(
            Value(f"{split}_{metric.name}", f"{word} {metric.word}", percent=metric.form == ".1%")
            for metric in _METRICS
            for split, word in _WORDS.items()
        ),
        Value("seconds_per_epoch", "seconds per epoch"),
        Value("compute_seconds", "of which computing"),
        Value("communication_seconds", "of which communicating"),
        Value("bytes_per_epoch", "halo bytes per epoch"),
        Value("num_nodes", "nodes"),
        Value("num_parts", "parts"),
    ),
    columns=(
        Value("owned", "owned nodes"),
        Value("halo", "halo nodes"),
        Value("bytes_per_epoch", "bytes per epoch"),
        Value("peak_memory_bytes", "peak MB of its own", per=1_000_000),
    ),
)


def show(result: Mapping[str, Any], session: Session, backend: str) -> None:
    """Print the summary of a training, as rank 0."""
    quality = "accuracy" if result["task"] == Task.CLASSES else "quality"
    rows = [
        ("graph", f"{result['dataset']}, {result['num_nodes']:,} nodes in {_counted(result['num_parts'], 'part')}"),
        ("ran on", f"{backend}, {session.placement.device}, {_counted(session.world.size, 'rank')}"),
        ("loss", f"{result['loss'][0]:.4f} -> {result['loss'][-1]:.4f} in {result['epochs']} epochs"),
        (quality, ", ".join(f"{use} {shown(result, use) or 'none (no such nodes)'}" for use in SPLITS)),
        *_costs(result),
        ("result", f"{session.output.shown}/result.json"),
        ("logs", f"{session.output.shown}/rank.*/"),
    ]
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"  {name:<{width}}  {value}" for name, value in rows))  # noqa: T201  (the summary)


def _costs(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what an epoch took; nothing where all were trained before."""
    if result["seconds_per_epoch"] is None:
        return []
    communication = result["communication_seconds"] / max(result["seconds_per_epoch"], 1e-12)
    return [
        ("seconds per epoch", f"{result['seconds_per_epoch']:.4f}, of which {communication:.0%} communication"),
        ("halo traffic", f"{result['bytes_per_epoch']:,} bytes per epoch"),
    ]


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


#: Rows whose losses are computed at a time.
_ROWS = 1024


class TrainingLoss:
    """The loss of the owned training nodes, divided by the training nodes of the whole graph, on host arrays.

    So the ranks' losses and gradients need only be added, and a part without training nodes adds exactly nothing.

    Args:
        objective: The loss.
        part: The part.
        dtype: Type of the scores.
    """

    def __init__(self, objective: Objective, part: Part, dtype: FloatType) -> None:
        self.objective, self.nodes = objective, np.flatnonzero(part.split == TRAIN)
        self.others = np.flatnonzero(part.split != TRAIN)
        self.targets = objective.targets(part.labels[self.nodes], dtype)
        self.num_values = max(1, part.split_sizes[0]) * objective.values_per_node

    def value_and_gradient(self, scores: Floats) -> tuple[float, Floats]:
        """Return the loss and its gradient, which takes the scores' place.

        Args:
            scores: They are overwritten. (num_owned, num_outputs)

        Returns:
            The loss, summed in float64, and the gradient. (num_owned, num_outputs)
        """
        losses = np.empty((len(self.nodes), 1), scores.dtype)
        for begin in range(0, len(self.nodes), _ROWS):  # in the cache
            span = slice(begin, begin + _ROWS)
            losses[span], gradient = self.objective.losses(scores[self.nodes[span]], self.targets[span], np)
            gradient /= self.num_values
            scores[self.nodes[span]] = gradient
        scores[self.others] = 0
        return float(losses.sum(dtype=np.float64)) / self.num_values, scores
