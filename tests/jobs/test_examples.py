"""Each script of examples/ runs on two ranks, and says what it should have found."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher, alone, one_start

EXAMPLES = Path(__file__).parents[2] / "examples"
#: The arguments of each script, and a pattern of what it prints.
TORCH = {
    "gat_from_pyg.py": (["Cora", "12"], r"loss [01]\.\d+, test accuracy 0\.[78]\d+"),
    "own_message_passing.py": (["small.npz", "40"], r"rank 0: loss 0\.[0-7]\d+"),
    "sage_edge_weights.py": (["graph-weighted", "40"], r"loss 0\.\d+, 300 nodes"),
    "regression_from_csv.py": (["200"], r"root mean square error [01]\.\d\d over 40 stations"),
    "link_prediction.py": (["Cora", "12"], r"loss 0\.[67]\d+, area under the curve 0\.[78]\d+"),
    "multilabel.py": (["40"], r"loss 0\.[0-5]\d+, micro-F1 0\.[5-9]\d+"),
    "large_inference.py": (["small.npz", "9000"], r"scores\.npz holds scores \(120, 3\) and classes \(120,\)"),
    "from_networkx.py": (["30"], r"member 0: Mr\. Hi, known: Mr\. Hi"),
}
MINDSPORE = {
    "mindspore_gat.py": (["small.npz", "15"], r"loss \d\.\d+, test accuracy [01]\.\d+"),
    "mindspore_sage.py": (["small.npz", "15"], r"loss 0\.\d+, scores \(120, 3\)"),
}
#: Partitions lie in the working folder; and what lets root start ranks, on however few processors.
VARIABLES = {
    "UNILAUNCH_DATA": "sets", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}  # fmt: skip
OTHERS = {"resume_in_mindspore.py", "notebook.ipynb", "run.toml"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cora: Path) -> Path:
    """A working folder with Cora's raw files where PyG looks for them, and a small graph."""
    folder = tmp_path_factory.mktemp("examples")
    raw = folder / "data" / "Cora" / "raw"
    raw.mkdir(parents=True)
    for file in (cora / "planetoid").iterdir():
        (raw / file.name).symlink_to(file.resolve())
    draw = np.random.default_rng(0)
    y = np.arange(120) % 3
    edges = draw.integers(0, 120, (2, 500))
    x = np.eye(3, dtype=np.float32)[y] + draw.normal(size=(120, 3)).astype(np.float32)
    use = np.arange(120) % 4
    masks = {"train_mask": use < 2, "val_mask": use == 2, "test_mask": use == 3}
    np.savez(folder / "small.npz", edge_index=edges, x=x, y=y, **masks)
    return folder


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {*TORCH, *MINDSPORE, *OTHERS}


@pytest.mark.parametrize(
    "scripts", [TORCH, pytest.param(MINDSPORE, marks=pytest.mark.mindspore)], ids=["torch", "mindspore"]
)
def test_scripts(scripts: dict[str, tuple[list[str], str]], folder: Path, openmpi5: Launcher) -> None:
    """Each trains on two ranks; rank 0 says what came out."""
    program = one_start([[str(EXAMPLES / name), *arguments] for name, (arguments, _) in scripts.items()], folder)
    job = openmpi5.unilaunch(2, ["run", program[0], "--", *program[1:]], folder, variables=VARIABLES).check()
    for name, (_, pattern) in scripts.items():
        assert re.search(rf"^{pattern}$", job.stdout, re.MULTILINE), f"{name}: {job.stdout}"


@pytest.mark.mindspore
def test_resume_in_mindspore(folder: Path, openmpi5: Launcher) -> None:
    """PyTorch on two parts and MindSpore on three end where PyTorch on one part ends."""
    script = str(EXAMPLES / "resume_in_mindspore.py")
    for ranks, framework in ((2, "torch"), (3, "mindspore")):
        line = ["run", script, "--", framework, "small.npz", "20"]
        last = openmpi5.unilaunch(ranks, line, folder, variables=VARIABLES).check()
    whole = alone([script, "torch", "small.npz", "40"], folder, VARIABLES).check()
    losses = [float(job.stdout.split()[-1]) for job in (last, whole)]
    assert last.stdout.startswith("MindSpore, 3 parts: loss ")
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_the_cells_of_the_notebook(folder: Path) -> None:
    """They run one after the other in one process."""
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    holds = "\nassert result.returncode == 0, result\nassert losses[-1] < 0.8 * losses[0], losses\n"
    (folder / "cells.py").write_text(code + holds)
    alone(["cells.py"], folder, VARIABLES).check()
