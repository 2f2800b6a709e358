"""A rank's work, as far as it shows without a framework."""

from unittest.mock import MagicMock

import pytest
import torch

from unilaunch.folder.failure import Cause, describe_exception
from unilaunch.interfaces.backend import Placement
from unilaunch.rank import work


@pytest.mark.parametrize(("device", "error", "words"), [
    (
        "cuda",
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which "
            "5.00 GiB is free. Including non-PyTorch memory, this process has 74.10 GiB memory in use."
        ),
        "Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 5.00 GiB is free: take more GPU",
    ),
    ("cpu", MemoryError("Unable to allocate 7.28 TiB"), "Unable to allocate 7.28 TiB: take more ranks on more hosts"),
])  # fmt: skip
def test_a_model_without_memory_is_one_line(
    device: str, error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a GPU as of the host: torch's error is no MemoryError; the rank, what could not be had, and what to do."""
    rank = MagicMock(world=MagicMock(rank=0, host="a"), placement=Placement(device, 0, 1))
    assert work._explain(error, rank) == (1, "")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("unilaunch: rank 0 on a: out of memory: ")
    assert words in line
    assert describe_exception(error, 1, {}).cause is Cause.OUT_OF_MEMORY
