"""The options of graph attention. They are read from values too: under `launch` a rank gets no spec."""

from typing import TYPE_CHECKING

from unilaunch.errors import SpecError

if TYPE_CHECKING:
    from unilaunch_gcn.spec import TrainingSpec


def count_heads(options: "TrainingSpec") -> int:
    """Return the heads of gat's hidden layers: 8 as in the paper, if the user did not choose."""
    return options.heads or 8


def refuse_what_attention_lacks(options: "TrainingSpec") -> None:
    """Refuse an option that attention does not have, or that only attention has.

    Raises:
        SpecError: There is one.
    """
    if options.conv != "gat":
        if options.heads is not None:
            raise SpecError(f"--heads {options.heads} --conv {options.conv}: only --conv gat has heads")
        return
    if options.parallel != "graph":
        raise SpecError(
            f"--parallel {options.parallel} --conv gat: attention needs whole rows; expected --parallel graph"
        )
    if options.halo != "exact":
        raise SpecError(f"--halo {options.halo} --conv gat: attention has exact halos; expected --halo exact")
    if options.precision == "bfloat16":
        raise SpecError("--precision bfloat16 --conv gat: expected float32 or float64")
    if options.use_gdc:
        raise SpecError("--use-gdc --conv gat: attention uses no weights of edges; leave --use-gdc out")
