"""Each script of examples/ runs on two ranks, and says what it should have found."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Finished, Launcher, alone, one_start

pytestmark = pytest.mark.xdist_group("examples")  # what one process has left is for two tests

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
RESUME = str(EXAMPLES / "resume_in_mindspore.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cora: Path) -> Path:
    """A working folder with Cora's raw files where PyG looks for them, and a small graph."""
    folder = tmp_path_factory.mktemp("examples")
    (raw := folder / "data" / "Cora" / "raw").mkdir(parents=True)
    for file in (cora / "planetoid").iterdir():
        (raw / file.name).symlink_to(file.resolve())
    draw, y = np.random.default_rng(0), np.arange(120) % 3
    edges = draw.integers(0, 120, (2, 500))
    x = np.eye(3, dtype=np.float32)[y] + draw.normal(size=(120, 3)).astype(np.float32)
    use = np.arange(120) % 4
    masks = {"train_mask": use < 2, "val_mask": use == 2, "test_mask": use == 3}
    np.savez(folder / "small.npz", edge_index=edges, x=x, y=y, **masks)
    return folder


@pytest.fixture(scope="module")
def one_process(folder: Path) -> Finished:
    """The cells of the notebook, one after the other; then the script to resume, for 40 epochs and for 20."""
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (folder / "cells.py").write_text(f"{code}\nassert losses[-1] < 0.8 * losses[0], losses\n")
    resumed = [[RESUME, "torch", "small.npz", epochs] for epochs in ("40", "20")]
    return alone(one_start([["cells.py"], *resumed], folder), folder, VARIABLES).check()


def _on_two_ranks(
    scripts: dict[str, tuple[list[str], str]], folder: Path, launcher: Launcher, *more: list[str]
) -> Finished:
    program = one_start([*([str(EXAMPLES / name), *words] for name, (words, _) in scripts.items()), *more], folder)
    job = launcher.unilaunch(2, ["run", program[0], "--", *program[1:]], folder, variables=VARIABLES).check()
    for name, (_, pattern) in scripts.items():
        assert re.search(rf"^{pattern}$", job.stdout, re.MULTILINE), f"{name}: {job.stdout}"
    return job


@pytest.mark.usefixtures("one_process")
def test_scripts_of_torch(folder: Path, openmpi5: Launcher) -> None:
    _on_two_ranks(TORCH, folder, openmpi5)
    others = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {*TORCH, *MINDSPORE}
    assert others == {"resume_in_mindspore.py", "notebook.ipynb", "run.toml"}


@pytest.mark.mindspore
def test_scripts_of_mindspore(folder: Path, openmpi5: Launcher, one_process: Finished) -> None:
    """Each trains on two ranks; what PyTorch has begun on one part ends where PyTorch ends."""
    begun = re.findall("^PyTorch, 1 parts: loss (.*)", one_process.stdout, re.MULTILINE)
    job = _on_two_ranks(MINDSPORE, folder, openmpi5, [RESUME, "mindspore", "small.npz", "20"])
    (last,) = re.findall("^MindSpore, 2 parts: loss (.*)", job.stdout, re.MULTILINE)
    assert float(last) == pytest.approx(float(begun[0]), abs=1e-5)
