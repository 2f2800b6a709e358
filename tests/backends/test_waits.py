"""Which waits of a program with PyTorch are measured. That they find stragglers is in tests/jobs/test_looking_in.py.

No GPU is here: what torch answers where its ranks meet on devices is given, and its collective is that of one process.
"""

from pathlib import Path
from unittest.mock import create_autospec

import pytest
import torch
from torch import distributed

from unilaunch_torch.waits import Sampling, measure_waits


class _Noted:
    """Appends what it is told."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def begin_wait(self) -> None:
        self.events.append("begin")

    def drop_wait(self) -> None:
        self.events.append("dropped")

    def end_wait(self, seconds: float | None) -> None:
        self.events.append("not measured" if seconds is None else f"measured {seconds >= 0}")


@pytest.mark.parametrize(("backends", "is_measured"), [("cpu:gloo", True), ("cuda:nccl", False)])
def test_a_program_whose_waits_cannot_be_measured_is_told(
    backends: str,
    *,
    is_measured: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Once; and its waits count as not measured."""
    asked = create_autospec(distributed.get_backend_config, return_value=backends)
    monkeypatch.setattr(distributed, "get_backend_config", asked)
    monkeypatch.setattr(distributed.Work, "wait", distributed.Work.wait)  # the old one comes back after the test
    noted: list[str] = []
    measure_waits(distributed, _Noted(noted), Sampling())
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for _ in range(3):
            distributed.all_reduce(torch.ones(2))
    finally:
        distributed.destroy_process_group()
    assert noted == ["begin", "measured True" if is_measured else "not measured"] * 3
    assert capsys.readouterr().err.count("unilaunch: slow ranks (stragglers) will not be named: ") == (not is_measured)
    asked.assert_called_once_with()
