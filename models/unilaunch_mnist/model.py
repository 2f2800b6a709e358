"""The model `mnist` for the launcher; imports nothing heavy, since `--help` loads it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unilaunch.interfaces.model import Framework, Model, Session
from unilaunch.json_value import JsonValue
from unilaunch.overriding import override

if TYPE_CHECKING:
    from unilaunch.interfaces.report_layout import ReportLayout
    from unilaunch_mnist.preparation import Mnist
    from unilaunch_mnist.spec import MnistSpec


class MnistModel(Model):
    """The data-parallel network of MindSpore's mpirun tutorial."""

    name = "mnist"
    examples = ("mnist --epochs 10",)

    @property
    @override
    def spec(self) -> "type[MnistSpec]":
        from unilaunch_mnist.spec import MnistSpec

        return MnistSpec

    @property
    @override
    def report(self) -> "ReportLayout":
        from unilaunch_mnist.report import LAYOUT

        return LAYOUT

    @override
    def check(self, options: "MnistSpec", world_size: int) -> None:
        """Do nothing: any options fit any number of ranks."""

    @override
    def prepare(self, options: "MnistSpec", session: Session) -> "Mnist":
        from unilaunch_mnist.preparation import prepare_data

        return prepare_data(options, session)

    @override
    def run(
        self, options: "MnistSpec", prepared: "Mnist", session: Session, framework: Framework
    ) -> Mapping[str, JsonValue]:
        from unilaunch_mnist.summary import show
        from unilaunch_mnist.training import Training

        training = Training.start(options, prepared, session, framework)
        training.run()
        result = training.result()
        if session.world.rank == 0:
            show(result, session, framework.backend.name)
        return result
