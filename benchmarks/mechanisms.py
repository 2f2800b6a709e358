"""What an epoch loses without each mechanism that exists for speed alone.

    python benchmarks/mechanisms.py [--rounds 3] [--only NAME ...] [--folder DIR]

Each row runs a copy of these sources in which one mechanism is switched off, beside the sources as they are, on 2 ranks
of one thread, under mpirun unless the row says otherwise: the GCN of epoch.py without dropout, with dropout 0.5, the
latter in bfloat16, the latter with 8 % of the nodes in training, and Cora. All in turn, round after round; a figure is
the median, over the rounds, of the time of an epoch without the mechanism / with it. Where nothing changes the copy is
not run: bfloat16 has no portable sum of words.
Bound: a mechanism loses 5 % somewhere; what loses less on two processors is removed.
"""

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from epoch import OPTIONS
from graphs import make_graph
from mpirun import BOUND_LINE, DIRECT_LINE, MODELS, SHARED, Change, changed_sources, train, verdict
from pruning import few_trained

EPOCHS = "10"
#: The least that an epoch must lose.
LEAST = 1.05
NATIVE, KERNELS = "unilaunch_graph/kernels/native.py", "unilaunch_graph/kernels/kernels.c"
IMPORT = Change(NATIVE, "import IDENTITY, NOTHING,", "import IDENTITY, NOTHING, PortableKernels,")
NO_C = Change("unilaunch_graph/kernels/choice.py", "_MANY = 1 << 17", "_MANY = 1 << 62")
NO_FBGEMM = Change("unilaunch_graph/kernels/choice.py", 'return "torch" in sys.modules or', "return False and")


class Mechanism(NamedTuple):
    """Something that makes an epoch faster.

    Attributes:
        code: Its files, or the names of sections and functions of kernels.c.
        settings: Where it can matter.
        changes: What switches it off.
        among: What is switched off in both runs.
        line: The start.
    """

    code: tuple[str, ...]
    settings: tuple[str, ...]
    changes: tuple[Change, ...]
    among: tuple[Change, ...] = ()
    line: Sequence[str] = BOUND_LINE


def _portable(before: str, call: str) -> tuple[Change, ...]:
    """Return the changes by which a method of the kernels in C calls the portable one before a line of its own."""
    return IMPORT, Change(NATIVE, before, f"        return PortableKernels(self.dtype).{call}\n{before}")


_LARGE = ("plain", "dropout")
_NO_SHARED = Change(
    "unilaunch_graph/exchange/halo.py", "self.shared = share_buffers(", "self.shared = None and share_buffers("
)
MECHANISMS = {
    "kernels in C": Mechanism(
        (KERNELS, NATIVE, "unilaunch_graph/kernels/library.py"), (*_LARGE, "bfloat16", "few"), (NO_C,)
    ),
    "dense product in C": Mechanism(
        ("dense product", "dense product of bfloat16 numbers by AMX"),
        (*_LARGE, "few"),
        (
            *_portable("        left, mask = left if isinstance(left, Masked)", "product(left, right, epilogue)"),
            Change(NATIVE, "        return Masked(array, words)", "        return self.drop_out(array, words)"),
        ),
    ),
    "sparse product in C": Mechanism(
        ("sparse product",),
        (*_LARGE, "few"),
        (Change("unilaunch_graph/operators/row_blocks.py", "if isinstance(kernels", "if 0 and isinstance(kernels"),),
    ),
    "pass_positive in C": Mechanism(
        ("pass_positive",),
        _LARGE,
        _portable("        rows, gradient = np.ascontig", "pass_positive(rows, gradient, scale)"),
    ),
    "dropout in C": Mechanism(
        ("drop_out",),
        ("dropout", "few"),
        _portable("        rows, out = np.ascontig", "drop_out(np.maximum(rows, 0) if relu else rows, words)"),
    ),
    "finish in C": Mechanism(
        ("finish",), _LARGE, _portable("        own, words = (None, own)", "finish(out, own, loops, left, then)")
    ),
    "FBGEMM, where there is no C": Mechanism(
        ("unilaunch_graph/operators/fbgemm.py",), (*_LARGE, "cora"), (NO_FBGEMM,), (NO_C,)
    ),
    "shared memory": Mechanism(
        ("unilaunch_graph/exchange/shared_memory.py",),
        (*_LARGE, "cora"),
        (_NO_SHARED,),
    ),
    "shared memory, direct start": Mechanism(
        ("unilaunch_graph/exchange/shared_memory.py",), (*_LARGE, "cora"), (_NO_SHARED,), line=DIRECT_LINE
    ),
    "pruning": Mechanism(
        ("unilaunch_gcn/pruning.py", "unilaunch_gcn/reach.py"),
        ("few", "cora"),
        (Change("unilaunch_gcn/reach.py", "return 0 < 2 * num_reached <= num_nodes", "return False"),),
    ),
}


