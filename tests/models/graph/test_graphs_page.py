"""Every example of docs/graphs.md runs as it stands, and the graph of docs/start/pyg.md."""

import re
from pathlib import Path

import pytest

from unilaunch_graph.data.sources import open_dataset

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "graphs.md").read_text() + (DOCS / "start" / "pyg.md").read_text()
#: PyG compiles functions with torch.jit.script when it is imported, and torch 2.13 calls that deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
CONVERTERS = ("from_pyg", "from_networkx", "from_scipy", "from_edges")
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "ug.from_" in code]


@pytest.mark.parametrize("code", EXAMPLES, ids=[*CONVERTERS, "start/pyg.md"])
def test_an_example_runs(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints what its comments say, and what it writes is a graph."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec(code, found)  # noqa: S102  (the page is ours)
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", code)
    graph = open_dataset(str(found["folder"]), None, None, 0, None).load()
    assert graph.num_nodes in {3, 4, 34, 100}
