"""Checkpoints: whole or not there, and of one training."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from full_disk import refusal_without_space
from unilaunch.errors import InputError, SpecError
from unilaunch_gcn import checkpoint
from unilaunch_gcn.checkpoint import State, Writer
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.spec import GcnSpec

LAYERS = plan_layers(GcnSpec(hidden=3), 4, 2)
WEIGHTS = 4 * 3 + 3 * 2


def _state(epoch: int, num_losses: int = 2) -> State:
    numbers = np.full((3, WEIGHTS), 0.5, np.float32)
    return State(list(numbers), epoch, [0.5] * num_losses, [{"epoch": 1.0}], {"seed": 0, "lr": 0.01})


def _newest(folder: Path) -> tuple[State, list[str]]:
    state, damaged = checkpoint.newest(folder, LAYERS)
    assert state
    return state, damaged


@settings(max_examples=25, deadline=None)
@given(
    numbers=st.sampled_from([np.float32, np.float64]).flatmap(lambda kind: hnp.arrays(kind, (3, WEIGHTS))),
    losses=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5),
)
def test_what_was_saved_comes_back(numbers: np.ndarray, losses: list[float], tmp_path_factory) -> None:  # type: ignore[no-untyped-def, type-arg]  # noqa: ANN001
    """Bit for bit, of either precision."""
    folder = tmp_path_factory.mktemp("checkpoints")
    Writer(folder, LAYERS, 3).save(State(list(numbers), 7, losses, [], {"seed": 1}))
    state, damaged = _newest(folder)
    assert np.stack(state.numbers).tobytes() == numbers.tobytes()
    assert (state.epoch, list(state.losses), state.decided, damaged) == (7, losses, {"seed": 1}, [])


def test_only_a_writers_own_are_removed(tmp_path: Path) -> None:
    """The newest are kept; those of an earlier run stay, however few are to be kept. A digit more is newer."""
    for keep, epochs in ((3, (1, 2, 3, 4)), (1, (999_999, 1_000_000))):
        writer = Writer(tmp_path, LAYERS, keep)
        for epoch in epochs:
            writer.save(_state(epoch))
    assert _newest(tmp_path)[0].epoch == 1_000_000
    assert sorted(int(path.name[6:-12]) for path in tmp_path.iterdir()) == [2, 3, 4, 1_000_000]
    assert checkpoint.newest(tmp_path / "nowhere", LAYERS) == (None, [])


def test_a_damaged_or_edited_one_is_passed_over(tmp_path: Path) -> None:
    """Cut short anywhere, with any bit turned, or with another history: the one before it is taken; a line names it."""
    Writer(tmp_path, LAYERS, 3).save(_state(1))
    newer = Writer(tmp_path, LAYERS, 3).save(_state(2))
    whole = newer.read_bytes()
    broken = [whole[:length] for length in range(0, len(whole), 50)]
    broken += [whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :] for at in range(len(whole) - 1, 8, -37)]
    end = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:end])
    told = json.loads(header["__metadata__"]["unilaunch"])
    for edit in ({"epoch": 1}, {"losses": [0.5]}, {"decided": {"seed": 0, "lr": 0.1}}, {"format": told["format"] + 1}):
        header["__metadata__"]["unilaunch"] = json.dumps(told | edit)
        text = json.dumps(header).encode()
        broken.append(len(text).to_bytes(8, "little") + text + whole[end:])
    for content in broken:
        newer.write_bytes(content)
        state, damaged = _newest(tmp_path)
        assert (state.epoch, [newer.name in line for line in damaged]) == (1, [True])


def test_another_training_or_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not damaged: in one line, and it stays."""
    path = Writer(tmp_path, LAYERS, 3).save(_state(1))
    with pytest.raises(SpecError, match=r"with lr=0\.01, not 0\.1"):
        checkpoint.check(_newest(tmp_path)[0], {"seed": 0, "lr": 0.1}, tmp_path)
    with pytest.raises(SpecError, match="another network"):
        checkpoint.newest(tmp_path, LAYERS[:1])
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    with pytest.raises(InputError, match=r"^[^\n]*another version of unilaunch: [^\n]*$"):
        checkpoint.newest(tmp_path, LAYERS)
    assert path.exists()


def test_what_cannot_be_read_is_not_damaged(tmp_path: Path) -> None:
    """Any OSError is said, with the file; an older checkpoint is not taken instead."""
    Writer(tmp_path, LAYERS, 3).save(_state(1))
    newer = tmp_path / "epoch-000002.safetensors"
    newer.symlink_to("/proc/self/mem")  # it opens, and reading it is EIO, for root too
    for folder, words in ((tmp_path, f"{newer.name} cannot be read: Input/output"), (newer, "cannot be read: Not a")):
        with pytest.raises(InputError, match=words):
            checkpoint.newest(folder, LAYERS)


def test_a_full_disk_leaves_the_older_ones(tmp_path: Path) -> None:
    """And no half of the new one."""
    Writer(tmp_path, LAYERS, 3).save(_state(1))
    assert "cannot be written" in refusal_without_space(lambda: Writer(tmp_path, LAYERS, 3).save(_state(2)), 100)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-000001.safetensors"]


def test_kills_leave_one_that_loads(tmp_path: Path) -> None:
    """50 of the 1,000 of benchmarks/kills.py."""
    draw, begin = np.random.default_rng(0), 1
    for _ in range(50):
        writer = os.fork()
        if writer == 0:
            own = Writer(tmp_path, LAYERS, 2)
            for epoch in range(begin, 10**6):
                own.save(_state(epoch, epoch))
        deadline = time.monotonic() + 20
        while not any(int(path.name[6:12]) >= begin for path in tmp_path.glob("epoch-*")):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.01))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        state, damaged = checkpoint.newest(tmp_path, LAYERS)
        assert damaged == []
        begin = state.epoch + 1 if state else 1
    assert begin > 50
