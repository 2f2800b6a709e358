"""What the page shows of models that name their figures, of one that names none, and of one that is not installed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from unilaunch.folder.files import last_lines
from unilaunch.look.drawing import Chart, Curve
from unilaunch.look.report import make_page
from unilaunch.look.run_folder import Run

HEADING = {"backend": "numpy", "world_size": 1, "seed": 12345, "versions": {"numpy": "2.1"}}


def _page(folder: Path, spec: dict[str, Any], result: dict[str, Any] | None, events: list[dict[str, Any]]) -> str:
    (folder / "rank.0").mkdir()
    (folder / "rank.0" / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (folder / "spec.json").write_text(json.dumps(spec))
    if result is not None:
        (folder / "result.json").write_text(json.dumps(HEADING | result))
    page = make_page([Run(folder)])
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_a_model_names_its_figures_and_curves(tmp_path: Path) -> None:
    """The losses come from the result, the accuracies from events: MNIST keeps no rows of them in its result."""
    result = {"model": "mnist", "loss": [0.5, 0.25], "num_train": 60_000, "test_accuracy": 0.925}
    events = [{"epoch": epoch, "test_accuracy": 0.9} for epoch in (1, 2)]
    page = _page(tmp_path, {"target": "mnist", "options": {"epochs": 2}}, result, events)
    for words in ("<h2>Loss</h2>", "<h2>Test accuracy</h2>", "<td>60,000</td>", "<td>92.50%</td>", "<td>12345</td>"):
        assert words in page
    assert "<h2>Epochs</h2>" not in page


def test_a_damaged_straggler_costs_only_itself(tmp_path: Path) -> None:
    """The others are named."""
    whole = {"straggler": 0, "host": "node0", "factor": 1.5, "steps": 20}
    end = {"time": 1.0, "phase": "end", "exit_code": 75}  # it has saved, and asks to go on
    page = _page(tmp_path, {"target": "train.py"}, None, [whole | {"factor": "x"}, whole, end])
    assert page.count("straggler: rank 0") == 1
    assert "<td>ended, exit code 75</td>" in page
    assert "shows no curves" not in page  # a program has none


@pytest.mark.parametrize("result", [{"model": "absent", "num_things": 7_000, "ranks": 3, "is_good": True}, None])
def test_of_a_model_that_is_not_installed_the_figures_are_shown(tmp_path: Path, result: dict[str, Any] | None) -> None:
    """Under their own names; one line says why there are no curves."""
    page = _page(tmp_path, {"target": "absent", "seed": 12345, "options": {}}, result, [])
    assert len(re.findall("the page shows no curves: no model &#39;absent&#39;; installed: ", page)) == 1
    assert "<td>12345</td>" in page
    for shown in ("<th>num things</th><td>7,000</td>", "<th>ranks</th><td>3</td>", "<th>is good</th><td>True</td>"):
        assert (shown in page) == (result is not None)


def test_what_a_rank_wrote_is_shown_as_a_person_saw_it(tmp_path: Path) -> None:
    """A progress bar as its last state, beside the lines before it; without the codes of colours."""
    (tmp_path / "rank.0").mkdir()
    bar = "".join(f"\r{percent:3}% |####|" for percent in range(101))
    (tmp_path / "rank.0" / "stderr").write_text(f"\x1b[31m12:00 WARNING red\x1b[0m\nloaded\n{bar}\nsaved\r\n\n")
    assert last_lines(tmp_path / "rank.0" / "stderr", 4) == ["loaded", "100% |####|", "saved", ""]
    assert last_lines(tmp_path / "rank.0" / "none", 4) == []
    (tmp_path / "spec.json").write_text("{}")
    page = make_page([Run(tmp_path)])
    assert "<pre>12:00 WARNING red</pre>" in page
    assert "<pre>12:00 WARNING red\nloaded\n100% |####|\nsaved\n</pre>" in page


@pytest.mark.parametrize("span", [
    (0.69310, 0.69316), (1e6, 1e6 + 50), (1e-7, 5e-7), (-1.2, 3.0), (0.0, 5e-324), (-1.7e308, 1.7e308),
])  # fmt: skip
def test_ticks_differ_from_their_neighbours(span: tuple[float, float]) -> None:
    """A loss that hardly falls has an axis too."""
    drawing = Chart("t", "epoch", "loss", [Curve("", dict(enumerate(span, 1)))]).draw()
    across = Chart("t", "epoch", "loss", [Curve("", {span[0]: 1.0, span[1]: 2.0})]).draw()
    for drawn in (drawing.y_ticks, across.x_ticks):
        assert len({tick.text for tick in drawn}) == len(drawn) > 1
