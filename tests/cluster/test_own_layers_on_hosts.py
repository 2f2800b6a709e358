"""Our own layers on three hosts: the curves, weights and scores of PyG's layers in one process, in float64."""

import sys
from pathlib import Path

import pytest

from cluster.hosts import Cluster
from jobs.own_layers import LAYERS, PROGRAMS, difference, train_by_pyg, write_directed_graph

EPOCHS = 3


@pytest.mark.parametrize("mpirun", ["5.0"], indirect=True)
@pytest.mark.parametrize("framework", ["torch_layers", pytest.param("mindspore", marks=pytest.mark.mindspore)])
def test_curves_weights_and_scores_are_those_of_pyg_in_one_process(
    cluster: Cluster, mpirun: Path, framework: str, tmp_path: Path
) -> None:  # fmt: skip
    """Under `mpirun -H a,b,c python train.py`: no memory is shared, so rows or partial sums travel for our SAGEConv."""
    file = tmp_path / "graph.npz"
    write_directed_graph(file)
    expected = train_by_pyg(str(file), tmp_path, LAYERS, EPOCHS)
    start: list[str | Path] = [
        mpirun,
        "--allow-run-as-root",
        "-H",
        "node0,node1,node2",
        "-n",
        "3",
        "--bind-to",
        "none",
        "-x",
        "OMPI_MCA_mpi_yield_when_idle=1",
        sys.executable,
    ]
    line = [*start, PROGRAMS[framework], file, tmp_path, tmp_path / "out.npz", str(EPOCHS), *LAYERS]
    cluster.run(0, line, tmp_path).check()
    for kind, apart in difference(tmp_path / "out.npz", expected, LAYERS).items():
        assert apart <= 1e-10, kind
