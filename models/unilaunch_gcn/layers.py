"""In what order each layer is computed, and how many columns it exchanges."""

from dataclasses import dataclass
from itertools import pairwise

from unilaunch_gcn.spec import GcnSpec


@dataclass(frozen=True, slots=True)
class Layer:
    """One graph convolution H' = act(A_hat H W).

    Attributes:
        width_in: Columns of H.
        width_out: Columns of W.
        order: "product first" A_hat (H W), where that is the narrower exchange; "aggregation first" (A_hat H) W; or
            "aggregated once": A_hat X is made before the first epoch, since nothing in it changes.
        exchanges: Halo exchanges of one epoch, each *width* columns wide.
        width: Columns of an exchange.
    """

    width_in: int
    width_out: int
    order: str
    exchanges: int
    width: int


def plan_layers(options: GcnSpec, num_features: int, num_classes: int) -> list[Layer]:
    """Return the layers, first to last."""
    widths = [num_features, *[options.hidden] * (options.layers - 1), num_classes]
    return [
        _layer(width_in, width_out, first=depth == 0, constant_input=options.dropout == 0)
        for depth, (width_in, width_out) in enumerate(pairwise(widths))
    ]


def _layer(width_in: int, width_out: int, *, first: bool, constant_input: bool) -> Layer:
    if first and constant_input:
        return Layer(width_in, width_out, "aggregated once", 0, 0)
    if width_out <= width_in:
        return Layer(width_in, width_out, "product first", 2, width_out)
    # Nobody asks for the gradient of the input: the first layer then sends nothing back.
    return Layer(width_in, width_out, "aggregation first", 1 if first else 2, width_in)
