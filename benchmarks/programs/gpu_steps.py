"""Whether the host waits within an epoch on a GPU, and what it then takes: prints JSON. For gpu_all.sh.

    python benchmarks/programs/gpu_steps.py DEVICE GRAPH [EPOCHS]

The built-in GCN, 3 layers, 128 wide, dropout 0.5, float32, on the whole GRAPH. Ways: `recorded`, a step is a CUDA
graph, as `unilaunch run` trains with Triton; `queued`, the same kernels one by one; `torch`, without Triton. Of each:
    waits       calls of CUDA in an epoch by which the host waits for the device, by torch's profiler; an epoch waits
                for the event of the one before, and for nothing else: bound 0 of cudaStreamSynchronize,
                cudaDeviceSynchronize and blocking copies. torch raises where it would wait itself.
    event       seconds of an epoch, by CUDA events around all of them
    reported    the median that the training writes as seconds_per_epoch: bound 0.95 to 1.05 of event
    host        seconds of an epoch in which the host queued work
On a CPU `torch` runs alone, and there are neither events nor waits. Never run on a GPU so far.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import device_network
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.network import Steps
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import DeviceSteps, TorchDeviceNetwork, TorchDeviceTensors, record_cuda_graph
from unilaunch_gcn.training import Epochs
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

WARM_UP, PROFILED = 10, 5
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
#: The wait for the epoch before.
OWN_WAIT = "cudaEventSynchronize"
#: Bounds of the reported seconds, as a share of the events'.
LEAST, MOST = 0.95, 1.05
Figures = dict[str, Any]


def main() -> None:
    """Print one JSON object for each way."""
    device, path, epochs = (*sys.argv[1:], "100")[:3]
    graph = open_dataset(path, Path(path).parent, None, 0, normalize_features=False).load()
    part = next(split_parts(graph, order_nodes(graph, np.zeros(graph.num_nodes, np.int64), 1)))
    for way in ("recorded", "queued", "torch") if device == "cuda" else ("torch",):
        try:
            figures = measure(steps_of(part, way, device), int(epochs), is_cuda=device == "cuda")
        except Exception as error:  # noqa: BLE001  (of any kind: the other ways are worth knowing too)
            figures = {"failed": f"{type(error).__name__}: {error}".split("\n")[0]}
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
        print(json.dumps({"steps": way, "device": device, **figures}), flush=True)


def steps_of(part: Part, way: str, device: str) -> Steps:
    """Return the steps of a network on the device."""
    spec = GcnSpec.model_validate({"precision": "float32", "hidden": 128, "layers": 3, "dropout": 0.5})
    config, meter = NetworkConfig.of(spec, plan_layers(spec, part.num_features, part.num_classes), 0), Meter()
    tensors = TorchDeviceTensors(device, is_fused=way != "torch")
    if way != "torch" and tensors.kernels is None:
        raise RuntimeError("Triton's kernels do not start")
    network = device_network(config, part, tensors, Alone(), meter)
    assert isinstance(network, TorchDeviceNetwork)
    adam = network.adam(spec.lr, spec.weight_decay)
    return DeviceSteps(network, adam, Alone(), meter, record_cuda_graph if way == "recorded" else None)


def measure(steps: Steps, epochs: int, *, is_cuda: bool) -> Figures:
    """Return the figures of a way."""
    for epoch in range(WARM_UP):
        steps.take(epoch, stop=False)
    steps.finish()
    begin = time.perf_counter()
    if not is_cuda:
        reported, host = train(steps, epochs)
        return {"reported": reported, "wall": (time.perf_counter() - begin) / epochs, "host": host}
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.set_sync_debug_mode("error")
    first.record()
    reported, host = train(steps, epochs)
    last.record()
    torch.cuda.set_sync_debug_mode("default")
    last.synchronize()
    wall, event = (time.perf_counter() - begin) / epochs, first.elapsed_time(last) / 1000 / epochs
    seen = waits(steps)
    is_waiting = any(
        seen.get(name, 0) >= 1 for name in WAITS if name != OWN_WAIT
    )  # the profiler waits once, at its end
    kept = not is_waiting and LEAST <= reported / event <= MOST
    return {"reported": reported, "event": event, "wall": wall, "host": host, "waits": seen, "kept": kept}


def train(steps: Steps, epochs: int) -> tuple[float, float]:
    """Return the median of an epoch's seconds, as a training writes it, and the mean in which the host queued work."""
    host = 0.0
    with tempfile.TemporaryDirectory() as folder:
        taken = Epochs(Path(folder, "epochs.jsonl"))
        for epoch in range(WARM_UP, WARM_UP + epochs):
            begin = time.perf_counter()
            taken.begin()
            ended = steps.take(epoch, stop=False)
            host += time.perf_counter() - begin
            for figures in ended:
                taken.add(epoch, figures)
        for figures in steps.finish():
            taken.add(WARM_UP + epochs, figures)
    return float(np.median(taken.seconds)), host / epochs


def waits(steps: Steps) -> dict[str, float]:
    """Return how often in an epoch the host waits for the device, by the name of CUDA's function."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for epoch in range(PROFILED):
            steps.take(WARM_UP + epoch, stop=False)
    steps.finish()
    counts = Counter(event.name for event in seen.events() if event.name in WAITS)
    return {name: count / PROFILED for name, count in counts.items()}


if __name__ == "__main__":
    main()
