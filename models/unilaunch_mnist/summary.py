"""The summary that is printed at the end of a training."""

from collections.abc import Mapping
from typing import Any

from unilaunch.interfaces.model import Session


def show(result: Mapping[str, Any], session: Session, backend: str) -> None:
    """Print the summary of a training, as rank 0."""
    size = session.world.size
    ranks = f"{size} rank{'s' * (size > 1)}, batches of {result['batch_size']} on each"
    rows = [
        ("images", f"{result['num_train']:,}, and {result['num_test']:,} for the test"),
        ("ran on", f"{backend}, {session.placement.device}, {ranks}"),
        ("loss", f"{result['step_loss'][0]:.4f} at first, {result['loss'][-1]:.4f} in epoch {result['epochs']}"),
        ("test accuracy", f"{result['test_accuracy']:.2%}"),
        ("seconds per epoch", f"{result['seconds_per_epoch']:.2f}"),
        ("result", f"{session.output.shown}/result.json"),
        ("logs", f"{session.output.shown}/rank.*/"),
    ]
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"  {name:<{width}}  {value}" for name, value in rows))  # noqa: T201  (the summary)
