"""The network configuration, for every backend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unilaunch_gcn.layers import Layer
from unilaunch_graph.arrays import FloatType

if TYPE_CHECKING:
    from unilaunch_gcn.spec import TrainingSpec


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The layers and how they are trained.

    Attributes:
        layers: The layers.
        dropout: Share of the input and of the hidden layers that is dropped in training.
        seed: Seed of dropout and weights.
        dtype: Type of weights and features.
        conv: "gcn", "sage" or "gat".
        is_bfloat16: Dense products and halo rows are rounded to bfloat16.
    """

    layers: Sequence[Layer]
    dropout: float
    seed: int
    dtype: FloatType
    conv: str = "gcn"
    is_bfloat16: bool = False

    @classmethod
    def of(cls, options: "TrainingSpec", layers: Sequence[Layer], seed: int) -> "NetworkConfig":
        """Return what the user chose."""
        is_bfloat16 = options.precision == "bfloat16"
        dtype: FloatType = np.dtype("float32" if is_bfloat16 else options.precision)
        return cls(layers, options.dropout, seed, dtype, options.conv, is_bfloat16)
