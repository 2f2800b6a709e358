"""The summary that is printed at the end of a training."""

from collections.abc import Mapping
from typing import Any

from unilaunch.interfaces.model import Session
from unilaunch_gcn.objective import SPLITS, shown
from unilaunch_graph.data.labels import Task


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
