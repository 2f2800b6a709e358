"""`unilaunch partition`: make a partition ahead of a run."""

from typing import Literal

from pydantic import Field
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.folder.log import Log
from unilaunch.interfaces.command import Command
from unilaunch_graph.spec import DataSpec


class PartitionSpec(DataSpec):
    """Into how many parts."""

    num_parts: int | None = Field(default=None, ge=1, description="number of parts: as many as the run has ranks")
    edges: Literal["symmetric", "given"] = Field(
        default="symmetric",
        description="symmetric, as --conv gcn needs them, or as given, for sage, gat and networks of your own",
    )


class PartitionCommand(Command):
    """Cut a graph into parts, and store them where `run` finds them."""

    help = "cut a graph into parts ahead of a run"
    examples = (
        "unilaunch partition --dataset cora --num-parts 4",
        "unilaunch partition --dataset graph.npz --num-parts 4 --edges given",
    )
    spec = PartitionSpec

    @override
    def run(self, options: PartitionSpec) -> int:
        if options.num_parts is None:
            raise SpecError("--num-parts: how many parts? as many as the run will have ranks")
        from unilaunch_graph.partition.preparation import prepare

        prepare(options, options.num_parts, Log(), as_given=options.edges == "given")
        return 0
