"""What explain shows, without a launcher."""

import time

import pytest

from unilaunch.explain import explain


def test_exported_variables_are_shown_as_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Each framework's list says which of its variables the user has set, and with which value."""
    assert explain({"OMP_NUM_THREADS": "7", "MASTER_ADDR": "elsewhere"}, time.monotonic()) == 0
    shown = capsys.readouterr().out
    torch = shown.partition("torch would find\n")[2].partition(" would find\n")[0]
    assert "OMP_NUM_THREADS=7  (exported: left as it is)" in torch
    assert "MASTER_ADDR=elsewhere  (exported: left as it is)" in torch
    assert "MKL_NUM_THREADS=" in torch
    assert "MKL_NUM_THREADS=7" not in torch
