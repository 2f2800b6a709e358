"""A user's own networks in a script: the numbers of PyG alone, on every way by which ranks speak; mistakes are told.

Torch over MPI, over sockets, over torch's own group, and with nobody; the launchers change no arithmetic, so `launch`
alone has every kind of layer. One start in each way runs all of MindSpore's programs.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import own_layers, own_models
from jobs.coming_from import VARIABLES, write_program
from jobs.conftest import find_launcher
from jobs.mpirun import Launcher, alone, finish, one_start

pytestmark = pytest.mark.xdist_group("own networks")

HERE = Path(__file__).parent
DOCS, PROGRAMS, BIN = HERE.parents[1] / "docs", HERE / "programs", Path(sys.executable).parent
EPOCHS = 4
DIRECT = "unilaunch launch --launcher direct -n 3"
#: How ranks are started without MPI, and the cases; DistributedDataParallel averages where others add.
STARTS = {
    DIRECT: (*own_models.KINDS, "gat+accumulated"),
    "torchrun --nproc-per-node 2": ("sage+ddp",),
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directed graph with loops, duplicates, nodes without an edge, and few training nodes."""
    file = tmp_path_factory.mktemp("own") / "graph.npz"
    own_layers.write_directed_graph(file)
    return file


@pytest.fixture(scope="module")
def check(graph: Path) -> Callable[..., None]:
    """Compare what the cases have left in a folder with PyG alone."""
    expected = own_models.train_by_pyg(str(graph), graph.parent, own_models.KINDS, EPOCHS)

    def check(folder: Path, *cases: str) -> None:
        apart = own_models.differences(folder / "found.npz", expected, cases)
        assert max(apart.values()) <= 1e-10, apart

    return check


def _line(graph: Path, *cases: str) -> list[str]:
    return [own_models.PROGRAM, str(graph), str(graph.parent), "found.npz", str(EPOCHS), *cases]


def test_torch_under_a_bare_mpirun(
    openmpi5: Launcher, cora: Path, graph: Path, check: Callable[..., None], tmp_path: Path
) -> None:
    """`mpirun python train.py`, over MPI: docs/start/pyg.md and docs/graph-layers.md, then attention."""
    pages = [(DOCS / page).read_text() for page in ("start/pyg.md", "graph-layers.md")]
    first, layers = (re.findall(r"```python\n(.*?)```", page, re.DOTALL) for page in pages)
    (tmp_path / "train.py").write_text("".join(first[:1] + layers))
    program = one_start([["train.py"], _line(graph, "gat")], tmp_path)
    job = openmpi5.run(2, program, tmp_path, variables={"UNILAUNCH_DATA": str(cora)}).check()
    check(tmp_path, "gat")
    (accuracy,) = re.findall(r"^loss 0\.\d+, test accuracy (.*)$", job.stdout, re.MULTILINE)
    assert float(accuracy) > 0.7
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 1 + 2708
    assert np.load(tmp_path / "scores.npz")["scores"].shape == (2708, 7)


@pytest.mark.parametrize("start", STARTS)
def test_torch_over_sockets(start: str, graph: Path, check: Callable[..., None], tmp_path: Path) -> None:
    program, *options = start.split()
    finish([str(BIN / program), *options, *_line(graph, *STARTS[start])], tmp_path, None).check()
    check(tmp_path, *STARTS[start])


def test_torch_under_no_launcher(graph: Path, check: Callable[..., None], tmp_path: Path) -> None:
    """`python train.py`: one rank. In the same process, before it, the lines of a table of docs/graphs.md."""
    programs = [write_program(tmp_path), _line(graph, "sage")]
    assert "From DGL has run\n" in alone(one_start(programs, tmp_path), tmp_path, VARIABLES).check().stdout
    check(tmp_path, "sage")


def _halves() -> dict[str, Any]:
    """Return a graph of two halves with few edges between them; one half has all training nodes."""
    draw, node = np.random.default_rng(5), np.arange(60)
    ends = draw.integers(0, 30, (2, 400)) + 30 * (np.arange(400) % 2)
    return {
        "edge_index": np.concatenate((ends, [[3, 33, 8, 38], [33, 3, 38, 8]]), axis=1),
        "edge_attr": draw.random((404, 3)), "x": 0.5 + draw.random((60, 8)), "y": draw.integers(0, 3, 60),
        "train_mask": (node < 30) & (node % 3 == 0), "val_mask": node % 3 == 1, "test_mask": node % 3 == 2,
    }  # fmt: skip


