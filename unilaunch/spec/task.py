"""The task: spec, target and options, read and checked; nothing is imported or started yet."""

from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from unilaunch.interfaces.backend import Backend
from unilaunch.interfaces.model import Model
from unilaunch.record import Record
from unilaunch.spec.target import Target

if TYPE_CHECKING:
    from unilaunch.spec.run_spec import RunSpec, Spec

S = TypeVar("S", bound="RunSpec", covariant=True)  # noqa: PLC0105


class Machine(Enum):
    """The machine on which a job will run: it determines what is checked on the machine that plans the job."""

    #: This machine: its files, its mpirun, its cores and its devices are checked.
    HERE = "here"
    #: Hosts of a cluster with the same files: scripts and frameworks are checked here, cores and devices are not.
    CLUSTER = "cluster"
    #: Containers: the script, the framework, Python and mpirun are in the image, and nothing is checked here.
    IMAGE = "image"


class Task(Record, Generic[S]):
    """A task that has been read and checked.

    Attributes:
        spec: The spec.
        target: The target of the run.
        model: The target, if it is a model.
        options: The model's options.
        backends: The backends, whose frameworks are not imported yet: one for a model; all installed ones for a
            program, which may use any of them.
        command: The command line of `launch`, word by word; () if the ranks were started without it.
        host: The host of `launch`, which may not see the files of other hosts; "" if the ranks were started without it.
    """

    spec: S
    target: Target
    model: Model | None
    options: "Spec | None"
    backends: tuple[Backend, ...]
    command: tuple[str, ...] = ()
    host: str = ""

    def check(self, world_size: int) -> None:
        """Raise an error if the task does not fit the number of ranks.

        Raises:
            SpecError: The model's options do not fit.
        """
        if self.model:
            self.model.check(self.options, world_size)
