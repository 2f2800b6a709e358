"""How much memory a set of the OGB takes while it is read, by its size: a generated one, in ogbn-papers100M's form.

    python benchmarks/ogb.py [--shares 0.005 0.01 0.02] [--folder DIR]

A share of 0.1 is a tenth of ogbn-papers100M: 11 million nodes, 162 million edges, 5.4 GB on disk. For each share one
process writes the set and another reads it; what it has allocated at most is fitted to bytes for each edge and node,
and gives the forecast for the whole set. Mapped files are not counted: the system takes their pages back.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from unilaunch_graph.data.sources import open_dataset

#: Of ogbn-papers100M.
NODES, EDGES, WIDTH, CLASSES = 111_059_956, 1_615_685_872, 128, 172
#: Nodes with a label: the others' is NaN.
LABELLED = 1_546_782


def main() -> None:
    """Measure each share in a process of its own, and forecast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", nargs="+", type=float, default=[0.005, 0.01, 0.02])
    parser.add_argument("--folder", type=Path, help="where the sets are written; default: a temporary folder")
    parser.add_argument("--read", type=Path, help="read this set, and print what it takes")
    chosen = parser.parse_args()
    if chosen.read:
        print(json.dumps(measure(chosen.read)))
        return
    peaks = []
    for share in chosen.shares:
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            write(Path(folder), share)
            done = subprocess.run([sys.executable, __file__, "--read", folder], check=True, capture_output=True)
            found = json.loads(done.stdout)
        peaks.append(found["peak"])
        print(
            f"{share:6.3f}: {share * EDGES / 1e6:6.1f} million edges, peak {found['peak'] / 1e9:.3f} GB, "
            f"{found['seconds']:.1f} s", flush=True,
        )  # fmt: skip
    slope, base = np.polyfit(chosen.shares, peaks, 1)
    print(f"peak = {base / 1e6:.0f} MB + share * {slope / 1e9:.2f} GB: ogbn-papers100M {(base + slope) / 1e9:.1f} GB")


def write(folder: Path, share: float) -> None:
    """Write a set of this share of ogbn-papers100M's nodes and edges: sources are drawn with a heavy tail."""
    draw = np.random.default_rng(0)
    nodes, edges = round(NODES * share), round(EDGES * share)
    (folder / "raw").mkdir()
    (folder / "split" / "time").mkdir(parents=True)
    ends = np.stack([(nodes * draw.random(edges, np.float32) ** 3).astype(np.int64), draw.integers(0, nodes, edges)])
    np.savez(
        folder / "raw" / "data.npz", edge_index=ends.clip(max=nodes - 1),
        node_feat=draw.integers(0, 9, (nodes, WIDTH), np.int8).astype(np.float16),
        node_year=draw.integers(1990, 2020, (nodes, 1)), num_nodes_list=[nodes], num_edges_list=[edges],
    )  # fmt: skip
    labels = np.full((nodes, 1), np.nan, np.float32)
    known = draw.permutation(nodes)[: round(LABELLED * share)]
    labels[known, 0] = draw.integers(0, CLASSES, len(known))
    np.savez(folder / "raw" / "node-label.npz", node_label=labels)
    for name, part in zip(("train", "valid", "test"), np.array_split(known, 3), strict=True):
        lines = "".join(f"{node}\n" for node in part)
        (folder / "split" / "time" / f"{name}.csv.gz").write_bytes(gzip.compress(lines.encode()))


def measure(folder: Path) -> dict[str, float]:
    """Read a set, and return the seconds, and the most bytes that this process has allocated for it."""
    dataset, before = open_dataset(str(folder), None, None, 0, normalize_features=False), anonymous()
    peak, is_done = [before], threading.Event()

    def watch() -> None:
        while not is_done.wait(0.005):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    graph = dataset.load()
    seconds = time.perf_counter() - begin
    is_done.set()
    watcher.join()
    assert graph.is_directed
    assert graph.features.dtype == np.float16
    return {"seconds": seconds, "peak": peak[0] - before}


def anonymous() -> int:
    """Return the bytes of memory of this process that are no file's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
