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


def test_an_alarm_of_the_script_goes_on() -> None:
    """A limit of an hour that a script had set was lost in `init`. Where there is none, none is left."""
    for seconds in (3600, 0):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with _short_sleeps():
            time.sleep(0.15)
        assert 0 <= seconds - signal.getitimer(signal.ITIMER_REAL)[0] < 100


@pytest.mark.mindspore
def test_mindspores_backend_of_another_device_is_refused_before_the_ranks_meet() -> None:
    """The default of `mint.distributed.init_process_group`: a script that went on to `init()` hung."""
    nobody: Any = None
    world: Any = SimpleNamespace(launcher="none", rank=0, size=2)
    init = join_through_store(nobody, nobody, world, nobody)
    with pytest.raises(RuntimeError, match=r"^MindSpore's backend on CPU is 'mccl', not 'hccl': call init\(\)$"):
        init("hccl")
