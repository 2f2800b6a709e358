"""`--trace`: the timeline of every rank."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from jobs.mpirun import Launcher


@pytest.mark.usefixtures("by_numpy")  # every backend's epoch is traced by the same lines
def test_the_ranks_traces_fit_together(openmpi5: Launcher, tmp_path: Path) -> None:
    """One clock, one process a rank; what is inside an epoch lies inside it."""
    options = ["--epochs", "5", "--eval-every", "5", "--checkpoint-every", "5", "--data-dir", "data", "--trace"]
    openmpi5.unilaunch(2, ["run", *options], tmp_path).check()
    all_epochs = []
    for rank in range(2):
        events = json.loads((tmp_path / "log_output" / f"rank.{rank}" / "trace.json").read_text())["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        assert {event["pid"] for event in events} == {rank}
        (name,) = [event["args"]["name"] for event in events if event["name"] == "process_name"]
        assert name.startswith(f"rank {rank} on ")
        assert {span["name"] for span in spans} == {
            "build network", "forward and backward", "halo exchange", "all-reduce", "optimizer", "evaluation",
            "checkpoint", *(f"epoch {epoch}" for epoch in range(1, 6)),
        }  # fmt: skip
        epochs = [span for span in spans if span["name"].startswith("epoch")]
        assert all(first["ts"] + first["dur"] <= second["ts"] + 1 for first, second in pairwise(epochs))
        for span in spans:
            if span["name"] in {"all-reduce", "optimizer", "forward and backward"}:
                assert any(_inside(span, epoch) for epoch in epochs)
        all_epochs.append(epochs)
    for one, other in zip(*all_epochs, strict=True):  # an all-reduce in each: no rank ends it before all have begun it
        assert max(one["ts"], other["ts"]) <= min(one["ts"] + one["dur"], other["ts"] + other["dur"]) + 1000


def _inside(span: dict[str, float], other: dict[str, float]) -> bool:
    return other["ts"] - 1 <= span["ts"] and span["ts"] + span["dur"] <= other["ts"] + other["dur"] + 1
