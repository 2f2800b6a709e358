"""The curves of a run, and the comparison of two."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from unilaunch.look.charts import curve, largest_difference
from unilaunch.look.run_folder import Run

Rows = Sequence[dict[str, object]]


def _run(folder: Path, result: dict[str, object], events: Rows = (), *series: Rows) -> Run:
    """Return a run of the gcn with a result, the events of rank 0, and the series of each rank."""
    for rank, rows in enumerate(series or [()]):
        (folder / f"rank.{rank}").mkdir(parents=True)
        (folder / f"rank.{rank}" / "epochs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "rank.0" / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (folder / "result.json").write_text(json.dumps({"model": "gcn", **result}))
    return Run(folder)


def test_a_difference_has_no_sign(tmp_path: Path) -> None:
    """Whichever of the two runs is named first; epochs that only one has do not count."""
    losses = {"first": [3.0, 2.0, 1.0], "second": [3.5, 2.25], "none": []}
    first, second, none = (_run(tmp_path / name, {"loss": values}) for name, values in losses.items())
    for pair in ((first, second), (second, first)):
        largest, common = largest_difference(*pair, "loss")
        assert largest == pytest.approx(0.5)
        assert common == 2
    assert largest_difference(first, none, "loss") == (0.0, 0)


def test_a_curve_comes_from_the_result_or_else_from_the_ranks(tmp_path: Path) -> None:
    """A list of the result, objects of the result, the longest series file, events: the first that has points."""
    events: Rows = [{"epoch": 5, "loss": 0.5, "phase": None}, {"phase": "end"}]
    series: Sequence[Rows] = [[], [{"epoch": 1, "loss": 3.0}], [{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 2.0}]]
    rows = {"evaluations": [{"epoch": 10, "loss": 0.25}, {"epoch": 20, "loss": None}], "ranks": [{"loss": 7.0}]}
    assert curve(_run(tmp_path / "list", {"loss": [3.0, 2.0], **rows}, events), "loss") == {1: 3.0, 2: 2.0}
    assert curve(_run(tmp_path / "objects", {"loss": 0.25, **rows}, events), "loss") == {10: 0.25}
    assert curve(_run(tmp_path / "series", {}, events, *series), "loss") == {1: 3.0, 2: 2.0}
    assert curve(_run(tmp_path / "events", {}, events), "loss") == {5: 0.5}
    assert curve(_run(tmp_path / "events again", {}, events), "accuracy") == {}
