"""Start runs under the environment's own mpirun, with a deadline, and read what they leave."""

import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

MPIRUN = str(Path(sys.executable).parent / "mpirun")
#: --oversubscribe: parity.py runs 4 ranks on 2 cores. Open MPI then leaves every rank all of them.
LINE = [MPIRUN, "--oversubscribe", "-n"]
#: As it comes: each of two ranks bound to a core.
BOUND_LINE = [MPIRUN, "-n"]
UNILAUNCH = [sys.executable, "-m", "unilaunch"]
#: Without an MPI.
DIRECT_LINE = [*UNILAUNCH, "launch", "-n"]
SHARED = Path(__file__).parents[2] / "shared" / "datasets"


MODELS = Path(__file__).parents[1] / "models"


class Change(NamedTuple):
    """A text in a file of models/, and what stands in its place."""

    file: str
    old: str
    new: str


def changed_sources(folder: Path, changes: Iterable[Change]) -> Path:
    """Return a copy of models/ in *folder* with *changes*: a run finds it first on PYTHONPATH."""
    copy = folder / "models"
    shutil.copytree(MODELS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in changes:
        text = (copy / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file}: {old!r} stands there {text.count(old)} times"
        (copy / file).write_text(text.replace(old, new), encoding="utf-8")
    compileall.compile_dir(copy, quiet=1)
    return copy


def bytes_of_part(folder: Path, rank: int) -> int:
    """Return the bytes of a part of a partition: its edges, and the rows of its nodes."""
    manifest: dict[str, Any] = json.loads((folder / f"part.{rank}" / "manifest.json").read_text())
    nodes: dict[str, Any] = json.loads(next((folder / "data").iterdir()).read_text())
    num_owned = (int(manifest["arrays"]["owned"]["size"]) - 128) // 8
    rows: int = sum(one["size"] for one in nodes["files"].values()) * num_owned // manifest["num_nodes"]
    edges: int = sum(one["size"] for one in manifest["arrays"].values())
    return rows + edges


@cache
def _compile_sources() -> None:
    """Compile the project's modules, as pip does when it installs them; or else each start would, in 0.1 s.

    Python does it at the first import, but not with PYTHONDONTWRITEBYTECODE, which many containers set.
    """
    for folder in ("unilaunch", "backends", "models"):
        compileall.compile_dir(Path(__file__).parents[1] / folder, quiet=1)


def environment(**changed: str) -> dict[str, str]:
    """Return this environment, in which root may start mpirun, and msrun's "python" is this one."""
    _compile_sources()
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # noqa: TID251
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **path, **root, **changed}  # noqa: TID251


def execute(line: list[str], deadline: float, **changed: str) -> str:
    """Run a command and return what it printed.

    Raises:
        RuntimeError: Its exit code is not 0; with what it said.
    """
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, timeout=deadline, env=environment(**changed)
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def train(
    ranks: int, *options: str, line: Sequence[str] = LINE, deadline: float = 900.0, sources: Path = MODELS
) -> dict[str, Any]:
    """Run the GCN on *ranks* ranks, with the *sources* of the models, and return its result.json."""
    with tempfile.TemporaryDirectory() as folder:
        rank = [] if line is DIRECT_LINE else [*UNILAUNCH, "run"]
        command = [*line, str(ranks), *rank, "--output-dir", folder, *options]
        execute(command, deadline, PYTHONPATH=str(sources))
        result: dict[str, Any] = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
    return result


def train_in(checkout: Path | None, options: Sequence[str]) -> dict[str, Any]:
    """Train the GCN with PyTorch on 2 ranks by the programs of a checkout, which has an environment of its own, .venv.

    Args:
        checkout: Its folder; None: this one.
        options: Of `unilaunch run`.

    Returns:
        Its result.json, and as "least" the seconds of its quickest epoch, which other work disturbs least.
    """
    programs = checkout.absolute() / ".venv" / "bin" if checkout else Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        ranks = [str(programs / "mpirun"), "-n", "2", str(programs / "python"), "-P", "-m", "unilaunch", "run"]
        execute([*ranks, "--backend", "torch", "--output-dir", folder, *options], 900)
        result: dict[str, Any] = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
        epochs = Path(folder, "rank.0", "epochs.jsonl").read_text(encoding="utf-8").splitlines()
    return {**result, "least": min(json.loads(epoch)["seconds"] for epoch in epochs)}


def verdict(name: str, value: float, bound: float, *, at_most: bool = True) -> bool:
    """Print whether *value* keeps its bound, and return it."""
    kept = value <= bound if at_most else value >= bound
    relation = "<=" if at_most else ">="
    print(f"{'kept' if kept else 'BROKEN'}: {name} {value:.4g} {relation} {bound:.4g}", flush=True)
    return kept
