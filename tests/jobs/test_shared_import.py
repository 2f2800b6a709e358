"""The framework is imported once for all ranks of a host, and nothing else is different.

That a model trains alike, to the last bit, is in test_same_training.py.
"""

import json
from pathlib import Path

from jobs.mpirun import unilaunch

PROGRAM = Path(__file__).parent / "programs" / "own_libraries.py"


def test_a_program_finds_what_it_would_have_imported(tmp_path: Path) -> None:
    """Its threads in every library, its own random numbers; and the ranks come from one process."""
    told = []
    for command, ranks in (("launch -n 3", 3), ("run", 1)):
        (folder := tmp_path / command).mkdir()
        job = unilaunch([*command.split(), "--threads", "2", str(PROGRAM)], folder).check()
        told.append([json.loads(job.said(rank)) for rank in range(ranks)])
    shared, own = told
    assert len({each["above"] for each in shared}) == 1
    for drawn in ("numpy", "torch", "python"):
        assert len({each["drawn"][drawn] for each in shared}) == 3
    for each in (*shared, *own):
        assert (each["torch"], each["pools"], each["variable"]) == ([2, 2], [2, 2], "2")
