"""What is trained, wherever it runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from unilaunch_gcn.arrays import FloatType
from unilaunch_gcn.layers import Layer


@dataclass(frozen=True, slots=True)
class Setting:
    """The layers and how they are trained.

    Attributes:
        layers: The layers.
        dropout: Share of the input and of the hidden layers that is dropped in training.
        seed: Seed of dropout and weights.
        dtype: Type of weights and features.
        conv: "gcn" or "sage".
        halo: "exact", "stale", "int8" or "sample:P".
    """

    layers: Sequence[Layer]
    dropout: float
    seed: int
    dtype: FloatType
    conv: str = "gcn"
    halo: str = "exact"
