"""The first five minutes of the kinds of users in users.py, as docs/first-minutes.md shows them: run, and written down.

    python benchmarks/first_minutes.py [WORD ...]

With words, only users with one of them in their title do it again; the other sections stay as they are.
Each command runs in a shell, in an empty folder with the user's own files; what it prints is kept as it is, but for
the middle of long outputs. The exit code of each command is checked. A notebook's cells run in a kernel of Jupyter.
Several hosts are namespaces of this machine, with real sshd's, and Slurm's daemons run here: these parts need root.
"""

import gzip
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from users import ROOT, USERS, Cell, Command, User

sys.path.insert(0, str(ROOT / "tests"))

from cluster.hosts import LOGIN, Cluster
from jobs.slurm import slurm_cluster

DATASETS = ROOT.parent / "shared" / "datasets"
PAGE = ROOT / "docs" / "first-minutes.md"
BIN = str(Path(sys.executable).parent)
#: Lines of an output that are shown at most: of its beginning and of its end.
FIRST, LAST = 12, 8
DEADLINE = 600.0  # seconds after which a command counts as hung
AS_ROOT = dict.fromkeys(
    ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "UNILAUNCH_ALLOW_RUN_AS_ROOT"), "1"
)
#: Runs a line of a shell; returns its exit code, and what it has printed.
Run = Callable[[str], tuple[int, str]]
HEAD = """# The first five minutes

Eight users, each with the files that they have already, and what they type first. Every line below was run, and every
output is what the command printed (`python benchmarks/first_minutes.py` writes this page again). `[... N lines]` stands
for lines that are left out.
"""


def main() -> int:
    """Run all commands, and write the page."""
    words = sys.argv[1:]
    kept = {title: section(title) for title in (user.title for user in USERS)}
    again = [user.title for user in USERS if not words or any(word in user.title for word in words)]
    sections = [record(user) if user.title in again else kept[user.title] for user in USERS]
    PAGE.write_text("\n".join([HEAD, *sections]), encoding="utf-8")
    return 0


def section(title: str) -> str:
    """Return a user's section of the page as it is."""
    _, heading, rest = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")
    return heading + rest.partition("\n## ")[0]


