"""Who started me: from captured environments, and from broken ones."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch import environments
from unilaunch.environments import alone, openmpi
from unilaunch.errors import EnvironmentMismatchError

CAPTURED = Path(__file__).parent / "captured"


def _captured(name: str) -> dict[str, str]:
    environ: dict[str, str] = json.loads((CAPTURED / f"{name}.json").read_text())
    return environ


@pytest.mark.parametrize(("name", "launcher"), [("openmpi-4.1.4", "Open MPI 4"), ("openmpi-5.0.11", "Open MPI 5")])
def test_captured_environment_is_read(name: str, launcher: str) -> None:
    """Rank 2 of 3 on one host, as each version says it."""
    found = environments.detect(_captured(name))
    assert (found.rank, found.size, found.local_rank, found.local_size) == (2, 3, 2, 3)
    assert found.launcher == launcher
    assert found.evidence[openmpi.RANK] == "2"
    assert found.run_id == f"openmpi-{_captured(name)['PMIX_NAMESPACE']}"


def test_no_launcher_is_the_only_rank() -> None:
    """An empty environment is world size 1."""
    found = environments.detect({"PATH": "/bin"})
    assert (found.rank, found.size, found.launcher) == (0, 1, "none")


@given(
    st.sets(
        st.sampled_from([openmpi.RANK, openmpi.SIZE, openmpi.LOCAL_RANK, openmpi.LOCAL_SIZE]), min_size=1, max_size=3
    )
)
def test_half_an_environment_is_refused(missing: set[str]) -> None:
    """What is there and what is not are both named; never rank 0 of 1."""
    environ = {name: value for name, value in _captured("openmpi-5.0.11").items() if name not in missing}
    with pytest.raises(EnvironmentMismatchError) as refusal:
        environments.detect(environ)
    assert all(name in str(refusal.value) for name in missing)


@pytest.mark.parametrize(
    ("name", "value"),
    [(openmpi.RANK, "three"), (openmpi.RANK, "-1"), (openmpi.RANK, "3"), (openmpi.SIZE, ""), (openmpi.SIZE, "2")],
)
def test_nonsense_is_refused(name: str, value: str) -> None:
    """A number that is none, or a rank that is not below the size."""
    with pytest.raises(EnvironmentMismatchError, match=name):
        environments.detect(_captured("openmpi-4.1.4") | {name: value})


@pytest.mark.parametrize(
    "name",
    [
        "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_NRANKS", "FLUX_JOB_SIZE", "WORLD_SIZE",
        "MS_WORKER_NUM",
    ],
)  # fmt: skip
def test_other_launchers_ranks_are_not_run_alone(name: str) -> None:
    """A launcher that cannot be read yet and says more than one rank is an error that names the variable."""
    with pytest.raises(EnvironmentMismatchError, match=f"{name}=4"):
        environments.detect({name: "4"})
    assert environments.detect({name: "1"}).size == 1


@given(st.data())
def test_numbers_are_what_the_variables_say(data: st.DataObject) -> None:
    """For any rank of any job; an allocation's variables around it change nothing: mpirun is the innermost."""
    size = data.draw(st.integers(1, 10**6))
    rank, local_size = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    local_rank = data.draw(st.integers(0, local_size - 1))
    around = data.draw(st.dictionaries(st.sampled_from([*alone.SIZE_VARIABLES, "SLURM_NTASKS"]), st.just("7")))
    names = (openmpi.RANK, openmpi.SIZE, openmpi.LOCAL_RANK, openmpi.LOCAL_SIZE)
    numbers = (rank, size, local_rank, local_size)
    found = environments.detect(around | dict(zip(names, map(str, numbers), strict=True)))
    assert (found.rank, found.size, found.local_rank, found.local_size) == numbers


@given(st.text(st.characters(exclude_categories=["Cs", "Nd"])), st.sampled_from([openmpi.RANK, openmpi.SIZE]))
def test_what_is_no_number_is_refused(text: str, name: str) -> None:
    """Never a traceback, never a rank."""
    environ = _captured("openmpi-5.0.11") | {name: text}
    with pytest.raises(EnvironmentMismatchError, match="makes no sense"):
        environments.detect(environ)


@pytest.mark.parametrize("text", ["many", "", "-3", "1.0"])
def test_a_foreign_size_that_is_no_number_is_not_world_size_1(text: str) -> None:
    """It is no 1."""
    with pytest.raises(EnvironmentMismatchError, match="WORLD_SIZE="):
        environments.detect({"WORLD_SIZE": text})


def test_an_sbatch_script_is_the_only_rank() -> None:
    """SLURM_NTASKS is the allocation's; the step's number is what makes a process one of several."""
    assert environments.detect({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "3"}).size == 1
