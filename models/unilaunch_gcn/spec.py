"""What the user can choose about the GCN and its data."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from unilaunch.spec import Spec

#: P has at most eight zeros behind the point: 1 - P must be less than 1 in float64.
_HALO = re.compile(r"exact|stale|int8|sample:(0?\.0{0,8}[1-9]\d*|1(\.0*)?)")


def _check_halo(halo: str) -> str:
    if not _HALO.fullmatch(halo):
        raise ValueError("exact, stale, int8, or sample:P with P from 1e-9 to 1 (sample:0.1)")
    return halo


class DataSpec(Spec):
    """Which graph, and how it is divided."""

    dataset: str = Field(
        default="sbm",
        description="sbm (generated), cora, citeseer, pubmed, reddit, ogbn-arxiv, or a file or folder",
    )
    data_dir: Path | None = Field(
        default=None, description="folder of data sets; default: UNILAUNCH_DATA, or the cache folder"
    )
    mirror: str | None = Field(
        default=None, description="address that data sets are fetched from instead of their public one"
    )
    partition_dir: Path | None = Field(
        default=None, description="folder of partitions; default: partitions/ in the data folder"
    )
    parallel: Literal["graph", "tensor", "auto"] = Field(
        default="graph",
        description="what ranks divide: graph: the nodes; tensor: the columns; auto: what sends fewer bytes",
    )
    balance: Literal["nodes", "edges", "train"] = Field(default="nodes", description="what the parts have alike")
    use_gdc: bool = Field(default=False, description="diffuse the graph first: its edges become PageRank's")
    gdc_alpha: float = Field(default=0.05, gt=0, lt=1, description="PageRank's probability of going back")
    gdc_top_k: int = Field(default=128, ge=1, description="edges that each node keeps of it, the strongest")
    gdc_threshold: float | None = Field(default=None, gt=0, description="keep all edges from this strength on instead")
    split_seed: int = Field(default=0, ge=0, description="seed of the split of a graph file that has no masks")
    normalize_features: bool = Field(default=True, description="divide each node's features by their sum")


class TrainingSpec(DataSpec):
    """The network and its training; the defaults are those of Kipf and Welling, ICLR 2017."""

    epochs: int = Field(default=200, ge=1, description="number of epochs, each one step on the whole graph")
    layers: int = Field(default=2, ge=1, le=1000, description="number of graph convolutions")
    conv: Literal["gcn", "sage"] = Field(
        default="gcn", description="gcn: Kipf and Welling's; sage: the neighbours' mean beside the node itself"
    )
    bias: bool = Field(default=False, description="add a bias in each layer")
    layer_norm: bool = Field(default=False, description="normalise each row of the hidden layers")
    residual: bool = Field(
        default=False, description="add its input to the output of each layer between the first and the last"
    )
    hidden: int = Field(default=16, ge=1, le=1_000_000, description="width of the hidden layers")
    dropout: float = Field(default=0.5, ge=0, lt=1, description="dropout of the input and of the hidden layers")
    lr: float = Field(default=0.01, gt=0, description="Adam's step size")
    weight_decay: float = Field(default=5e-4, ge=0, description="L2 factor of the first layer's weights")
    halo: Annotated[str, AfterValidator(_check_halo)] = Field(
        default="exact",
        description="exact; or, not exact: sample:P of the halo rows, stale rows of the last epoch, or rows in int8",
    )
    precision: Literal["float32", "float64", "bfloat16"] = Field(
        default="float32",
        description="type of weights and features; bfloat16: of what is multiplied and sent, the sums are float32",
    )


class GcnSpec(TrainingSpec):
    """A run of it."""

    num_parts: int | None = Field(
        default=None, ge=1, description="number of parts; must equal the number of ranks of a run"
    )

    eval_every: int = Field(default=10, ge=1, description="epochs between two evaluations")
    patience: int | None = Field(
        default=None, ge=1, description="end after so many evaluations without a lower validation loss; default: never"
    )
    checkpoint_every: int | None = Field(
        default=None, ge=1, description="epochs between two checkpoints; default: none is written"
    )
    checkpoint_dir: Path | None = Field(
        default=None, description="folder of checkpoints; default: checkpoints/ in the output folder"
    )
    keep_checkpoints: int = Field(default=3, ge=1, description="number of this run's checkpoints that are kept")
    resume: bool = Field(default=False, description="go on from the newest checkpoint; from the start if there is none")
    trace: bool = Field(default=False, description="write each rank's trace.json, for Perfetto or chrome://tracing")
