"""Inference of a 2-layer, 128-wide SAGE on a graph in Reddit's shape: 233,000 nodes, 98 million directed edges.

    python benchmarks/inference.py [--folder DIR] [--nodes 233000] [--memory BYTES]

Two ranks; PyG's SAGEConv by `ug.torch.predict`, layer by layer. Bound: each process stays under 2 GB above its part.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from graphs import make_large
from mpirun import LINE, UNILAUNCH, bytes_of_part, execute, verdict

PREDICT = """
import json, sys, time
from pathlib import Path
import torch
from torch_geometric.nn import SAGEConv
import unilaunch
import unilaunch_graph as ug
graph, parts, output, memory = sys.argv[1:]
me = unilaunch.init()
torch.manual_seed(0)
layers = [SAGEConv(602, 128).eval(), torch.relu, SAGEConv(128, 41).eval()]
begin = time.perf_counter()
rows = ug.torch.predict(layers, graph, output, memory=int(memory), partition_dir=parts)
lines = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
Path(f"{output}.{me.rank}.json").write_text(
    json.dumps({"seconds": time.perf_counter() - begin, "peak": peak, "rows": len(rows)})
)
"""


def main() -> int:
    """Measure, print, and return 0 if the bound is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    parser.add_argument("--nodes", type=int, default=233_000, help="fewer: a smaller graph with the same degrees")
    parser.add_argument("--memory", type=int, default=1 << 29, help="bytes of a block")
    chosen = parser.parse_args()
    graph = make_large(chosen.folder, chosen.nodes)
    parts, output = chosen.folder / "inference-parts", chosen.folder / "scores.npz"
    options = ["--dataset", str(graph), "--partition-dir", str(parts), "--num-parts", "2", "--edges", "given"]
    begin = time.perf_counter()
    execute([*UNILAUNCH, "partition", *options], 900)
    print(f"partition, where it is not there: {time.perf_counter() - begin:.1f} s", flush=True)
    execute(
        [*LINE, "2", sys.executable, "-c", PREDICT, str(graph), str(parts), str(output), str(chosen.memory)],
        1800,
        TMPDIR=str(chosen.folder),
    )
    kept = True
    for rank in range(2):
        share = bytes_of_part(next(parts.glob(f"{graph.name}-*/part.{rank}")).parent, rank)
        seen = json.loads(Path(f"{output}.{rank}.json").read_text())
        print(f"rank {rank}: {seen['rows']:,} nodes in {seen['seconds']:.0f} s; its part {share / 1e9:.2f} GB")
        kept &= verdict("GB of its memory at its peak, above its part", (seen["peak"] - share) / 1e9, 2.0)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
