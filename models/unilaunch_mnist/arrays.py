"""Names for the arrays that are passed around."""

import numpy as np
from numpy.typing import NDArray

#: Weights and normalised pixels.
Floats = NDArray[np.float32]
#: Grey values, one row for each image. (images, 784)
Pixels = NDArray[np.uint8]
#: One class for each image. (images,)
Labels = NDArray[np.int64]
Ids = NDArray[np.int64]
