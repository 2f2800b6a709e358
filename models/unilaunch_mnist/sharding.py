"""Which images a rank trains on, in which order: pure functions of seed, epoch and rank."""

import numpy as np

from unilaunch_mnist.arrays import Floats, Ids, Pixels

#: Mean and standard deviation of the training images' pixels between 0 and 1, as in the tutorial.
_MEAN, _DEVIATION = 0.1307, 0.3081


def shard(num_images: int, rank: int, size: int, seed: int, epoch: int) -> Ids:
    """Return the images of one rank in one epoch, in the order of its steps.

    As `MnistDataset(num_shards, shard_id)`: every rank shuffles all images alike, and the ranks take them in turn.
    If they cannot be divided evenly, the first images are used twice, so that every rank has the same number of steps.
    Together the ranks' batches of one step are the batch that one rank with a batch as large would take.

    Returns:
        ceil(num_images / size) indices. (shard,)
    """
    draw = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 1, epoch]))
    rounds = -(-num_images // size)
    return np.resize(draw.permutation(num_images), rounds * size)[rank::size]


def normalise(pixels: Pixels) -> Floats:
    """Return the network's input for some images: mean 0 and deviation 1 over the training images. (images, 784)"""
    normal = pixels.astype(np.float32)
    normal *= np.float32(1 / (255 * _DEVIATION))
    normal -= np.float32(_MEAN / _DEVIATION)
    return normal
