"""The interface of a model: a name, a spec of its options, and `run`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unilaunch.interfaces.agreement import together
from unilaunch.json_value import JsonValue
from unilaunch.record import Record

if TYPE_CHECKING:
    from unilaunch.folder.folder import OutputFolder
    from unilaunch.folder.log import Log
    from unilaunch.interfaces.backend import Backend, Collectives, Peers, Placement
    from unilaunch.interfaces.report_layout import ReportLayout
    from unilaunch.interfaces.step import Step
    from unilaunch.interfaces.world import World
    from unilaunch.spec.run_spec import Spec


class Session(Record):
    """What a model needs to run on this rank.

    Attributes:
        world: The identity of this rank.
        placement: Its device and threads.
        peers: Small messages between the ranks.
        output: The output folder, for logs and results.
        log: This rank's log.
        seed: Seed of all random numbers.
        progress: Reports the step that this rank is in, for the live line and for the report of a failure; a call takes
            microseconds.
        stop_asked: Returns whether the user stops the job; for a model with `stops_patiently`.
        backend: Name of the backend that will compute.
    """

    world: "World"
    placement: "Placement"
    peers: "Peers"
    output: "OutputFolder"
    log: "Log"
    seed: int
    progress: "Callable[[Step], None]" = lambda _: None
    stop_asked: Callable[[], bool] = lambda: False
    backend: str = ""

    @contextmanager
    def together(self, phase: str) -> Iterator[None]:
        """Enter a phase that succeeds on all ranks or on none.

        If one rank must refuse its input (for instance a damaged file), every rank raises the error of the lowest rank
        that refuses, so that no rank waits for one that has exited. All ranks must enter.

        Raises:
            RefusedTogetherError: On every rank.
        """
        self.output.record(phase=phase)
        with together(self.peers):
            yield


class Framework(Record):
    """A framework that has been started.

    Attributes:
        backend: The framework's backend.
        collectives: The data path between the ranks: on host arrays on cpu, on the framework's tensors on a device.
    """

    backend: "Backend"
    collectives: "Collectives"


class Model(ABC):
    """A model that `run` can train, on every backend. Its module must not import large packages: `--help` loads it.

    Under `launch` a rank gets the values of the options in a simpler object: the same attributes, and `to_json`.
    """

    #: The name in `run NAME`.
    name: str
    #: Examples for `--help`: the words after `run` or `launch`.
    examples: Sequence[str] = ()
    #: True if it checks `Session.stop_asked`, saves its state and raises `StoppedError`. Other models end at once.
    stops_patiently: bool = False
    #: True if only a command of the same distribution starts it: `--help` shows neither its name nor its options.
    is_internal: bool = False

    @property
    @abstractmethod
    def spec(self) -> "type[Spec]":
        """The type of its options. Import the type in this method: under `launch` a rank does not need it."""

    @abstractmethod
    def check(self, options: Any, world_size: int) -> None:
        """Raise an error for options that do not fit the number of ranks.

        Raises:
            SpecError: The options do not fit.
        """

    @abstractmethod
    def prepare(self, options: Any, session: Session) -> Any:
        """Read and check the input, before the framework is imported; return the *prepared* value for `run`.

        Raises:
            UnilaunchError: The input cannot be used.
        """

    @property
    def report(self) -> "ReportLayout":
        """The layout of `unilaunch report` for its runs; by default no curves, and each number under its own name."""
        from unilaunch.interfaces.report_layout import ReportLayout

        return ReportLayout()

    def modules(self, backend: str) -> Sequence[str]:  # noqa: ARG002
        """Return modules to import once for all ranks of a host, before the fork, on CPU; by default none.

        Their import must start no thread, and must not depend on the rank.

        Args:
            backend: The backend's name; its framework is imported before them.
        """
        return ()

    def files(self, options: Any) -> Sequence[str]:  # noqa: ARG002  (most write none)
        """Return the names of files that the model writes into the output folder beside `result.json`; by default none.

        A file of an earlier run with such a name is moved aside; one that no run has written is refused at the start.
        """
        return ()

    def resumes(self, options: Any) -> bool:  # noqa: ARG002  (most do not)
        """Return whether a run with *options* continues from the checkpoints in the output folder."""
        return False

    def checkpoint_folder(self, options: Any) -> tuple[str, Path] | None:  # noqa: ARG002
        """Return the option that names a folder of checkpoints, and the folder.

        None: they are in the output folder, or not kept.
        """
        return None

    def restartable(self, options: Any) -> Any:
        """Return the options of a job that is restarted if it fails, by default the same options.

        A model that resumes chooses here how often it writes a checkpoint, unless the user has.
        """
        return options

    def again(self, options: Any, *, fewer_ranks: bool) -> Any:  # noqa: ARG002
        """Return the options with which a failed job is restarted, by default the same options.

        Args:
            options: The options of the failed job.
            fewer_ranks: Whether the job continues without hosts that were lost.
        """
        return options

    @abstractmethod
    def run(self, options: Any, prepared: Any, session: Session, framework: Framework) -> Mapping[str, JsonValue]:
        """Train, and return the content of `result.json`; every rank returns the same value."""
