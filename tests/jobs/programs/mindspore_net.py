"""A data-parallel script as MindSpore's mpirun tutorial teaches it, which trains in PyNative mode and in graph mode."""

import os
import sys

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init

ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
init()


def train(mode: int) -> None:
    ms.set_context(mode=mode)
    ms.set_seed(1)
    images = ds.MnistDataset(os.environ["DATA_PATH"], num_shards=get_group_size(), shard_id=get_rank(), shuffle=False)
    images = images.map([ds.vision.Rescale(1.0 / 255.0, 0), ds.vision.HWC2CHW()], "image")
    images = images.map(ds.transforms.TypeCast(ms.int32), "label").batch(32)
    dense = nn.Dense(28 * 28, 10, weight_init="normal", bias_init="zeros")
    network, loss_of = nn.SequentialCell(nn.Flatten(), dense, nn.ReLU()), nn.CrossEntropyLoss()
    optimizer = nn.SGD(network.trainable_params(), 1e-2)

    def forward(data: ms.Tensor, label: ms.Tensor) -> ms.Tensor:
        return loss_of(network(data), label)

    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
    reducer = nn.DistributedGradReducer(optimizer.parameters)
    losses = []
    for _, (data, label) in zip(range(10), images, strict=False):
        loss, gradients = gradients_of(data, label)
        optimizer(reducer(gradients))
        losses.append(float(loss.asnumpy()))
    weights = float(dense.weight.asnumpy().astype("float64").sum())
    sys.stdout.write(f"{get_rank()}/{get_group_size()} {losses[0]:.4f} -> {losses[-1]:.4f} weights {weights:.5f}\n")


train(ms.PYNATIVE_MODE)
train(ms.GRAPH_MODE)
