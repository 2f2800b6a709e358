"""The curves of a run, and the comparison of two."""

import pytest

from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.look.charts import curve, largest_difference
from unilaunch.look.run_folder import Event, RankRun, Result, Run

LAYOUT = ReportLayout(step="epoch", series="epochs.jsonl")


def _run(result: dict[str, object], *ranks: RankRun) -> Run:
    return Run("gcn", LAYOUT, "", {}, Result.model_validate(result), None, list(ranks))


def _losses(*losses: float) -> Run:
    return _run({"loss": list(losses)})


def test_a_difference_has_no_sign() -> None:
    """Whichever of the two runs is named first; epochs that only one has do not count."""
    first, second = _losses(3.0, 2.0, 1.0), _losses(3.5, 2.25)
    for pair in ((first, second), (second, first)):
        largest, common = largest_difference(*pair, "loss")
        assert largest == pytest.approx(0.5)
        assert common == 2
    assert largest_difference(first, _losses(), "loss") == (0.0, 0)


def test_a_curve_comes_from_the_result_or_else_from_the_ranks() -> None:
    """A list of the result, objects of the result, the longest series file, events: the first that has points."""
    events = [Event.model_validate({"epoch": 5, "loss": 0.5, "phase": None}), Event(phase="end")]
    noted = RankRun(0, "a", "cpu", None, events=events)
    short = RankRun(1, "a", "cpu", None, series=[{"epoch": 1, "loss": 3.0}])
    long = RankRun(2, "a", "cpu", None, series=[{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 2.0}])
    rows = {"evaluations": [{"epoch": 10, "loss": 0.25}, {"epoch": 20, "loss": None}], "ranks": [{"loss": 7.0}]}
    assert curve(_run({"loss": [3.0, 2.0], **rows}, noted), "loss") == {1: 3.0, 2: 2.0}
    assert curve(_run({"loss": 0.25, **rows}, noted), "loss") == {10: 0.25}
    assert curve(_run({}, noted, short, long), "loss") == {1: 3.0, 2: 2.0}
    assert curve(_run({}, noted), "loss") == {5: 0.5}
    assert curve(_run({}, noted), "accuracy") == {}
