"""From `unilaunch launch` to the first epoch on 2 ranks, with a partition that is there; and what a new one takes.

    python benchmarks/first_epoch.py [--rounds 7] [--folder DIR]

The graph of epoch.py. The moments are of rank 0's events, in seconds since the command was started; medians. Below,
`unilaunch partition --num-parts 2` in turn with METIS alone on the same graph, read ahead: for the least volume, which
unilaunch ran on such a graph when the bound was set, and as pymetis comes; processor time, medians. Bounds: 1.5 s, and
twice METIS's volume partition.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from graphs import make_graph
from mpirun import MPIRUN, UNILAUNCH, execute, verdict

#: Of a rank's events: what has begun by then.
PHASES = {
    "start": "ranks have met", "partition": "looks for the partition", "load part": "maps its part",
    "framework import": "imports the framework", "build network": "builds the network", "train": "trains",
}  # fmt: skip
METIS = """
import sys, time
import numpy as np, pymetis
arrays = np.load(sys.argv[1])
adjacency = pymetis.CSRAdjacency(arrays["indptr"], arrays["indices"])
for arguments in ({"recursive": False, "options": pymetis.Options(seed=1, objtype=1)}, {}):
    begin = time.process_time()
    pymetis.part_graph(2, adjacency, **arguments)
    print(time.process_time() - begin)
"""


def main() -> int:
    """Measure, print, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    graph = make_graph(chosen.folder)
    starts: list[dict[str, float]] = []
    cuts: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        for index in range(chosen.rounds):
            data = ["--dataset", str(graph), "--partition-dir", f"{name}/{index}", "--no-normalize-features"]
            seconds = _processor_time([*UNILAUNCH, "partition", *data, "--num-parts", "2"])
            volume, default = map(float, execute([sys.executable, "-c", METIS, str(graph)], 300).split())
            cuts.append((seconds, volume, default))
            time.sleep(2)  # a file is hashed again at each start until it is 2 s old
            _start(data, Path(name, "first"))
            starts.append(_start(data, Path(name, "log_output")))
    for phase, words in PHASES.items():
        print(f"{words:24} {statistics.median(start[phase] for start in starts):6.3f}")
    kept = verdict("seconds to the first epoch", statistics.median(start["train"] for start in starts), 1.5)
    cut, volume, default = (statistics.median(column) for column in zip(*cuts, strict=True))
    print(f"partition {cut:.2f} s; METIS alone: volume {volume:.2f} s, as it comes {default:.2f} s")
    return 0 if verdict("partition / METIS alone", cut / volume, 2.0) and kept else 1


def _start(data: list[str], output: Path) -> dict[str, float]:
    """Train one epoch, and return the moments of rank 0's phases."""
    begin = time.time()
    launch = [*UNILAUNCH, "launch", "-n", "2", "--allow-run-as-root", "--oversubscribe", "--mpirun", MPIRUN]
    execute([*launch, "--output-dir", str(output), "gcn", *data, "--backend", "torch", "--epochs", "1"], 300)
    events = map(json.loads, (output / "rank.0" / "events.jsonl").read_text(encoding="utf-8").splitlines())
    return {event["phase"]: event["time"] - begin for event in events if "phase" in event}


def _processor_time(line: list[str]) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    execute(line, 300)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