def record(user: User) -> str:
    """Do what a user does, in new folders, and return the section of the page.

    Raises:
        SystemExit: A command has ended in another way than `users.py` says.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as data:
        (Path(data) / "planetoid").symlink_to(DATASETS / "planetoid")  # what a first run would fetch
        (Path(folder) / "data" / "Cora").mkdir(parents=True)
        (Path(folder) / "data" / "Cora" / "raw").symlink_to(DATASETS / "planetoid")  # and PyG's first run
        for name, file in user.files.items():
            shutil.copy(file, Path(folder) / name)
        if "MNIST_Data" in user.text:
            _unpack(Path(folder) / "MNIST_Data")
        text = "\n".join(_section(user, Path(folder), {**AS_ROOT, "UNILAUNCH_DATA": data}))
        for path, shown in {folder: "~", data: "~/.cache/unilaunch", BIN: "~/.venv/bin"}.items():
            text = text.replace(path, shown)
        return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "vm", text)


def _section(user: User, folder: Path, own: dict[str, str]) -> Iterator[str]:
    yield f"## {user.title}\n"
    yield f"{user.text}\n"
    commands = [one for one in user.commands if isinstance(one, Command)]
    if commands:
        with {"here": _here, "hosts": _on_hosts, "Slurm": _in_slurm}[user.place](folder, own) as run:
            for command in commands:
                yield from _block("console", f"$ {command.line}", _output(command, run))
    yield from _notebook([one for one in user.commands if isinstance(one, Cell)], folder, own)


def _output(command: Command, run: Run) -> str:
    deadline = time.monotonic() + DEADLINE
    while not re.search(command.until, (ended := run(command.line))[1]):
        if time.monotonic() > deadline:
            raise SystemExit(f"{command.line}: no {command.until!r} in {DEADLINE:g} s:\n{ended[1]}")
        time.sleep(0.3)
    code, said = ended
    if code != command.code:
        raise SystemExit(f"{command.line}: exit code {code}, not {command.code}:\n{said}")
    return said


def _block(kind: str, typed: str, said: str) -> Iterator[str]:
    yield f"```{kind}"
    yield typed
    yield from _shortened(said)
    yield "```\n"


def _notebook(cells: list[Cell], folder: Path, own: dict[str, str]) -> Iterator[str]:
    """Run cells in a kernel of Jupyter, one after the other."""
    if not cells:
        return
    tags = {cell.source: ["raises-exception"] if cell.fails else [] for cell in cells}
    new_cell: Callable[..., nbformat.NotebookNode] = nbformat.v4.new_code_cell
    typed = [new_cell(source, metadata={"tags": tags[source]}) for source in tags]
    notebook = nbformat.v4.new_notebook(cells=typed)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=DEADLINE, resources={"metadata": {"path": str(folder)}})
    with client.setup_kernel(env=_environ(own)):
        for number, cell in enumerate(typed):
            client.execute_cell(cell, number)
            failed = any(output.output_type == "error" for output in cell.outputs)
            if failed != bool(tags[cell.source]):
                raise SystemExit(f"{cell.source}\n{cell.outputs}")
            yield from _block("python", cell.source, "")
            if said := "\n".join(_shown(output) for output in cell.outputs):
                yield from _block("text", said.rstrip(), "")


def _shown(output: nbformat.NotebookNode) -> str:
    """Return what a notebook shows under a cell; of an exception its last line."""
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}"
    text: str = output.text if output.output_type == "stream" else output.data["text/plain"]
    return text.rstrip()


@contextmanager
def _here(folder: Path, own: dict[str, str]) -> Iterator[Run]:
    """Run the lines on this machine."""

    def run(line: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=DEADLINE, env=_environ(own),
        )  # fmt: skip
        return done.returncode, done.stdout

    yield run


@contextmanager
def _on_hosts(folder: Path, own: dict[str, str]) -> Iterator[Run]:  # noqa: ARG001
    """Run the lines on node0 of three hosts."""
    with tempfile.TemporaryDirectory() as keys, Cluster(3, Path(keys)) as cluster:
        (folder / "hosts").write_text("".join(f"{name} slots=1\n" for name in cluster.names))
        environ = {**AS_ROOT, "PATH": f"{BIN}:{LOGIN['PATH']}"}  # another variable would be on node0 only

        def run(line: str) -> tuple[int, str]:
            other = line.replace("--node_rank=0", "--node_rank=1")
            typed = [cluster.start(1, ["bash", "-c", other], folder, environ)] if other != line else []  # on each
            done = cluster.run(0, ["bash", "-c", f"{line} 2>&1"], folder, environ)
            for one in typed:
                one.finish()
            return done.returncode, done.stdout

        yield run


@contextmanager
def _in_slurm(folder: Path, own: dict[str, str]) -> Iterator[Run]:
    """Run the lines on this machine, which has a Slurm of two nodes meanwhile."""
    with (
        tempfile.TemporaryDirectory() as daemons,
        slurm_cluster(Path(daemons)) as slurm,
        _here(folder, {**own, **slurm}) as run,
    ):
        yield run


def _environ(own: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **own}  # noqa: TID251


def _unpack(folder: Path) -> None:
    for file in (DATASETS / "mnist").glob("*.gz"):
        split = folder / ("train" if file.name.startswith("train") else "test")
        split.mkdir(parents=True, exist_ok=True)
        with gzip.open(file) as packed, (split / file.stem).open("wb") as plain:
            shutil.copyfileobj(packed, plain)


def _shortened(said: str) -> Iterator[str]:
    lines = said.rstrip().splitlines()
    if len(lines) <= FIRST + LAST + 2:
        yield from lines
        return
    yield from lines[:FIRST]
    yield f"[... {len(lines) - FIRST - LAST} lines]"
    yield from lines[-LAST:]


if __name__ == "__main__":
    sys.exit(main())
