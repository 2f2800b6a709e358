"""A halo exchange by unilaunch's MPI and by its sockets, beside the same rows by torch's gloo, on CPU.

    python benchmarks/exchange.py [--ranks 2] [--rounds 15] [--nodes 100000] [--widths 16 128] [--folder DIR]

The graph of epoch.py in parts by METIS. Under mpirun the ranks exchange over MPI, under torchrun over sockets. In both
runs three ways take turns in each round: ours, gloo's `all_to_all_single`, gloo's `isend` and `irecv`; medians of the
slowest rank. The rows that arrive are compared. Bound: ours takes at most the time of gloo's faster way.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from graphs import make_graph
from mpirun import BOUND_LINE, LINE, UNILAUNCH, execute, verdict

PROGRAM = str(Path(__file__).parent / "programs" / "exchanges.py")
GLOO = ("all_to_all", "messages")


def main() -> int:
    """Measure, print the table, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--widths", nargs="+", default=["16", "128"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    graph, parts = make_graph(chosen.folder, chosen.nodes), chosen.folder / "parts"
    data = ["--dataset", str(graph), "--partition-dir", str(parts), "--no-normalize-features", "--edges", "given"]
    execute([*UNILAUNCH, "partition", *data, "--num-parts", str(chosen.ranks)], 600)
    mpirun = BOUND_LINE if chosen.ranks == 2 else LINE
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", str(chosen.ranks)]
    lines = {"MPI": [*mpirun, str(chosen.ranks), sys.executable], "sockets": torchrun}
    print(f"{'':8} {'width':>5} {'MB':>7} {'ours':>8} {'all_to_all':>10} {'messages':>8}  ms, of {chosen.ranks} ranks")
    kept = True
    for name, line in lines.items():
        with tempfile.TemporaryDirectory() as folder:
            arguments = [str(graph), str(parts), f"{folder}/store", str(chosen.rounds), *chosen.widths]
            printed = execute([*line, PROGRAM, *arguments], 900, OMP_NUM_THREADS="1")
        for one in (json.loads(text) for text in printed.splitlines() if text.startswith("{")):
            assert ("Mpi" in one["transport"]) == (name == "MPI"), one["transport"]
            kept &= _show(name, one["width"], one["rows"] * one["width"] * 4, one["seconds"])
    return 0 if kept else 1


def _show(name: str, width: int, size: int, seconds: dict[str, list[float]]) -> bool:
    medians = {way: statistics.median(taken) * 1e3 for way, taken in seconds.items()}
    print(
        f"{name:8} {width:5} {size / 1e6:7.2f} {medians['ours']:8.3f} {medians['all_to_all']:10.3f} "
        f"{medians['messages']:8.3f}"
    )
    return verdict(f"{name}, width {width}: ours / gloo", medians["ours"] / min(medians[way] for way in GLOO), 1.0)


if __name__ == "__main__":
    sys.exit(main())
