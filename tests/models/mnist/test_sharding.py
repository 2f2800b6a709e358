"""Shards: equally long, together everything, the same global batches on any number of ranks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unilaunch_mnist.sharding import normalise, shard

SIZES = st.integers(1, 9)
SEEDS = st.integers(0, 2**32 - 1)


@given(num_images=st.integers(1, 200), size=SIZES, seed=SEEDS, epoch=st.integers(0, 1000))
def test_shards_are_disjoint_and_cover(num_images: int, size: int, seed: int, epoch: int) -> None:
    """Every image once; a full round is completed with the first images, and with no others."""
    shards = [shard(num_images, rank, size, seed, epoch) for rank in range(size)]
    assert {len(own) for own in shards} == {-(-num_images // size)}
    dealt = np.stack(shards, axis=1).ravel()
    assert sorted(dealt[:num_images]) == list(range(num_images))
    again = dealt[num_images:]
    assert len(again) < size
    np.testing.assert_array_equal(again, np.resize(dealt[:num_images], len(again)))


@given(rounds=st.integers(1, 30), size=SIZES, batch_size=st.integers(1, 8), seed=SEEDS)
def test_the_global_batches_do_not_depend_on_the_ranks(rounds: int, size: int, batch_size: int, seed: int) -> None:
    """When the images go round: the ranks' batches of a step are one rank's batch that is as large."""
    num_images = rounds * size
    alone = shard(num_images, 0, 1, seed, 3)
    shards = [shard(num_images, rank, size, seed, 3) for rank in range(size)]
    for step in range(-(-rounds // batch_size)):
        batches = [own[step * batch_size : (step + 1) * batch_size] for own in shards]
        together = alone[step * batch_size * size : (step + 1) * batch_size * size]
        assert sorted(np.concatenate(batches)) == sorted(together)


def test_every_epoch_and_seed_shuffles_anew() -> None:
    """And the same ones shuffle alike."""
    orders = {tuple(shard(50, 0, 1, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert tuple(shard(50, 0, 1, 2, 2)) in orders


def test_normalise_is_the_tutorials() -> None:
    """Rescale by 1/255, then Normalize, to float32's last digits."""
    pixels = np.arange(256, dtype=np.uint8).reshape(4, 64)
    expected = (pixels / 255.0 - 0.1307) / 0.3081
    normal = normalise(pixels)
    assert normal.dtype == np.float32
    np.testing.assert_allclose(normal, expected, rtol=0, atol=1e-6)
