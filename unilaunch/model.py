"""What a model is to the launcher: a name, a spec of its options, and `run`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unilaunch.agreement import together
from unilaunch.json_value import JsonValue

if TYPE_CHECKING:
    from unilaunch.backend import Backend, Collectives, Peers, Placement
    from unilaunch.output.folder import OutputFolder
    from unilaunch.output.log import Log
    from unilaunch.report_layout import ReportLayout
    from unilaunch.spec import Spec
    from unilaunch.step import Step
    from unilaunch.world import World


@dataclass(frozen=True, slots=True)
class Session:
    """Who this rank is, and how it speaks with the others and with the user.

    Attributes:
        world: Who this rank is.
        placement: What it runs on.
        peers: Small messages between the ranks.
        output: Where logs and results go.
        log: This rank's log.
        seed: Seed of everything that is drawn.
        progress: Notes the step that this rank is in, for the live line and for the report of a failure; costs
            microseconds.
        stop_asked: Returns whether the user stops the job; for a model with `stops_patiently`.
    """

    world: "World"
    placement: "Placement"
    peers: "Peers"
    output: "OutputFolder"
    log: "Log"
    seed: int
    progress: "Callable[[Step], None]" = lambda _: None
    stop_asked: Callable[[], bool] = lambda: False

    @contextmanager
    def together(self, phase: str) -> Iterator[None]:
        """Enter a phase that succeeds on all ranks or on none.

        What one rank must refuse (a damaged file, say) is refused by all: each raises the first rank's error, none
        waits for a rank that has gone. All ranks must enter.

        Raises:
            RefusedTogetherError: On every rank.
        """
        self.output.record(phase=phase)
        with together(self.peers):
            yield


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework, started.

    Attributes:
        backend: Which.
        collectives: The data path between the ranks: on host arrays on cpu, on the framework's tensors on a device.
    """

    backend: "Backend"
    collectives: "Collectives"


class Model(ABC):
    """Something that `run` can train, on every backend. Its module must import nothing heavy: `--help` loads it.

    Under `launch` a rank gets the options' values without their type: attributes of the same names, and `to_json`.
    """

    #: The name in `run NAME`.
    name: str
    #: What can stand behind `run` and `launch`, for `--help`.
    examples: Sequence[str] = ()
    #: It looks at `Session.stop_asked`, keeps its state, and raises `StoppedError` on all ranks; others end at once.
    stops_patiently: bool = False
    #: Only a command of the same distribution starts it: `--help` shows neither its name nor its options.
    is_internal: bool = False

    @property
    @abstractmethod
    def spec(self) -> "type[Spec]":
        """The type of its options. Import it here and not before: under `launch` a rank does not need it."""

    @abstractmethod
    def check(self, options: Any, world_size: int) -> None:
        """Refuse options that do not fit the number of ranks.

        Raises:
            SpecError: They do not.
        """

    @abstractmethod
    def prepare(self, options: Any, session: Session) -> Any:
        """Read the input and refuse what does not fit, before the framework is imported; return what `run` needs.

        Raises:
            UnilaunchError: The input cannot be used.
        """

    @property
    def report(self) -> "ReportLayout":
        """What `unilaunch report` shows of its runs; by default no curves, and each figure under its own name."""
        from unilaunch.report_layout import ReportLayout

        return ReportLayout()

    def modules(self, backend: str) -> Sequence[str]:  # noqa: ARG002
        """Return the modules that each rank imports on CPU: imported once for all ranks of a host; by default none.

        Their import must start no thread, and read nothing that differs from rank to rank.

        Args:
            backend: The backend's name; its framework is imported before them.
        """
        return ()

    def resumes(self, options: Any) -> bool:  # noqa: ARG002  (most do not)
        """Return whether a run with *options* goes on from what an earlier one has left in the output folder."""
        return False

    def again(self, options: Any, *, fewer_ranks: bool) -> Any:  # noqa: ARG002
        """Return the options with which a job that has failed is started again, by default the same.

        Args:
            options: Those of the job that failed.
            fewer_ranks: Hosts have been lost, and the job goes on without them.
        """
        return options

    @abstractmethod
    def run(self, options: Any, prepared: Any, session: Session, framework: Framework) -> Mapping[str, JsonValue]:
        """Train, and return what stands in `result.json`; every rank returns the same."""
