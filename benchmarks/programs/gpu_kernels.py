"""Triton's kernels beside torch's operations and torch.compile, by time on one GPU: prints JSON. For gpu_all.sh.

    python benchmarks/programs/gpu_kernels.py DEVICE GRAPH [MOST_SECONDS]

    product   A @ H for the edges of GRAPH, widths 16, 64, 128 and 256, H in float32 and bfloat16: `Triton` our kernel,
              `torch` a CSR matrix of torch, `compiled` gather and add by torch.compile, at width 128
              alone since it takes seconds to compile, and where all messages are below 8 GB
    epilogue  bias, ReLU and portable dropout of (nodes, 128)
    adam      a step on a million weights; `torch` is torch.optim.Adam(fused=True)
Milliseconds are the median of 10 after 3, by CUDA events; `gigabytes_per_second` of a product counts a row for each
entry, the entries and the result: a card's own bandwidth is the most that it can be without a cache. A way that fails
says why. What is not measured after MOST_SECONDS is left out. Never run on a GPU so far.
"""

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unilaunch_gcn.device import Dropout, Epilogue
from unilaunch_gcn.torch_device import TorchDeviceTensors, TorchPasses
from unilaunch_graph.dropout import stream_keys
from unilaunch_torch.sparse import CsrArrays, KernelMatrix

WARM_UP, REPEATS, WIDTH = 3, 10, 128
KINDS = (torch.float32, torch.bfloat16)
#: Of all messages, which a compiler may not fuse.
_MOST_BYTES = 2**33
#: Of a GPU: some milliseconds.
_CYCLES = 5_000_000
Work = Callable[[], object]
Figures = dict[str, Any]


