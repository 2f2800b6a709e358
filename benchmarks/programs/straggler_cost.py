"""Train with the measurement of waits and without it, in turns, and print the seconds of each block: stragglers.py.

Three kinds of blocks: all steps measured; none measured, but noted; neither.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

STEPS = 16  # of a block
WIDTH, BATCH = 512, 256


def torch_steps() -> tuple[Callable[[], None], Callable[[int], None]]:
    """Return a step of DistributedDataParallel, and what switches the measurement."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from unilaunch_torch import waits

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

    return step, _switch(waits, (dist.Work, "wait"), (DistributedDataParallel, "_post_forward"))


def mindspore_steps() -> tuple[Callable[[], None], Callable[[int], None]]:
    """Return a step with four AllReduces, and what switches the measurement."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn, ops
    from mindspore.communication import get_group_size, init

    from unilaunch_mindspore import waits

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

    return step, _switch(waits, (type(all_reduce), "__call__"))


def _switch(waits: Any, *places: tuple[Any, str]) -> Callable[[int], None]:
    """Return a function that sets how a block is measured: 0 all, 1 none but noted, 2 not at all.

    Args:
        waits: The backend's module, with STRETCH: how many are measured in a row.
        places: What the module has replaced.
    """
    replaced = [getattr(*place) for place in places]

    def switch(how: int) -> None:
        waits.STRETCH = 10**9 if how == 0 else 0
        for (kind, name), function in zip(places, replaced, strict=True):
            setattr(kind, name, function.__wrapped__ if how == 2 else function)

    return switch


blocks, framework = int(sys.argv[1]), sys.argv[2]
step, switch = {"torch": torch_steps, "mindspore": mindspore_steps}[framework]()
seconds: list[list[float]] = [[], [], []]
for block in range(-3, 3 * blocks):  # the first three are not counted
    how = (block + block // 3) % 3  # in an order that rotates: nothing periodic meets the same kind each time
    switch(how)
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    if block >= 0:
        seconds[how].append(time.perf_counter() - begin)
sys.stdout.write(f"BLOCKS {json.dumps({'steps': STEPS, 'seconds': seconds})}\n")
sys.stdout.flush()
