"""What is done with sums of rows on a device before they are stored: bias, ReLU and dropout."""

from typing import Any, NamedTuple

from unilaunch_graph.dropout import least_kept, scale_of_kept


class Dropout(NamedTuple):
    """Portable dropout of rows, or of a matrix's entries, in one epoch and layer; its mask is made where it is needed.

    Attributes:
        nodes: Global id of each row. (rows,) int64 tensor
        keys: The mask's `dropout.stream_keys`. The device reads them when it works, not when the work is queued, so
            that a recorded step serves every epoch. (2,) int64 tensor; for torch's own operations also two numbers
        probability: Share that is dropped, below 1.
    """

    nodes: Any
    keys: Any
    probability: float

    @property
    def least(self) -> int:
        """The least hash that is kept."""
        return least_kept(self.probability)

    @property
    def scale(self) -> float:
        """What is kept is multiplied by this."""
        return scale_of_kept(self.probability)


class Epilogue(NamedTuple):
    """What becomes of sums before they are stored, in this order; None and False leave a step out.

    Attributes:
        plus: Added. (rows, width)
        bias: Added to each row, in the type of the sums. (width,)
        relu: Negative numbers become 0.
        dropout: Dropout of the result.
    """

    plus: Any = None
    bias: Any = None
    relu: bool = False
    dropout: Dropout | None = None
