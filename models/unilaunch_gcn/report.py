"""What a training shows: the summary at its end, and the layout of `unilaunch report`."""

from collections.abc import Mapping
from typing import Any

from unilaunch.interfaces.model import Session
from unilaunch.interfaces.report_layout import Plot, ReportLayout, Value
from unilaunch_gcn.objective import SPLITS, shown
from unilaunch_graph.data.labels import Task

#: Each task has some of them.
_METRICS = {"accuracy": "accuracy", "micro_f1": "micro-F1", "mae": "mean absolute error", "rmse": "RMSE"}
_FRACTIONS = {"accuracy", "micro_f1"}
LAYOUT = ReportLayout(
    step="epoch",
    series="epochs.jsonl",
    plots=(
        Plot("Loss", (Value("loss", "loss"),)),
        Plot("Validation loss", (Value("val_loss", "validation loss"),)),
        Plot(
            "Accuracy",
            (Value("train_accuracy", "train"), Value("val_accuracy", "validation"), Value("test_accuracy", "test")),
            percent=True,
        ),
        Plot(
            "Micro-F1",
            (Value("train_micro_f1", "train"), Value("val_micro_f1", "validation"), Value("test_micro_f1", "test")),
            percent=True,
        ),
        Plot(
            "Mean absolute error",
            (Value("train_mae", "train"), Value("val_mae", "validation"), Value("test_mae", "test")),
        ),
        Plot(
            "Root of the mean squared error",
            (Value("train_rmse", "train"), Value("val_rmse", "validation"), Value("test_rmse", "test")),
        ),
    ),
    figures=(
        Value("dataset", "data set"),
        Value("epochs", "epochs"),
        *(
            Value(f"{split}_{metric}", f"{name} {words}", percent=metric in _FRACTIONS)
            for metric, words in _METRICS.items()
            for split, name in (("train", "train"), ("val", "validation"), ("test", "test"))
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
