"""Write a model's curves for TensorBoard: the numbers of each step that rank 0 records, with tensorboardX."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unilaunch.errors import OutputError, PluginError
from unilaunch.job.curves import Point, following
from unilaunch.report_layout import ReportLayout


@contextmanager
def writing(folder: Path, find: Callable[[], Path | None], layout: ReportLayout) -> Iterator[None]:
    """Write rank 0's records into *folder* while the block runs, and the rest at its end.

    Args:
        folder: The folder for `tensorboard --logdir`.
        find: Returns rank 0's folder; None while there is none. Called in another thread.
        layout: The layout of the model's report.

    Raises:
        PluginError: tensorboardX is not installed.
        OutputError: The folder cannot be written.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise PluginError(f"--tensorboard {folder}: {error}: pip install 'unilaunch[tensorboard]'") from None
    try:
        writer = SummaryWriter(str(folder))
    except OSError as error:
        raise OutputError(f"--tensorboard {folder}: {error.strerror}: choose a folder that can be written") from None

    def write(points: Sequence[Point]) -> None:
        for point in points:
            writer.add_scalar(point.name, point.value, point.step, walltime=point.time)

    with following(find, layout, write, writer.close):
        yield
