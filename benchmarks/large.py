"""A graph in Reddit's shape, from its files to the training: 233,000 nodes, 100 million directed edges, 602 features.

    python benchmarks/large.py [--folder DIR] [--epochs 3]

Two parts. Bounds: the whole partition takes at most twice what one METIS call takes, and at its peak at most three
times the graph's own bytes; a rank maps its part in less than a second.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from graphs import make_large
from mpirun import UNILAUNCH, environment, train, verdict

METIS = """
import sys, time
from pathlib import Path
import numpy as np, pymetis
folder = Path(sys.argv[1])
indptr, indices = (np.load(folder / f"{name}.npy") for name in ("indptr", "indices"))
begin = time.perf_counter()
pymetis.part_graph(2, pymetis.CSRAdjacency(indptr, indices))
print(time.perf_counter() - begin)
"""
LOAD = """
import json, resource, sys, time
from pathlib import Path
from unilaunch_gcn.part_store import load_part
folder, print_ = sys.argv[1:]
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
begin = time.perf_counter()
part = load_part(Path(folder), 0, 2, print_)
print(json.dumps({"seconds": time.perf_counter() - begin}))
"""


def main() -> int:
    """Measure, print, and return 0 if all bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    parser.add_argument("--epochs", type=int, default=3)
    chosen = parser.parse_args()
    graph = make_large(chosen.folder)
    own = sum((graph / f"{name}.npy").stat().st_size for name in ("indptr", "indices", "x"))
    parts = chosen.folder / "large-parts"
    options = ["--dataset", str(graph), "--partition-dir", str(parts), "--no-normalize-features"]
    for old in parts.glob("*/part.*/manifest.json"):
        old.unlink()
    metis = float(_run([sys.executable, "-c", METIS, str(graph)])[0])
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    _, seconds = _run([*UNILAUNCH, "partition", *options, "--num-parts", "2"])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"graph {own / 1e9:.2f} GB; METIS alone {metis:.1f} s, {before * 1024 / 1e9:.2f} GB", flush=True)
    print(f"partition {seconds:.1f} s, at its peak {peak / 1e9:.2f} GB", flush=True)
    kept = verdict("partition / METIS alone", seconds / metis, 2.0)
    kept &= verdict("peak / the graph's bytes", peak / own, 3.0)
    folder = next(parts.glob("*/part.0")).parent
    manifest: dict[str, Any] = json.loads((folder / "part.0" / "manifest.json").read_text())
    loaded = json.loads(_run([sys.executable, "-c", LOAD, str(folder), manifest["fingerprint"]])[0])
    kept &= verdict("seconds to map a part", loaded["seconds"], 1.0)
    result = train(2, *options, "--epochs", str(chosen.epochs), "--hidden", "16", "--dropout", "0", "--threads", "1")
    share = sum(stored["size"] for stored in manifest["arrays"].values())
    print(f"{result['seconds_per_epoch']:.2f} s per epoch, loss {result['loss'][0]:.4f} -> {result['loss'][-1]:.4f}")
    peak = result["ranks"][0]["peak_memory_bytes"]
    print(f"a rank's share {share / 1e9:.2f} GB, its peak {peak / 1e9:.2f} GB")
    return 0 if kept else 1


def _run(line: list[str]) -> tuple[str, float]:
    begin = time.perf_counter()
    done = subprocess.run(line, check=True, capture_output=True, text=True, env=environment(), timeout=1800)
    return done.stdout, time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
