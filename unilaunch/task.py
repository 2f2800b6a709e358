"""What is to be done, read and checked; nothing is imported or started yet."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from unilaunch.backend import Backend
from unilaunch.model import Model
from unilaunch.target import Target

if TYPE_CHECKING:
    from unilaunch.spec import RunSpec, Spec

S = TypeVar("S", bound="RunSpec", covariant=True)  # noqa: PLC0105


class Machine(Enum):
    """The machine on which a job will run: it decides what is looked for on the machine that plans the job."""

    #: This one: its files, its mpirun, its cores and its devices.
    HERE = "here"
    #: Hosts of a cluster with the same files: scripts and frameworks are looked for here, cores and devices are not.
    CLUSTER = "cluster"
    #: Containers: the script, the framework, Python and mpirun are the image's, and nothing is looked for here.
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class Task(Generic[S]):
    """What is to be done, read and checked.

    Attributes:
        spec: The spec.
        target: What it runs.
        model: The target, if it is a model.
        options: The model's options.
        backends: The frameworks, not yet imported: a model's one; for a program, which may use any, all that are
            installed.
        command: The command line of `launch`, word by word; () if the ranks were started without it.
    """

    spec: S
    target: Target
    model: Model | None
    options: "Spec | None"
    backends: tuple[Backend, ...]
    command: tuple[str, ...] = ()

    def check(self, world_size: int) -> None:
        """Refuse what does not fit the number of ranks.

        Raises:
            SpecError: The model's options do not.
        """
        if self.model:
            self.model.check(self.options, world_size)
