"""What it costs a script that unilaunch measures how long its ranks wait for each other: stragglers are found by that.

    python benchmarks/stragglers.py [--blocks 100]

Two ranks under `launch` train a small network, torch's DistributedDataParallel and MindSpore with AllReduce. Blocks of
16 steps with and without the measurement are in turn, in one process; the median of the quotients of neighbours counts.
Of MindSpore's collectives one in ten is measured (`unilaunch_mindspore.waits`), here all, so the cost is a tenth.
Bound: 0.5 % of an epoch. A model of unilaunch's own notes its step once an epoch instead, which takes two microseconds.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from mpirun import MPIRUN, UNILAUNCH, execute, verdict
from unilaunch_mindspore.waits import PERIOD, STRETCH

PROGRAM = Path(__file__).parent / "programs" / "straggler_cost.py"


def main() -> int:
    """Measure, print the table, and return 0 if the bound is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100)
    blocks = parser.parse_args().blocks
    kept = True
    for framework in ("torch", "mindspore"):
        with tempfile.TemporaryDirectory() as folder:
            launch = [*UNILAUNCH, "launch", "-n", "2", "--allow-run-as-root", "--oversubscribe", "--mpirun", MPIRUN]
            line = [*launch, "--output-dir", f"{folder}/log", str(PROGRAM), str(blocks), framework]
            said = execute(line, 1200.0, OMP_NUM_THREADS="1")
        seconds = json.loads(next(line for line in said.splitlines() if "BLOCKS" in line).partition("BLOCKS ")[2])
        pairs = list(zip(seconds[::2], seconds[1::2], strict=True))
        share = STRETCH / PERIOD if framework == "mindspore" else 1.0
        cost = share * (statistics.median(measured / plain for measured, plain in pairs) - 1)
        print(f"{framework:10} a block of steps: {statistics.median(plain for _, plain in pairs):.4f} s")
        kept &= verdict(f"{framework}: of an epoch", cost, 0.005)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
