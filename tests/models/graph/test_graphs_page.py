"""Every example of docs/graphs.md runs as it stands."""

import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import unilaunch_graph as ug
from unilaunch_graph.data.sources import open_dataset

PAGE = (Path(__file__).parents[3] / "docs" / "graphs.md").read_text()
#: PyG compiles functions with torch.jit.script when it is imported, and torch 2.13 calls that deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
#: The calls in the table "you have", by the function's name.
CALLS = dict(re.findall(r"^\|[^|]*\| `ug\.(\w+)(\([^`]*\))`", PAGE.partition("### The arrays")[0], re.MULTILINE))
#: The nodes of networkx's karate club.
SIZE = 34


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """It prints what its comments say, and what it writes is a graph."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(EXAMPLE, found)  # noqa: S102  (the page is ours)
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", EXAMPLE)
    assert open_dataset(str(found["folder"]), None, None, 0, None).load().num_nodes == 3


@pytest.mark.parametrize("name", ["from_pyg", "from_networkx", "from_scipy", "from_edges"])
def test_a_call_of_the_table_writes_a_graph(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the table's reader has; text becomes classes, whose names `read_names` has."""
    monkeypatch.chdir(tmp_path)
    club = nx.karate_club_graph()
    ends, x, y = np.array(club.edges).T, np.eye(SIZE), np.arange(SIZE) % 3
    held = {
        "data": Data(x=torch.eye(SIZE), y=torch.arange(SIZE) % 3, edge_index=torch.tensor(ends)), "graph": club,
        "adjacency": nx.to_scipy_sparse_array(club), "source": ends[0], "target": ends[1], "x": x, "y": y,
        "w": np.ones(len(ends[0])), "ug": ug,
    }  # fmt: skip
    folder = eval(f"ug.{name}{CALLS[name]}", held)  # noqa: S307  (the page is ours)
    assert open_dataset(str(folder), None, None, 0, None).load().num_nodes == SIZE
    assert list(ug.read_names(folder).classes or []) == (["Mr. Hi", "Officer"] if "club" in CALLS[name] else [])
