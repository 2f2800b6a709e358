"""How MindSpore's ranks meet: what is refused, and the alarm that cuts its sleeps short, but not a script's own."""

import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from unilaunch_mindspore.joining import _short_sleeps, join_through_store


@pytest.fixture(autouse=True)
def _own_alarm() -> Iterator[None]:
    """Give pytest's own alarm back."""
    handler, timer = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def test_the_alarm_ends_and_the_handler_is_the_script_s() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    with _short_sleeps():
        assert signal.getitimer(signal.ITIMER_REAL) != (0, 0)
        time.sleep(0.15)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert heard == []
    signal.raise_signal(signal.SIGALRM)
    assert heard == [signal.SIGALRM]


def test_an_alarm_of_the_script_goes_on() -> None:
    """A limit of an hour that a script had set was lost in `init`."""
    signal.setitimer(signal.ITIMER_REAL, 3600)
    with _short_sleeps():
        pass
    assert 3500 < signal.getitimer(signal.ITIMER_REAL)[0] <= 3600


@pytest.mark.mindspore
def test_mindspores_backend_of_another_device_is_refused_before_the_ranks_meet() -> None:
    """The default of `mint.distributed.init_process_group`: a script that went on to `init()` hung."""
    nobody: Any = None
    world: Any = SimpleNamespace(launcher="none", rank=0, size=2)
    init = join_through_store(nobody, nobody, world, nobody)
    with pytest.raises(RuntimeError, match=r"^MindSpore's backend on CPU is 'mccl', not 'hccl': call init\(\)$"):
        init("hccl")
