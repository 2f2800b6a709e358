"""What many agents cost the monitor grows as their number: 300 and 3,000 simulated ones of benchmarks/agents.py."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "agents.py"
MOST = 3000
#: The script's exit code where the system allows too few open files.
NOT_ALLOWED = 2


@pytest.mark.timed
def test_the_monitors_work_is_proportional_to_the_agents() -> None:
    """Its processor time for each of 3,000 agents is at most 1.6 times that for each of 300."""
    line = [sys.executable, str(SCRIPT), "--agents", "300", str(MOST)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode == NOT_ALLOWED:
        pytest.skip(f"this machine lacks open files: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
