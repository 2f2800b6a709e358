"""The options of the MNIST network; the defaults are the tutorial's, except for one epoch instead of ten."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from unilaunch.spec.run_spec import Spec


class MnistSpec(Spec):
    """The data and the training."""

    #: The variable that the tutorial sets, so that its command line works unchanged.
    other_variables: ClassVar[Mapping[str, str]] = {"DATA_PATH": "data_dir"}
    other_names: ClassVar[Mapping[str, str]] = {
        "n_epochs": "epochs", "num_epochs": "epochs", "learning_rate": "lr", "bs": "batch_size",
        "batchsize": "batch_size", "data_path": "data_dir",
    }  # fmt: skip

    data_dir: Path | None = Field(
        default=None,
        description="folder of the four MNIST files, or of mnist/, or of train/ and test/; "
        "default: UNILAUNCH_DATA, DATA_PATH, or the cache folder",
    )
    epochs: int = Field(default=1, ge=1, description="number of epochs, each one pass over the training images")
    batch_size: int = Field(default=32, ge=1, description="images of one step on each rank")
    lr: float = Field(default=0.01, gt=0, description="step size of stochastic gradient descent")
