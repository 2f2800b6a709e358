"""What explain shows, without a launcher."""

import pytest

from unilaunch.look.explain import explain
from unilaunch.spec.run_spec import RunSpec


def test_exported_variables_are_shown_as_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Each framework's list says which of its variables the user has set, and with which value."""
    assert explain(RunSpec(), {"OMP_NUM_THREADS": "7", "MASTER_ADDR": "elsewhere"}) == 0
    shown = capsys.readouterr().out
    torch = shown.partition("torch would find\n")[2].partition(" would find\n")[0]
    assert "OMP_NUM_THREADS=7  (exported: left as it is)" in torch
    assert "MASTER_ADDR=elsewhere  (exported: left as it is)" in torch
    assert "MKL_NUM_THREADS=7\n" in torch  # of OMP_NUM_THREADS, and not exported itself


def test_what_only_all_ranks_know_is_not_made_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of four ranks are here: who else shares the cores, and how many hosts there are, nobody has told yet."""
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    environ = {f"OMPI_COMM_WORLD_{name}": value for name, value in zip(names, "0402", strict=True)}
    assert explain(RunSpec(), environ) == 0
    shown = capsys.readouterr().out
    for line in ("GROUP_WORLD_SIZE=(agreed on", "OMP_NUM_THREADS=(agreed on", "LOCAL_WORLD_SIZE=2", "WORLD_SIZE=4"):
        assert line in shown
    explain(RunSpec(threads=3), environ | {"OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS=3\n" in capsys.readouterr().out


@pytest.mark.parametrize(("environ", "way"), [
    ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "0"}, "MPI, as the launcher has no store"),
    ({"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "a file that only you can read"),
])  # fmt: skip
def test_how_ranks_find_each_other(environ: dict[str, str], way: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is really used."""
    explain(RunSpec(), environ)
    assert f"find each other through {way}" in capsys.readouterr().out