def main() -> int:
    """Measure, print the table, and return 0 if each mechanism earns its lines here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(MECHANISMS), choices=list(MECHANISMS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    settings, kept = _settings(chosen.folder), True
    print(f"{'':28} {'lines':>5}  " + "  ".join(f"{name:>9}" for name in settings), flush=True)
    for name in chosen.only:
        mechanism = MECHANISMS[name]
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            without = changed_sources(Path(first), mechanism.changes + mechanism.among)
            with_it = changed_sources(Path(second), mechanism.among) if mechanism.among else MODELS
            lost = {
                setting: _lost(options, (without, with_it), mechanism.line, chosen.rounds)
                for setting, options in settings.items()
                if setting in mechanism.settings
            }
        row = "  ".join(f"{lost[setting]:9.3f}" if setting in lost else f"{'':9}" for setting in settings)
        print(f"{name:28} {_lines(mechanism):5}  {row}", flush=True)
        kept &= verdict(f"{name}: without / with", max(lost.values()), LEAST, at_most=False)
    return 0 if kept else 1


def _lines(mechanism: Mechanism) -> int:
    """Return the lines of its code; what it needs of others is not counted."""
    kernels = (MODELS / KERNELS).read_text(encoding="utf-8")
    files = [name for name in mechanism.code if "/" in name]
    parts = [
        re.search(rf"(?ms)^(/\* ---- {name}[ :].*?(?=^/\* ----|\Z)|void {name}\(.*?^}}\n)", kernels)
        for name in mechanism.code if "/" not in name
    ]  # fmt: skip
    assert all(parts), f"{mechanism.code}: kernels.c has no such section or function"
    texts = [(MODELS / name).read_text(encoding="utf-8") for name in files] + [part[0] for part in parts if part]
    return sum(text.count("\n") for text in texts)


def _settings(folder: Path) -> dict[str, list[str]]:
    """Return the options of each training by its name."""
    graph = make_graph(folder)
    large, few = (_data(one, folder) for one in (graph, few_trained(graph, 0.08)))
    return {
        "plain": [*large, *OPTIONS, "--dropout", "0"],
        "dropout": [*large, *OPTIONS, "--dropout", "0.5"],
        "bfloat16": [*large, *OPTIONS, "--dropout", "0.5", "--precision", "bfloat16"],
        "few": [*few, *OPTIONS, "--dropout", "0.5"],
        "cora": [
            "--dataset",
            "cora",
            "--data-dir",
            str(SHARED),
            "--partition-dir",
            str(folder / "parts"),
            "--threads",
            "1",
        ],
    }


def _data(graph: Path, folder: Path) -> list[str]:
    return ["--dataset", str(graph), "--partition-dir", str(folder / "parts"), "--no-normalize-features"]


def _lost(options: list[str], both: tuple[Path, Path], line: Sequence[str], rounds: int) -> float:
    """Return the time of an epoch without the mechanism, of that with it."""
    ratios = []
    for _ in range(rounds):
        taken = []
        for sources in both:
            result = _train(options, line, sources)
            taken.append(result["seconds_per_epoch"])
        ratios.append(taken[0] / taken[1])
    return float(statistics.median(ratios))


def _train(options: list[str], line: Sequence[str], sources: Path) -> dict[str, Any]:
    words = ["--backend", "torch", *options]
    epochs = "200" if "cora" in options else EPOCHS
    return train(2, *words, "--epochs", epochs, "--eval-every", epochs, line=line, sources=sources)


if __name__ == "__main__":
    sys.exit(main())
