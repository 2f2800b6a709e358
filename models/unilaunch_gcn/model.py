"""The model `gcn` for the launcher; imports nothing heavy, since `--help` loads it."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unilaunch.interfaces.agreement import alike
from unilaunch.interfaces.model import Framework, Model, Session
from unilaunch.json_value import JsonValue
from unilaunch.overriding import override
from unilaunch_gcn.options import refuse_options, takes_edges_as_given, told_of_edges

if TYPE_CHECKING:
    from unilaunch.interfaces.report_layout import ReportLayout
    from unilaunch_gcn.spec import GcnSpec
    from unilaunch_graph.data.graph import Graph
    from unilaunch_graph.partition.part import Part


PREDICTIONS = "predictions.npz"


class GcnModel(Model):
    """The partitioned graph convolutional network."""

    name = "gcn"
    examples = ("--dataset cora", "--backend torch --epochs 100")
    stops_patiently = True

    @property
    @override
    def spec(self) -> "type[GcnSpec]":
        from unilaunch_gcn.spec import GcnSpec

        return GcnSpec

    @property
    @override
    def report(self) -> "ReportLayout":
        from unilaunch_gcn.objective import LAYOUT

        return LAYOUT

    @override
    def check(self, options: "GcnSpec", world_size: int) -> None:
        refuse_options(options, num_ranks=world_size)

    @override
    def modules(self, backend: str) -> Sequence[str]:
        own = {"torch": "unilaunch_gcn.torch_tensors", "mindspore": "unilaunch_gcn.mindspore_tensors"}
        common = (
            "loguru", "platformdirs", "unilaunch_gcn.memory", "unilaunch_gcn.training",
            "unilaunch_graph.partition.preparation",
        )  # fmt: skip
        return (*common, own[backend]) if backend in own else common

    @override
    def files(self, options: "GcnSpec") -> Sequence[str]:
        return [PREDICTIONS] if options.save_predictions else []

    @override
    def resumes(self, options: "GcnSpec") -> bool:
        return options.resume

    @override
    def checkpoint_folder(self, options: "GcnSpec") -> tuple[str, Path] | None:
        return ("--checkpoint-dir", options.checkpoint_dir) if options.checkpoint_dir else None

    @override
    def restartable(self, options: "GcnSpec") -> "GcnSpec":
        every = options.checkpoint_every or max(1, options.epochs // 10)
        return options.model_copy(update={"checkpoint_every": every})

    @override
    def again(self, options: "GcnSpec", *, fewer_ranks: bool) -> "GcnSpec":
        update: dict[str, object] = {"resume": True, **({"num_parts": None, "owner": None} if fewer_ranks else {})}
        return options.model_copy(update=update)

    @override
    def prepare(self, options: "GcnSpec", session: Session) -> "Part":
        from unilaunch_gcn.memory import refuse_part
        from unilaunch_graph.partition.preparation import prepare_part

        device = session.placement.device
        alike(partial(refuse_options, options, device))
        check = partial(_refuse_to_train, options, session)
        part = prepare_part(options, session, as_given=takes_edges_as_given(options), check=check)
        if device == "cpu":
            alike(partial(refuse_part, options, part, session))
        if part.is_directed and session.world.rank == 0:
            session.log.say(told_of_edges(options, part))
        return part

    @override
    def run(
        self, options: "GcnSpec", prepared: "Part", session: Session, framework: Framework
    ) -> Mapping[str, JsonValue]:
        from unilaunch_gcn.objective import show
        from unilaunch_gcn.training import Training

        training = Training(options, prepared, session, framework)
        training.run()
        if options.save_predictions:
            training.save_predictions(session.output.root / PREDICTIONS)
        result = training.result()
        if session.world.rank == 0:
            show(result, session, framework.backend.name)
        return result


def _refuse_to_train(options: "GcnSpec", session: Session, graph: "Graph | Part") -> None:
    """Refuse a graph that the options cannot train on, or that needs more memory than this host has.

    Raises:
        SpecError, InputError: As `refuse_untrainable` and `refuse_graph`.
    """
    from unilaunch_gcn.memory import refuse_graph
    from unilaunch_gcn.options import refuse_untrainable
    from unilaunch_graph.data.graph import Graph

    device = session.placement.device
    refuse_untrainable(options, graph, device)
    if isinstance(graph, Graph) and device == "cpu":
        refuse_graph(options, graph, session)