@pytest.mark.mindspore
def test_mindspore(graph: Path, tmp_path: Path) -> None:
    """Alone, on two ranks over MPI and on three that are forked, of which one has no edge while others have a halo.

    Our own layers are PyG's; losses, metrics, statistics and gradients of every type are on two ranks those of one.
    """
    np.savez(tmp_path / "halves.npz", **_halves())
    expected = own_layers.train_by_pyg(str(graph), graph.parent, own_layers.LAYERS, EPOCHS)
    expected |= {f"lonely.{name}": expected[name] for name in expected if name.startswith("plain.")}
    kinds = [*own_layers.LAYERS, "lonely"]
    first = [str(PROGRAMS / "mindspore_ranks.py"), str(tmp_path / "halves.npz"), "ranks.npz"]  # before a seed is set
    second = [own_layers.PROGRAM, str(graph), str(graph.parent), "out.npz", str(EPOCHS), *kinds]
    of_ranks = {}
    for ranks in (1, 2, 3):
        (folder := tmp_path / str(ranks)).mkdir()
        line = one_start([first, second][ranks == 3 :], folder)
        if ranks == 2:
            find_launcher("4.1").run(2, line, folder).check()
        else:
            alone([*["-m", *DIRECT.split()] * (ranks == 3), *line], folder).check()
        apart = own_models.differences(folder / "out.npz", expected, kinds)
        assert max(apart.values()) <= 1e-10, (ranks, apart)
        of_ranks[ranks] = dict(np.load(folder / "ranks.npz")) if ranks < 3 else {}
    assert of_ranks[1].keys() == of_ranks[2].keys()
    for name, value in of_ranks[1].items():
        limit = 2e-2 if "narrow" in name else 1e-5 if "normalised" in name else 1e-10
        np.testing.assert_allclose(of_ranks[2][name], value, rtol=limit, atol=limit, err_msg=name)
        assert np.isfinite(value).all(), name


#: Mistakes of a first network: without a word it would train, and its numbers would be wrong. What each line names.
TOLD = {
    "none": "nothing", "no sum_gradients": "sum_gradients", "another start": "first weights",
    "another rate": "learning rates", "steps on rank 0": "weights of GCN differ", "another state": "loaded states",
    "a mean of a mean": "reduction='sum'", "a mean by hand": "reduction='sum'", "a smooth mean": "reduction='sum'",
    "a mean and a penalty": "reduction='sum'", "own scale": "a rank's own rows", "own class weights": "torch.bincount",
    "own count": "part.num_train", "class weights": "nothing", "rows of length 1": "nothing",
    "dropout of the features": "nothing",
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_mistake_is_told_on_all_ranks(ranks: int, tmp_path: Path) -> None:
    """One rank has no other weights than its own."""
    launch = ["-m", "unilaunch", "launch", "-n", str(ranks), "--console", "all"]
    job = alone([*launch, str(PROGRAMS / "own_mistakes.py")], tmp_path).check()
    for line in ("no loss came from ug.torch.mean", "dropout (p = 0.25) of part.x", "ug.torch.gather(out, part)"):
        assert job.stderr.count(line) == ranks - 1, line
    told = dict(re.findall(r"(\d: [^:]+): (.*)", job.stdout))
    assert len(told) == ranks * len(TOLD)
    for name, words in TOLD.items():
        expected = words if ranks > 1 or "mean" in name else "nothing"
        assert all(expected in told[f"{rank}: {name}"] for rank in range(ranks)), told


@pytest.mark.parametrize("launcher", ["unilaunch launch -n 2", "torch.distributed.run --nproc-per-node 2"])
def test_a_model_that_is_not_distributed_is_told(launcher: str, tmp_path: Path) -> None:
    """Below PyG's own error, which does not know of parts; and in the verdict, which stands last."""
    job = alone(["-m", *launcher.split(), str(PROGRAMS / "own_mistakes.py"), "not distributed"], tmp_path)
    assert (job.returncode == 0, "model = ug.torch.distribute(model, part)" in job.console) == (False, True)
    verdict = "\nunilaunch:   ug.torch.distribute was not called: "
    assert (verdict in job.console) == launcher.startswith("unilaunch")
