"""Networks in MindSpore in jobs: our own layers as PyG's in one process, and two ranks as one.

One start in each way runs all the programs: one rank, two over MPI, and three over sockets that are forked after the
import (`launch`), of which one has no edge while the others have a halo.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.conftest import find_launcher as _find
from jobs.mpirun import alone, one_start, unilaunch
from jobs.own_layers import LAYERS, PROGRAM, train_by_pyg, write_directed_graph
from jobs.own_models import differences

pytestmark = [pytest.mark.xdist_group("own mindspore"), pytest.mark.mindspore]

EPOCHS = 3
KINDS = [*LAYERS, "lonely"]
#: How the ranks are started, and how many.
STARTS = {"alone": 1, "openmpi-4.1": 2, "launch": 3}
#: It is run by these, before a seed is set.
RANKS = str(Path(__file__).parent / "programs" / "mindspore_ranks.py")
FEW = ("alone", "openmpi-4.1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two graphs."""
    folder = tmp_path_factory.mktemp("own")
    write_directed_graph(folder / "graph.npz")
    _write_two_communities(folder / "communities.npz")
    return folder


def _write_two_communities(file: Path) -> None:
    """Write a graph of two halves with few edges between them; one half has all training nodes."""
    draw = np.random.default_rng(5)
    half = np.arange(60) // 30
    ends = draw.integers(0, 30, (2, 400)) + 30 * (np.arange(400) % 2)
    ends = np.concatenate((ends, [[3, 33, 8, 38], [33, 3, 38, 8]]), axis=1)
    train = (half == 0) & (np.arange(60) % 3 == 0)
    np.savez(
        file, edge_index=ends, edge_attr=draw.random((404, 3)), x=0.5 + draw.random((60, 8)),
        y=draw.integers(0, 3, 60), train_mask=train, val_mask=np.arange(60) % 3 == 1, test_mask=np.arange(60) % 3 == 2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Any]:
    """What PyG makes of it in one process; the folder has the initial weights then."""
    expected = train_by_pyg(str(folder / "graph.npz"), folder, LAYERS, EPOCHS)
    return expected | {f"lonely.{name}": value for name, value in expected.items() if name.startswith("plain.")}


@pytest.fixture(scope="module")
def run(folder: Path, expected: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Start the programs in one of the ways; return the folder of what they leave."""
    assert expected  # the initial weights are written

    @cache
    def run(start: str) -> Path:
        left = tmp_path_factory.mktemp("left")
        programs = [[RANKS, str(folder / "communities.npz"), "ranks.npz"]] if start in FEW else []
        programs += [[PROGRAM, str(folder / "graph.npz"), str(folder), "out.npz", str(EPOCHS), *KINDS]]
        _start(start, one_start(programs, left) if len(programs) > 1 else programs[0], left)
        return left

    return run


def _start(start: str, program: list[str], folder: Path) -> None:
    if start == "alone":
        alone(program, folder).check()
    elif start == "launch":
        script, *words = program
        unilaunch(["launch", "--launcher", "direct", "-n", str(STARTS[start]), script, "--", *words], folder).check()
    else:
        _find(start.partition("-")[2]).run(STARTS[start], program, folder).check()


@pytest.mark.parametrize("start", STARTS)
def test_mindspore(start: str, run: Callable[[str], Path], expected: dict[str, Any]) -> None:
    """In every way, on 1, 2 and 3 parts, one of them without an edge, in float64."""
    for kind, apart in differences(run(start) / "out.npz", expected, KINDS).items():
        assert apart <= 1e-10, kind


def test_two_ranks_compute_what_one_computes(run: Callable[[str], Path]) -> None:
    """Losses, metrics, statistics, gradients of every type; of two ranks one has no training node."""
    one, two = (dict(np.load(run(start) / "ranks.npz")) for start in FEW)

    assert one.keys() == two.keys()
    for name, expected in one.items():
        limit = 2e-2 if "narrow" in name else 1e-5 if "normalised" in name else 1e-10
        np.testing.assert_allclose(two[name], expected, rtol=limit, atol=limit, err_msg=name)
        assert np.isfinite(expected).all(), name
