"""What is said of two runs."""

import pytest

from unilaunch.report.reading import Result, Run
from unilaunch.report.series import largest_difference


def _run(*losses: float) -> Run:
    return Run("gcn", {}, Result(loss=list(losses)), None, [])


def test_a_difference_has_no_sign() -> None:
    """Whichever of the two runs is named first; epochs that only one has do not count."""
    first, second = _run(3.0, 2.0, 1.0), _run(3.5, 2.25)
    for pair in ((first, second), (second, first)):
        largest, common = largest_difference(*pair)
        assert largest == pytest.approx(0.5)
        assert common == 2
    assert largest_difference(first, _run()) == (0.0, 0)
