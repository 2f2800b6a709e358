"""A graph in Reddit's shape, from its files to the training: 233,000 nodes, 100 million directed edges, 602 features.

    python benchmarks/large.py [--folder DIR] [--epochs 3] [--other CHECKOUT]

Two parts. Bounds: the whole partition takes at most twice what one METIS call on all edges takes, cuts as few (our call
sees 16 of each node's), and takes at its peak at most three times the graph's own bytes; a rank has its part in less
than a second, and training it, without dropout, takes at most 1.25 times the part's bytes at its peak, beyond what an
interpreter with torch takes on a small graph.

CHECKOUT is an older one with an environment of its own, CHECKOUT/.venv, into which it was installed: three trainings by
each, in turn; an epoch, the quickest of each, takes at most 0.8 of CHECKOUT's.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mpirun import UNILAUNCH, bytes_of_part, environment, train, train_in, verdict

MAKE = str(Path(__file__).with_name("graphs.py"))
METIS = """
import json, sys, time
from pathlib import Path
import numpy as np, pymetis
folder = Path(sys.argv[1])
indptr, indices = (np.load(folder / f"{name}.npy") for name in ("indptr", "indices"))
begin = time.perf_counter()
cut, _ = pymetis.part_graph(2, pymetis.CSRAdjacency(indptr, indices))
print(json.dumps({"seconds": time.perf_counter() - begin, "cut": cut}))
"""
LOAD = """
import json, sys, time
from pathlib import Path
from unilaunch_graph.partition.store import Partition, read_part
folder, print_, home = sys.argv[1:]
begin = time.perf_counter()
part = read_part(Partition(Path(folder), print_, Path(home)), 0, 2)
print(json.dumps({"seconds": time.perf_counter() - begin, "cut": len(part.halo_indices)}))
"""


def main() -> int:
    """Measure, print, and return 0 if all bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--other", type=Path)
    chosen = parser.parse_args()
    made, _, _ = _run([sys.executable, MAKE, str(chosen.folder), "--large"])
    graph = Path(made.strip())
    own = sum((graph / f"{name}.npy").stat().st_size for name in ("indptr", "indices", "x"))
    parts = chosen.folder / "large-parts"
    options = ["--dataset", str(graph), "--partition-dir", str(parts), "--no-normalize-features"]
    shutil.rmtree(parts, ignore_errors=True)
    said, _, before = _run([sys.executable, "-c", METIS, str(graph)])
    alone = json.loads(said)
    _, seconds, peak = _run([*UNILAUNCH, "partition", *options, "--num-parts", "2"])
    print(f"graph {own / 1e9:.2f} GB; METIS alone {alone['seconds']:.1f} s, {before / 1e9:.2f} GB", flush=True)
    print(f"partition {seconds:.1f} s, at its peak {peak / 1e9:.2f} GB", flush=True)
    kept = verdict("partition / METIS alone", seconds / alone["seconds"], 2.0)
    kept &= verdict("peak / the graph's bytes", peak / own, 3.0)
    folder = next(parts.glob("*/part.0")).parent
    nodes = next((folder / "data").iterdir())
    loaded = json.loads(_run([sys.executable, "-c", LOAD, str(folder), nodes.stem, str(graph.resolve())])[0])
    kept &= verdict("edges cut / METIS alone", loaded["cut"] / alone["cut"], 1.05)
    kept &= verdict("seconds to map a part", loaded["seconds"], 1.0)
    training = ["--hidden", "16", "--dropout", "0", "--threads", "1", "--epochs", str(chosen.epochs)]
    result, small = (train(2, *data, *training) for data in (options, ["--dataset", "sbm"]))
    print(f"{result['seconds_per_epoch']:.2f} s per epoch, loss {result['loss'][0]:.4f} -> {result['loss'][-1]:.4f}")
    for rank, (own, base) in enumerate(zip(result["ranks"], small["ranks"], strict=True)):
        share = bytes_of_part(folder, rank)
        held = own["peak_memory_bytes"] - base["peak_memory_bytes"]
        print(f"rank {rank}: its share {share / 1e9:.2f} GB, its peak {held / 1e9:.2f} GB over that of a small graph")
        kept &= verdict("peak / share", held / share, 1.25)
    if chosen.other:
        runs = [[train_in(one, [*options, *training])["least"] for one in (None, chosen.other)] for _ in range(3)]
        this, other = map(min, zip(*runs, strict=True))
        kept &= verdict(f"an epoch, {this:.3f} s / the other checkout's, {other:.3f} s", this / other, 0.8)
    return 0 if kept else 1


def _run(line: list[str]) -> tuple[str, float, int]:
    """Run a command, and return what it printed, its seconds, and the bytes of its memory at its peak."""
    begin = time.perf_counter()
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment()) as child:
        said = child.stdout.read() if child.stdout else ""
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(line)}: exit code {child.returncode}")
    return said, time.perf_counter() - begin, used.ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
