"""Many ranks that all reject their input at start: do they end by themselves, every time?

    python benchmarks/refusals.py [--ranks 32] [--times 20]

mpirun hangs now and then when many ranks end right after their start. Bound: exit code 2 within the deadline, each
time, under this environment's Open MPI and the system's.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mpirun import MPIRUN, UNILAUNCH, environment

DEADLINE = 90.0
SYSTEM = "/usr/bin/mpirun"


def main() -> int:
    """Start, count, print, and return 0 if every job ended by itself with exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--times", type=int, default=20)
    chosen = parser.parse_args()
    kept = True
    for mpirun in (MPIRUN, SYSTEM):
        if not Path(mpirun).exists():
            print(f"{mpirun}: not there")
            continue
        ended, slowest = 0, 0.0
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(chosen.times):
                seconds = _refuse(mpirun, chosen.ranks, folder)
                ended += seconds is not None
                slowest = max(slowest, seconds or DEADLINE)
        print(f"{mpirun}: {ended} of {chosen.times} ended by themselves, the slowest in {slowest:.1f} s", flush=True)
        kept &= ended == chosen.times
    return 0 if kept else 1


def _refuse(mpirun: str, ranks: int, folder: str) -> float | None:
    """Return the seconds that a job took to refuse; None if it had to be killed, or ended with another exit code."""
    line = [mpirun, "--oversubscribe", "-n", str(ranks), *UNILAUNCH, "run", "--epochs", "none"]
    begin = time.perf_counter()
    try:
        done = subprocess.run(line, cwd=folder, env=environment(), capture_output=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        return None
    return time.perf_counter() - begin if done.returncode == 2 else None


if __name__ == "__main__":
    sys.exit(main())
