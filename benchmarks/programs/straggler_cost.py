"""Train with the measurement of waits and without it, in turns, and print the seconds of each block: stragglers.py.

Blocks with what is looked at, and blocks without. Of whole steps all are measured; of light ones, which do little but
meet, none is measured, but each is noted.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

STEPS = 16  # of a block
WIDTH, BATCH = 512, 256
LIGHT = 8  # a width: its step does little but meet
#: What a backend's `waits.STRETCH` is for a kind of block: all measured, or none.
ALL, NONE = 10**9, 0
Step = Callable[[], object]
#: Sets STRETCH; None takes the measurement away.
Switch = Callable[[int | None], None]


def torch_steps() -> tuple[Step, Step, Switch]:
    """Return a step of DistributedDataParallel, a light one, and what switches the measurement."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from unilaunch_torch import waits

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())

    def make_step(width: int) -> Step:
        layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()]
        net: Any = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)))
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        x, y = torch.randn(BATCH, width), torch.randint(10, (BATCH,))

        def step() -> None:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            dist.all_reduce(total := loss.detach())
            assert total.isfinite()

        return step

    switch = _switch(waits, (dist.Work, "wait"), (DistributedDataParallel, "_post_forward"))
    return make_step(WIDTH), make_step(LIGHT), switch


def mindspore_steps() -> tuple[Step, Step, Switch]:
    """Return a step with four AllReduces, these alone on short rows, and what switches the measurement."""
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

    def light() -> None:
        for _ in optimizer.parameters:
            all_reduce(x[0, :LIGHT]).asnumpy()

    return step, light, _switch(waits, (type(all_reduce), "__call__"))


def _switch(waits: Any, *places: tuple[Any, str]) -> Switch:
    """Return a function that sets how a block is measured.

    Args:
        waits: The backend's module, with STRETCH: how many are measured in a row.
        places: What the module has replaced.
    """
    replaced = [getattr(*place) for place in places]

    def switch(stretch: int | None) -> None:
        waits.STRETCH = stretch or 0
        for (kind, name), function in zip(places, replaced, strict=True):
            setattr(kind, name, function.__wrapped__ if stretch is None else function)

    return switch


def seconds_of(step: Step, switch: Switch, stretch: int, blocks: int) -> list[tuple[float, float]]:
    """Return the seconds of a step with the measurement and without, of each pair of neighbours."""
    pairs = []
    for block in range(-1, blocks):  # the first pair is not counted
        took = {}
        for how in (stretch, None) if block % 2 else (None, stretch):
            switch(how)
            begin = time.perf_counter()
            for _ in range(STEPS):
                step()
            took[how] = (time.perf_counter() - begin) / STEPS
        pairs.append((took[stretch], took[None]))
    return pairs[1:]


blocks, framework = int(sys.argv[1]), sys.argv[2]
step, light, switch = {"torch": torch_steps, "mindspore": mindspore_steps}[framework]()
figures = {"measured": seconds_of(step, switch, ALL, blocks), "noted": seconds_of(light, switch, NONE, 10 * blocks)}
sys.stdout.write(f"BLOCKS {json.dumps(figures)}\n")
sys.stdout.flush()
