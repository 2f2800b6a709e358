"""What the page shows of models that name their figures, of one that names none, and of one that is not installed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unilaunch.folder.files import last_lines
from unilaunch.look.charts import curve, largest_difference
from unilaunch.look.report import make_page
from unilaunch.look.run_folder import Run

Rows = Sequence[dict[str, Any]]
HEADING = {"backend": "numpy", "world_size": 1, "seed": 12345, "versions": {"numpy": "2.1"}}


def _run(folder: Path, result: dict[str, Any] | None, events: Rows = (), *series: Rows, target: str = "gcn") -> Run:
    """Return a run with a result, the events of rank 0, and the series of each rank."""
    for rank, rows in enumerate(series or [()]):
        (folder / f"rank.{rank}").mkdir(parents=True)
        (folder / f"rank.{rank}" / "epochs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "rank.0" / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    spec = {"target": target, "seed": 12345} | ({} if target.endswith(".py") else {"options": {}})
    (folder / "spec.json").write_text(json.dumps(spec))
    if result is not None:
        (folder / "result.json").write_text(json.dumps({"model": target, **HEADING, **result}))
    return Run(folder)


def test_a_difference_has_no_sign(tmp_path: Path) -> None:
    """Whichever of the two runs is named first; epochs that only one has do not count."""
    losses = {"first": [3.0, 2.0, 1.0], "second": [3.5, 2.25], "none": []}
    first, second, none = (_run(tmp_path / name, {"loss": values}) for name, values in losses.items())
    for pair in ((first, second), (second, first)):
        assert largest_difference(*pair, "loss") == (0.5, 2)
    assert largest_difference(first, none, "loss") == (0.0, 0)


def test_a_curve_comes_from_the_result_or_else_from_the_ranks(tmp_path: Path) -> None:
    """A list of the result, objects of the result, the longest series file, events: the first that has points."""
    events: Rows = [{"epoch": 5, "loss": 0.5, "phase": None}, {"phase": "end"}]
    series: Sequence[Rows] = [[], [{"epoch": 1, "loss": 3.0}], [{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 2.0}]]
    rows = {"evaluations": [{"epoch": 10, "loss": 0.25}, {"epoch": 20, "loss": None}], "ranks": [{"loss": 7.0}]}
    assert curve(_run(tmp_path / "list", {"loss": [3.0, 2.0], **rows}, events), "loss") == {1: 3.0, 2: 2.0}
    assert curve(_run(tmp_path / "objects", {"loss": 0.25, **rows}, events), "loss") == {10: 0.25}
    assert curve(_run(tmp_path / "series", {}, events, *series), "loss") == {1: 3.0, 2: 2.0}
    assert curve(run := _run(tmp_path / "events", {}, events), "loss") == {5: 0.5}
    assert curve(run, "accuracy") == {}


@pytest.mark.parametrize(("target", "result", "shown", "hidden"), [
    # The losses come from the result, the accuracies from events: MNIST keeps no rows of them in its result.
    ("mnist", {"loss": [0.5, 0.25], "num_train": 60_000, "test_accuracy": 0.925},
     ["<h2>Loss</h2>", "<h2>Test accuracy</h2>", "<td>60,000</td>", "<td>92.50%</td>"], ["<h2>Epochs</h2>"]),
    # Of a model that is not installed under their own names; one line says why there are no curves.
    ("absent", {"num_things": 7_000, "ranks": 3, "is_good": True},
     ["no curves: no model &#39;absent&#39;; installed: ", "<th>num things</th><td>7,000</td>",
      "<th>ranks</th><td>3</td>", "<th>is good</th><td>True</td>"], []),
    ("absent", None, ["no curves: no model &#39;absent&#39;; installed: "], ["<th>num things</th>"]),
    ("train.py", None, ["straggler: rank 0"], ["no curves"]),  # a program has none
])  # fmt: skip
def test_the_figures_of_models(target: str, result: Any, shown: list[str], hidden: list[str], tmp_path: Path) -> None:
    events: Rows = [
        {"epoch": 1, "test_accuracy": 0.9}, {"epoch": 2, "test_accuracy": 0.9}, {"phase": "end", "exit_code": 75},
        {"straggler": 0, "host": "node0", "factor": "x"}, {"straggler": 0, "host": "node0", "factor": 1.5, "steps": 20},
    ]  # fmt: skip
    page = make_page([_run(tmp_path, result, events, target=target)])
    assert [words for words in [*shown, "<td>12345</td>", "<td>ended, exit code 75</td>"] if words not in page] == []
    assert [words for words in hidden if words in page] == []


def test_what_a_rank_wrote_is_shown_as_a_person_saw_it(tmp_path: Path) -> None:
    """A progress bar as its last state, beside the lines before it; without the codes of colours."""
    (tmp_path / "rank.0").mkdir()
    bar = "".join(f"\r{percent:3}% |####|" for percent in range(101))
    (tmp_path / "rank.0" / "stderr").write_text(f"\x1b[31m12:00 WARNING red\x1b[0m\nloaded\n{bar}\nsaved\r\n\n")
    assert last_lines(tmp_path / "rank.0" / "stderr", 4) == ["loaded", "100% |####|", "saved", ""]
    (tmp_path / "spec.json").write_text("{}")
    page = make_page([Run(tmp_path)])
    assert "<pre>12:00 WARNING red</pre>" in page
    assert "<pre>12:00 WARNING red\nloaded\n100% |####|\nsaved\n</pre>" in page
