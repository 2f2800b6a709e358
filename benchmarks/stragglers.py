"""What it costs a script that unilaunch measures how long its ranks wait for each other: stragglers are found by that.

    python benchmarks/stragglers.py [--blocks 100]

Two ranks under `launch` train a small network, torch's DistributedDataParallel and MindSpore with AllReduce. Blocks of
16 steps are in turn, in one process, all measured and without the measurement; medians over neighbours count. Most
steps are not measured, though the measurement is on: what that costs is microseconds, which are measured at light steps
that do little but meet, since no whole step could show them. Of MindSpore's collectives one in 40 is measured, of
torch's steps the ten that begin each half a second (`waits` of each backend): the costs are added in this proportion.
Bound: 0.5 % of an epoch. A model of unilaunch's own notes its step once an epoch instead, which takes two microseconds.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from mpirun import MPIRUN, UNILAUNCH, execute, verdict
from unilaunch_mindspore import waits as waits_mindspore
from unilaunch_torch import waits as waits_torch

PROGRAM = Path(__file__).parent / "programs" / "straggler_cost.py"


def main() -> int:
    """Measure, print the table, and return 0 if the bound is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100)
    num_blocks = parser.parse_args().blocks
    kept = True
    for framework in ("torch", "mindspore"):
        with tempfile.TemporaryDirectory() as folder:
            launch = [*UNILAUNCH, "launch", "-n", "2", "--allow-run-as-root", "--oversubscribe", "--mpirun", MPIRUN]
            line = [*launch, "--output-dir", f"{folder}/log", str(PROGRAM), str(num_blocks), framework]
            said = execute(line, 1200.0, OMP_NUM_THREADS="1")
        told = json.loads(next(line for line in said.splitlines() if "BLOCKS" in line).partition("BLOCKS ")[2])
        step = statistics.median(plain for _, plain in told["measured"])
        measured = statistics.median(one / plain - 1 for one, plain in told["measured"])
        noted = statistics.median(one - plain for one, plain in told["noted"]) / step
        share = min(1.0, step * waits_torch.STRETCH / waits_torch.PERIOD)
        if framework == "mindspore":
            share = waits_mindspore.STRETCH / waits_mindspore.PERIOD
        print(f"{framework:10} a step: {step * 1000:.3f} ms, measured {measured:+.3%}, not measured {noted:+.3%}")
        kept &= verdict(f"{framework}: of an epoch", share * measured + (1 - share) * noted, 0.005)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
