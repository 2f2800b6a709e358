"""What supervision costs: start-up and epochs with the agent, its record, its capture and stall detection, and without.

    python benchmarks/agent.py [--rounds 15]

Without: the same rank in the launcher's own child, its output going straight to the launcher. Interleaved, medians, one
rank; an epoch is one of the generated graph, 2 ms long: the shortest there is. Bounds: 0.05 s of start-up, 2 % of an
epoch.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from mpirun import UNILAUNCH, execute, verdict

UNSUPERVISED = [sys.executable, "-c", """
import gc; gc.disable()
import os, socket, sys
from unilaunch.rank.status import Status
from unilaunch.rank.status import StatusPage
from unilaunch.rank.run import run
from unilaunch.spec.options import parse
from unilaunch.spec.run_spec import RunSpec
from unilaunch.spec.reading import read_task
def read():
    return read_task(RunSpec, parse(sys.argv[1:]), dict(os.environ))
kept, other = socket.socketpair()
sys.exit(run(read, dict(os.environ), Status(other, StatusPage())))
"""]  # fmt: skip
#: A model would import its framework; a script can be nothing but its first line.
SCRIPT = "import time\nprint(time.monotonic(), flush=True)\n"
EPOCHS = ["--epochs", "1500", "--eval-every", "1500", "--threads", "1"]


def main() -> int:
    """Measure, print the table, and return 0 if both bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    lines = {"supervised": UNILAUNCH, "unsupervised": UNSUPERVISED}
    starts: dict[str, list[float]] = {name: [] for name in lines}
    epochs: dict[str, list[float]] = {name: [] for name in lines}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "first.py").write_text(SCRIPT)
        for number in range(options.rounds):
            for kind, line in lines.items():
                begin = time.monotonic()
                said = execute([*line, "run", "--output-dir", str(folder / "log"), str(folder / "first.py")], 60)
                starts[kind].append(float(said.split()[-1]) - begin)
                if number < options.rounds // 2:
                    stall = ["--stall-timeout", "60"] if kind == "supervised" else []
                    execute([*line, "run", *EPOCHS, *stall, "--output-dir", str(folder / "log")], 60)
                    result = json.loads((folder / "log" / "result.json").read_text())
                    epochs[kind].append(result["seconds_per_epoch"])
    start = {kind: statistics.median(taken) for kind, taken in starts.items()}
    epoch = {kind: statistics.median(taken) for kind, taken in epochs.items()}
    for kind in lines:
        print(f"{kind:10} {start[kind]:7.3f} s to the script's first line {epoch[kind] * 1000:8.3f} ms an epoch")
    kept = verdict("seconds added to the start", start["supervised"] - start["unsupervised"], 0.05)
    return 0 if verdict("of an epoch", epoch["supervised"] / epoch["unsupervised"] - 1, 0.02) and kept else 1


if __name__ == "__main__":
    sys.exit(main())
