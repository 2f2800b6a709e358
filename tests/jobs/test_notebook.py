"""The cells of docs/start/notebook.md, in a kernel of Jupyter."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbclient import NotebookClient

PAGE = Path(__file__).parents[2] / "docs" / "start" / "notebook.md"


def test_a_function_of_a_notebook_runs_on_two_ranks(tmp_path: Path) -> None:
    """The first cell defines it, the second launches it; a wrong argument is an exception in its own words."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    first, launch = code.split("\n\n\nif __name__")
    wrong = "unilaunch.launch(mean_of_rows, nprocs=2, rows=3)"
    new_cell: Callable[..., nbformat.NotebookNode] = nbformat.v4.new_code_cell
    cells = [new_cell(source) for source in (first, f"if __name__{launch}")]
    cells.append(new_cell(wrong, metadata={"tags": ["raises-exception"]}))
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # noqa: TID251
    client.execute(env={**os.environ, "PATH": path})  # noqa: TID251
    shown = "".join(output.text for output in cells[1].outputs)
    assert shown.endswith("[4.0, 5.0]\n"), shown
    assert "the ranks run what it uses of cell 1" in shown
    assert cells[2].outputs[-1].evalue.startswith("mean_of_rows(): "), cells[2].outputs
