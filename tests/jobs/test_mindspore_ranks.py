"""ug.mindspore on two ranks, of which one has no training node: the numbers of one rank."""

from pathlib import Path

import numpy as np

from jobs.mpirun import Launcher, alone

PROGRAM = str(Path(__file__).parent / "programs" / "mindspore_ranks.py")


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


def test_two_ranks_compute_what_one_computes(tmp_path: Path, openmpi5: Launcher) -> None:
    """Losses, metrics, statistics, gradients of every type."""
    _write_two_communities(tmp_path / "graph.npz")
    alone([PROGRAM, "graph.npz", "one.npz"], tmp_path).check()
    openmpi5.run(2, [PROGRAM, "graph.npz", "two.npz"], tmp_path).check()
    one, two = (dict(np.load(tmp_path / name)) for name in ("one.npz", "two.npz"))

    assert one.keys() == two.keys()
    for name, expected in one.items():
        limit = 2e-2 if "narrow" in name else 1e-5 if "normalised" in name else 1e-10
        np.testing.assert_allclose(two[name], expected, rtol=limit, atol=limit, err_msg=name)
        assert np.isfinite(expected).all(), name
