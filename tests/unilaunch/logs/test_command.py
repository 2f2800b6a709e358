"""The options of `unilaunch logs`."""

import time

import pytest

from unilaunch.logs.command import _since

DAY = 86400.0


def test_a_time_of_day_is_the_last_one() -> None:
    """Today's if it has passed, or else yesterday's."""
    now = time.time()
    for text in ("00:00", "23:59:59.9", time.strftime("%H:%M:%S", time.localtime(now))):
        assert now - DAY - 3601 <= _since(text) <= time.time()  # 3600: the clock may have been changed


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("2h ago", 7200), ("1.5d", 1.5 * DAY)])
def test_a_duration_is_counted_from_now(text: str, seconds: float) -> None:
    assert abs(time.time() - seconds - _since(text)) < 5
