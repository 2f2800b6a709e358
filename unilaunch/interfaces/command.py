"""A command that a plug-in adds to the command line, beside `run`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unilaunch.spec.run_spec import Spec


class Command(ABC):
    """One command; its module must import nothing heavy, since `--help` loads it."""

    #: One line for `--help`.
    help: str
    #: Command lines that `--help` shows.
    examples: Sequence[str] = ()
    #: The type of its options.
    spec: "type[Spec]"

    @abstractmethod
    def run(self, options: Any) -> int:
        """Run the command, and return the exit code.

        Raises:
            UnilaunchError: The command cannot be run.
        """
