"""What the tests share: torch's default type, real data sets, and a writer of Planetoid's format."""

import hashlib
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from loguru import logger

from unilaunch_graph.data import planetoid


@pytest.fixture
def float64() -> Iterator[None]:
    """Torch's default type, while the test runs."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged while the test runs."""
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}", level="WARNING")
    yield lines
    logger.remove(sink)


@pytest.fixture(scope="session")
def shared_datasets() -> Path:
    """The folder of real data sets that lies beside the checkout."""
    folder = Path(__file__).parents[3].parent / "shared" / "datasets"
    if not folder.is_dir():
        pytest.skip(f"no shared datasets: {folder}")
    return folder


@pytest.fixture
def write_planetoid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A function that writes the eight files of a data set, which then are the public ones, and returns tmp_path."""

    def write(name: str, parts: Mapping[str, object]) -> Path:
        (tmp_path / "planetoid").mkdir(exist_ok=True)
        for part, value in parts.items():
            content = value.encode() if isinstance(value, str) else pickle.dumps(value, protocol=2)
            path = tmp_path / "planetoid" / f"ind.{name}.{part}"
            path.write_bytes(content)
            monkeypatch.setitem(planetoid.SHA256, path.name, hashlib.sha256(content).hexdigest())
        return tmp_path

    return write


@pytest.fixture
def tiny_planetoid() -> dict[str, Any]:
    """Six known nodes and test nodes 9, 6 and 7; node 8 is missing, as 15 of Citeseer's nodes are."""
    allx = sp.csr_matrix(np.arange(1, 13, dtype=np.float32).reshape(6, 2))
    ally = np.eye(2, dtype=np.int32)[[0, 1, 0, 1, 0, 1]]
    tx = sp.csr_matrix(np.array([[90, 0], [60, 0], [0, 70]], np.float32))
    neighbours = {0: [1, 1, 0], 1: [0], 2: [9], 3: [4], 4: [3], 5: [], 6: [7], 7: [6], 8: [], 9: [2]}
    return {
        "x": allx[:2],
        "y": ally[:2],
        "allx": allx,
        "ally": ally,
        "tx": tx,
        "ty": np.eye(2, dtype=np.int32)[[1, 0, 1]],
        "graph": defaultdict(list, neighbours),
        "test.index": "9\n6\n7\n",
    }
