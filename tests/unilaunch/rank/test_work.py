"""A rank's work, as far as it shows without a framework."""

import signal
from unittest.mock import MagicMock, create_autospec

import pytest
import torch

from unilaunch.folder.failure import Cause, describe_exception
from unilaunch.interfaces.backend import Backend, Placement
from unilaunch.interfaces.model import Model
from unilaunch.rank import work
from unilaunch.rank.identity import Rank


def test_communication_is_ended_after_success_only() -> None:
    """An error holds the frames that hold a recorded CUDA graph, and NCCL's end would wait for that graph for ever."""
    backend, model = create_autospec(Backend, instance=True), create_autospec(Model, instance=True)
    model.name, model.stops_patiently, backend.name = "gcn", False, "torch"
    model.run.side_effect = ValueError("broken")
    rank = MagicMock(world=MagicMock(rank=1, size=1))
    with pytest.raises(ValueError, match="broken"):
        work._run_model(rank, model, backend, None)
    backend.stop.assert_not_called()

    model.run.side_effect = None
    model.run.return_value = {"loss": 1.0}
    work._run_model(rank, model, backend, None)
    backend.stop.assert_called_once_with()


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


def test_what_a_signal_handler_raises_meanwhile_is_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does when a worker of a DataLoader has died, whose connection this rank has lost just before."""
    worker = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    told = create_autospec(work._send_once, side_effect=[worker, 1])
    monkeypatch.setattr(work, "_send_once", told)
    before = signal.getsignal(signal.SIGCHLD)
    try:
        assert work._send_failure(ConnectionResetError("reset"), create_autospec(Rank, instance=True)) == 1
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert told.call_args.args[0] is worker
