"""Train with the measurement of waits and without it, in turns, and print the seconds of each block: stragglers.py."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

STEPS = 16  # of a block
WIDTH, BATCH = 512, 256


def torch_steps() -> tuple[Callable[[], None], Callable[..., None]]:
    """Return a step of DistributedDataParallel, and what switches the measurement."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    net: Any = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10)))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    x, y = torch.randn(BATCH, WIDTH), torch.randint(10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        dist.all_reduce(total := loss.detach())
        assert total.isfinite()

    return step, _switch((dist.Work, "wait"), (DistributedDataParallel, "_post_forward"))


def mindspore_steps() -> tuple[Callable[[], None], Callable[..., None]]:
    """Return a step with four AllReduces, and what switches the measurement; if it is on, all of them are measured."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn, ops
    from mindspore.communication import get_group_size, init

    from unilaunch_mindspore import waits

    waits.PERIOD = waits.STRETCH
    ms.set_device("CPU")
    init()
    net = nn.SequentialCell(nn.Dense(WIDTH, WIDTH), nn.ReLU(), nn.Dense(WIDTH, 10))
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    rows = np.random.default_rng(0)
    x = ms.Tensor(rows.standard_normal((BATCH, WIDTH)), ms.float32)
    y = ms.Tensor(rows.integers(0, 10, BATCH), ms.int32)
    loss_of = ops.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, optimizer.parameters)
    all_reduce, size = ops.AllReduce(), get_group_size()

    def step() -> None:
        loss, gradients = loss_of(x, y)
        optimizer(tuple(all_reduce(gradient) / size for gradient in gradients))
        assert np.isfinite(loss.asnumpy())

    return step, _switch((type(all_reduce), "__call__"))


def _switch(*places: tuple[Any, str]) -> Callable[..., None]:
    measured = [getattr(*place) for place in places]

    def switch(*, is_on: bool) -> None:
        for (kind, name), function in zip(places, measured, strict=True):
            setattr(kind, name, function if is_on else function.__wrapped__)

    return switch


blocks, framework = int(sys.argv[1]), sys.argv[2]
step, switch = {"torch": torch_steps, "mindspore": mindspore_steps}[framework]()
seconds = []
for block in range(-1, 2 * blocks):  # the first is not counted
    switch(is_on=block % 2 == 0)
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    seconds.append(time.perf_counter() - begin)
sys.stdout.write(f"BLOCKS {json.dumps(seconds[1:])}\n")
sys.stdout.flush()
