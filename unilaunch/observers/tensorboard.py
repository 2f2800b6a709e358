"""A model's curves in a folder for TensorBoard, written with tensorboardX."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from unilaunch.errors import OutputError, PluginError
from unilaunch.interfaces.observer import Observed, Observer
from unilaunch.observers.points import Point, following
from unilaunch.overriding import override


class TensorBoard(Observer):
    """Writes into the folder of `tensorboard --logdir`."""

    of_models = True

    @override
    @contextmanager
    def observing(self, where: str, job: Observed) -> Iterator[None]:
        """Write rank 0's records into the folder *where*.

        Raises:
            PluginError: tensorboardX is not installed.
            OutputError: The folder cannot be written.
        """
        typed = f"--observe tensorboard={where}"
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise PluginError(f"{typed}: {error}: pip install 'unilaunch[tensorboard]'") from None
        try:
            writer = SummaryWriter(where)
        except OSError as error:
            raise OutputError(f"{typed}: {error.strerror}: choose a folder that can be written") from None

        def write(points: Sequence[Point]) -> None:
            for point in points:
                writer.add_scalar(point.name, point.value, point.step, walltime=point.time)

        with following(job, write, writer.close):
            yield
