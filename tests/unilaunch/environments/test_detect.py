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


@pytest.mark.parametrize("name", alone.SIZE_VARIABLES)
def test_other_launchers_ranks_are_not_run_alone(name: str) -> None:
    """A launcher that cannot be read yet and says more than one rank is an error that names the variable."""
    with pytest.raises(EnvironmentMismatchError, match=f"{name}=4"):
        environments.detect({name: "4"})
    assert environments.detect({name: "1"}).size == 1
