"""What a plan of many ranks takes: `unilaunch launch --dry-run` for 10,000 ranks on 1,250 unequal hosts.

    python benchmarks/planning.py [--rounds 7]

Bound 0.5 s, from the command to its end.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from mpirun import UNILAUNCH, execute, verdict

HOSTS = 1250
RANKS = 10_000


def main() -> int:
    """Measure, and return 0 if the bound is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    slots = [1 + index % 15 for index in range(HOSTS)]  # 1 to 15, 8 on the average
    slots[-1] += RANKS - sum(slots)
    with tempfile.TemporaryDirectory() as folder:
        hostfile = Path(folder, "hosts")
        lines = [f"node{index:04d} slots={number}" for index, number in enumerate(slots)]
        hostfile.write_text("\n".join(lines) + "\n", encoding="utf-8")
        seconds = []
        for _ in range(rounds):
            begin = time.monotonic()
            shown = execute([*UNILAUNCH, "launch", "--hostfile", str(hostfile), "--dry-run"], 60)
            seconds.append(time.monotonic() - begin)
    summary = next(line for line in shown.splitlines() if " ranks on " in line)
    print(f"{summary}: {statistics.median(seconds):.3f} s")
    return 0 if verdict("seconds of a plan", statistics.median(seconds), 0.5) else 1


if __name__ == "__main__":
    sys.exit(main())
