"""A rank's work, as far as it shows without a framework."""

from unittest.mock import MagicMock, create_autospec

import pytest

from unilaunch.backend import Backend
from unilaunch.model import Model
from unilaunch.rank import work


def test_communication_is_ended_after_success_only() -> None:
    """An error holds the frames that hold a recorded CUDA graph, and NCCL's end would wait for that graph for ever."""
    backend, model = create_autospec(Backend, instance=True), create_autospec(Model, instance=True)
    model.name, model.stops_patiently = "gcn", False
    model.run.side_effect = ValueError("broken")
    rank = MagicMock(world=MagicMock(rank=1, size=1))
    with pytest.raises(ValueError, match="broken"):
        work._run_model(rank, model, backend, None)
    backend.stop.assert_not_called()

    model.run.side_effect = None
    model.run.return_value = {"loss": 1.0}
    work._run_model(rank, model, backend, None)
    backend.stop.assert_called_once_with()
