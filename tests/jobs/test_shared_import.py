"""The framework is imported once for all ranks of a host, and nothing else is different.

That a model trains alike, to the last bit, is in test_same_training.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.mpirun import Finished, Launcher, alone

PROGRAM = Path(__file__).parent / "programs" / "own_libraries.py"


def _told(job: Finished, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((job.output / f"rank.{rank}" / "stdout").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_finds_what_it_would_have_imported(threads: int, tmp_path: Path) -> None:
    """Its threads in every library, its own random numbers; and the ranks come from one process."""
    logs = {}
    for command, ranks in (("launch -n 3", 3), ("run", 1)):
        (tmp_path / command).mkdir()
        line = ["-m", "unilaunch", *command.split(), "--threads", str(threads), str(PROGRAM)]
        logs[command] = _told(alone(line, tmp_path / command).check(), ranks)
    shared, own = logs.values()
    assert len({each["above"] for each in shared}) == 1
    for drawn in ("numpy", "torch", "python"):
        assert len({each["drawn"][drawn] for each in shared}) == 3
    for each in (*shared, *own):
        assert (each["torch"], each["pools"]) == ([threads] * 2, [threads] * 2)
        assert each["variable"] == str(threads)


@pytest.mark.parametrize("program", ["import torch", "import sys; print(sys.platform)\nimport torch"])
def test_only_what_a_program_imports_first_is_there_already(program: str, tmp_path: Path) -> None:
    """Behind anything else an import is the program's own: it may have set what the import reads."""
    (tmp_path / "train.py").write_text(
        f"{program}\nimport os\nfrom pathlib import Path\nPath(f'end.{{os.getpid()}}').touch()\n"
    )
    spy = tmp_path / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(
        "import os, sys\nfrom pathlib import Path\nfrom importlib.abc import MetaPathFinder\n"
        "class Spy(MetaPathFinder):\n    def find_spec(self, name, path, target=None):\n"
        "        if name == 'torch.nn': Path(f'import.{os.getpid()}').touch()\n"
        "sys.meta_path.insert(0, Spy())\n"
    )
    alone(["-m", "unilaunch", "launch", "-n", "2", "train.py"], tmp_path, {"PYTHONPATH": str(spy)}).check()
    imported = {path.suffix for path in tmp_path.glob("import.*")}
    ended = {path.suffix for path in tmp_path.glob("end.*")}
    assert len(ended) == 2
    if program == "import torch":
        assert len(imported) == 1
        assert not imported & ended
    else:
        assert imported == ended


def test_an_agent_that_is_killed_is_a_lost_agent(launcher: Launcher, tmp_path: Path) -> None:
    """Its ranks go with it, and the job ends; the report says what happened."""
    (tmp_path / "train.py").write_text(
        "import os\nimport signal\nimport time\nfrom pathlib import Path\n"
        "if os.environ['RANK'] == '0':\n"  # the agent reports each rank to the monitor before it writes this file
        "    while len(list(Path('log_output').glob('rank.*/usage.jsonl'))) < 3: time.sleep(0.02)\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    line = ["-m", "unilaunch", "launch", "-n", "3", "--mpirun", str(launcher.path), "--allow-run-as-root"]
    job = alone([*line, "--oversubscribe", "train.py"], tmp_path)
    assert job.returncode == 137
    assert "its agent, the process that supervises it, was killed" in job.console
    assert json.loads((job.output / "report.json").read_text())["first"]["cause"] == "lost agent"
    assert job.seconds < 100
