"""Checkpoints: whole or not there, and of one training."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from unilaunch.errors import OutputError, SpecError
from unilaunch_gcn import checkpoint
from unilaunch_gcn.checkpoint import State
from unilaunch_gcn.layers import Layer, plan_layers
from unilaunch_gcn.spec import GcnSpec

LAYERS: list[Layer] = plan_layers(GcnSpec(hidden=3), 4, 2)
WEIGHTS = 4 * 3 + 3 * 2


def _state(epoch: int, value: float = 0.5) -> State:
    numbers = np.full((3, WEIGHTS), value, np.float32)
    return State(numbers, epoch, [value] * epoch, [{"epoch": 1.0}], {"seed": 0, "lr": 0.01})


@settings(max_examples=25, deadline=None)
@given(
    numbers=st.sampled_from([np.float32, np.float64]).flatmap(lambda kind: hnp.arrays(kind, (3, WEIGHTS))),
    losses=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5),
)
def test_what_was_saved_comes_back(numbers: np.ndarray, losses: list[float], tmp_path_factory) -> None:  # type: ignore[no-untyped-def, type-arg]  # noqa: ANN001
    """Bit for bit, of either precision."""
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoint.save(folder, State(numbers, 7, losses, [], {"seed": 1}), LAYERS, 3)
    state, damaged = checkpoint.newest(folder, LAYERS)
    assert state
    assert state.numbers.tobytes() == numbers.tobytes()
    assert (state.epoch, list(state.losses), state.decided, damaged) == (7, losses, {"seed": 1}, [])


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for epoch in range(1, 12):
        checkpoint.save(tmp_path, _state(epoch), LAYERS, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"epoch-{epoch:06}.safetensors" for epoch in (9, 10, 11)
    ]


def test_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    """Cut short anywhere, or with any bit turned: the one before it is taken, and the damaged one is named."""
    checkpoint.save(tmp_path, _state(1), LAYERS, 3)
    newer = checkpoint.save(tmp_path, _state(2, 0.25), LAYERS, 3)
    whole = newer.read_bytes()
    broken = [whole[:length] for length in range(0, len(whole), 50)]
    broken += [
        whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :] for place in range(len(whole) - 1, 8, -37)
    ]
    for content in broken:
        newer.write_bytes(content)
        state, damaged = checkpoint.newest(tmp_path, LAYERS)
        assert state
        if damaged:
            assert state.epoch == 1
            assert newer.name in damaged[0]
        else:  # a letter of a name that nobody reads
            assert state.numbers.tobytes() == _state(2, 0.25).numbers.tobytes()


def test_another_training_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, _state(1), LAYERS, 3)
    state, _ = checkpoint.newest(tmp_path, LAYERS)
    assert state
    with pytest.raises(SpecError, match=r"with lr=0\.01, not 0\.1"):
        checkpoint.check(state, {"seed": 0, "lr": 0.1}, tmp_path)
    with pytest.raises(SpecError, match="another network"):
        checkpoint.newest(tmp_path, LAYERS[:1])


def test_none_is_none(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "nowhere", LAYERS) == (None, [])


def test_a_full_disk_leaves_the_older_ones(tmp_path: Path) -> None:
    """And no half of the new one."""
    checkpoint.save(tmp_path, _state(1), LAYERS, 3)
    if os.fork() == 0:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            checkpoint.save(tmp_path, _state(2), LAYERS, 3)
        except OutputError as error:
            os._exit(3 if "cannot be written" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-000001.safetensors"]


def test_kills_leave_one_that_loads(tmp_path: Path) -> None:
    """50 of the 1,000 of benchmarks/kills.py."""
    draw = np.random.default_rng(0)
    begin = 1
    for _ in range(50):
        writer = os.fork()
        if writer == 0:
            for epoch in range(begin, 10**6):
                checkpoint.save(tmp_path, _state(epoch), LAYERS, 2)
        time.sleep(draw.uniform(0.002, 0.02))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        state, damaged = checkpoint.newest(tmp_path, LAYERS)
        assert damaged == []
        begin = state.epoch + 1 if state else 1
    assert begin > 50