class Edges:
    """The edges of a graph on a device: each way's matrix.

    Args:
        path: The graph.
        device: The device.
    """

    def __init__(self, path: Path, device: str) -> None:
        folder = {name: np.load(path / f"{name}.npy") for name in ("indptr", "indices")} if path.is_dir() else None
        arrays = folder or np.load(path)
        indptr, indices = arrays["indptr"], arrays["indices"]
        self.num_nodes, self.num_entries, self.device = len(indptr) - 1, len(indices), torch.device(device)
        values = np.random.default_rng(0).random(len(indices), np.float32)
        shape = (self.num_nodes, self.num_nodes)
        self.csr = CsrArrays(indptr, indices, values, shape, self.device)
        self.kernels = TorchDeviceTensors(device).kernels

    def ways(self, rows: torch.Tensor) -> dict[str, Work]:
        """Return what multiplies *rows*, by way."""
        csr = self.csr
        values = csr.values.to(rows.dtype)
        with warnings.catch_warnings():  # torch calls its CSR tensors a beta
            warnings.simplefilter("ignore", UserWarning)
            matrix = torch.sparse_csr_tensor(csr.indptr, csr.indices, values, csr.shape, check_invariants=False)
        ways: dict[str, Work] = {"torch": lambda: matrix @ rows}
        if self.kernels:
            kernel = KernelMatrix(csr, self.kernels.multiply)
            # Into rows of their own type, as a layer's sums with their epilogue are written.
            ways["Triton"] = lambda: kernel.multiply(kernel, rows, rows.new_empty(csr.shape[0], rows.shape[1]))
        if rows.shape[1] == WIDTH and self.num_entries * WIDTH * rows.element_size() < _MOST_BYTES:
            counts = csr.indptr.diff()
            targets = torch.repeat_interleave(torch.arange(len(counts), device=self.device), counts)

            def gathered(rows: torch.Tensor, values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
                messages = rows.index_select(0, csr.indices) * values[:, None]
                return rows.new_zeros(len(rows), rows.shape[1]).index_add_(0, targets, messages)

            compiled = torch.compile(gathered, dynamic=False)
            ways["compiled"] = lambda: compiled(rows, values, targets)
        return ways

    def bytes_of(self, rows: torch.Tensor) -> int:
        """Return the bytes that a product reads and writes where no cache helps."""
        row = rows.shape[1] * rows.element_size()
        return self.num_entries * (row + 4 + 4) + self.num_nodes * (row + 4)


def main() -> None:
    """Print one JSON object for each measurement."""
    device, path, most = (*sys.argv[1:], "60")[:3]
    begin = time.perf_counter()
    edges = Edges(Path(path), device)
    for named, ways, num_bytes in cases(edges):
        for way, work in ways.items():
            if time.perf_counter() - begin > float(most):
                print(json.dumps({**named, "way": way, "failed": f"left out after {most} s"}), flush=True)
                continue
            figures = milliseconds(work, device)
            if num_bytes and "milliseconds" in figures:
                figures["gigabytes_per_second"] = round(num_bytes / figures["milliseconds"] / 1e6, 1)
            print(json.dumps({**named, "way": way, "device": device, **figures}), flush=True)


def cases(edges: Edges) -> Iterator[tuple[Figures, dict[str, Work], int]]:
    """Give what names a measurement, its ways, and the bytes that it moves; 0 where they are not counted."""
    for kind in KINDS:
        for width in (128, 16, 64, 256):
            rows = torch.randn(edges.num_nodes, width, device=edges.device).to(kind)
            named = {"kernel": "product", "dtype": str(kind)[6:], "width": width, "entries": edges.num_entries}
            yield named, edges.ways(rows), edges.bytes_of(rows)
    yield {"kernel": "epilogue", "dtype": "float32", "width": WIDTH}, epilogues(edges), 0
    yield {"kernel": "adam", "dtype": "float32", "width": 10**6}, adams(edges), 0


def epilogues(edges: Edges) -> dict[str, Work]:
    """Return what applies bias, ReLU and dropout, by way."""
    rows = torch.randn(edges.num_nodes, WIDTH, device=edges.device)
    out = torch.empty_like(rows)
    nodes = torch.arange(edges.num_nodes, device=edges.device)
    keys = torch.tensor(stream_keys(0, 0, 0), dtype=torch.int64, device=edges.device)
    bias = torch.randn(WIDTH, device=edges.device)
    epilogue = Epilogue(bias=bias, relu=True, dropout=Dropout(nodes, keys, 0.5))
    compiled = torch.compile(lambda rows, out: TorchPasses.apply(epilogue, rows, out), dynamic=False)
    ways: dict[str, Work] = {
        "torch": lambda: TorchPasses.apply(epilogue, rows, out),
        "compiled": lambda: compiled(rows, out),
    }
    if kernels := edges.kernels:
        ways["Triton"] = lambda: kernels.apply(epilogue, rows, out)
    return ways


def adams(edges: Edges) -> dict[str, Work]:
    """Return what takes a step of Adam, by way."""
    weights, gradient = (torch.randn(10**6, device=edges.device) for _ in range(2))
    parameter = torch.nn.Parameter(weights.clone())
    parameter.grad = gradient
    ways: dict[str, Work] = {"torch": torch.optim.Adam([parameter], lr=0.01, fused=True).step}
    if kernels := edges.kernels:
        moments = torch.zeros_like(weights), torch.zeros_like(weights)
        powers = torch.tensor([0.9, 0.999], dtype=torch.float64, device=edges.device)
        sums = gradient.double()
        ways["Triton"] = lambda: kernels.adam_step(weights, moments, sums, powers, (0.01, 0.0, 0))
    return ways


def milliseconds(work: Work, device: str) -> Figures:
    """Return the median of a work's milliseconds, or why there is none."""
    try:
        for _ in range(WARM_UP):
            work()
        return {"milliseconds": statistics.median(_time(work, device) for _ in range(REPEATS))}
    except Exception as error:  # noqa: BLE001  (of any kind: the other ways are worth knowing too)
        return {"failed": f"{type(error).__name__}: {error}".split("\n")[0][:200]}


def _time(work: Work, device: str) -> float:
    if device == "cpu":
        begin = time.perf_counter()
        work()
        return (time.perf_counter() - begin) * 1000
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001  (meanwhile the host queues the work)
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


if __name__ == "__main__":
    main()
