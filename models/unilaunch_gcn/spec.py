"""The options of the GCN and its data."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from unilaunch_gcn.options import HIDDEN
from unilaunch_graph.spec import DataSpec


class TrainingSpec(DataSpec):
    """The network and its training; the defaults are those of Kipf and Welling, ICLR 2017."""

    #: As the scripts of PyG, DGL and JittorGeometric call them.
    other_names: ClassVar[Mapping[str, str]] = {
        **DataSpec.other_names,
        "n_epochs": "epochs", "num_epochs": "epochs", "max_epochs": "epochs", "learning_rate": "lr",
        "num_layers": "layers", "n_layers": "layers", "hidden_dim": "hidden", "hidden_channels": "hidden",
        "hidden_size": "hidden", "num_hidden": "hidden", "n_hidden": "hidden", "num_heads": "heads",
        "n_heads": "heads", "wd": "weight_decay", "l2": "weight_decay", "early_stopping": "patience",
        "eval_steps": "eval_every", "dtype": "precision",
    }  # fmt: skip

    epochs: int = Field(default=200, ge=1, description="number of epochs, each one step on the whole graph")
    layers: int = Field(default=2, ge=1, le=1000, description="number of graph convolutions")
    conv: Literal["gcn", "sage", "gat"] = Field(
        default="gcn",
        description="gcn: Kipf and Welling's; sage: the neighbours' mean beside the node itself; gat: attention",
    )
    heads: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="attention heads of gat's hidden layers; default: 8; the last has one",
    )
    edges: Literal["symmetric", "given"] | None = Field(
        default=None,
        description="symmetric: each edge in both directions, once, without loops; given: as they are given; default: "
        "given, but of gcn and of a diffused graph symmetric",
    )
    bias: bool = Field(default=False, description="add a bias in each layer")
    layer_norm: bool = Field(default=False, description="normalise each row of the hidden layers")
    residual: bool = Field(
        default=False, description="add its input to the output of each layer between the first and the last"
    )
    hidden: int = Field(default=HIDDEN, ge=1, le=1_000_000, description="width of the hidden layers; of gat: of a head")
    dropout: float = Field(
        default=0.5, ge=0, lt=1, description="dropout of the input, of the hidden layers, and of attention"
    )
    lr: float = Field(default=0.01, gt=0, description="Adam's step size")
    weight_decay: float = Field(
        default=5e-4, ge=0, description="L2 factor of the first layer's weights; of gat: of all"
    )
    task: Literal["classes", "multilabel", "regression"] | None = Field(
        default=None, description="what is predicted of a node; default: what the form of the labels says"
    )
    precision: Literal["float32", "float64", "bfloat16"] = Field(
        default="float32",
        description="type of weights and features; bfloat16: products and halo rows only; sums and weights are float32",
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
        default=None,
        ge=1,
        description="epochs between two checkpoints; default: a tenth of all with --max-restarts or --requeue",
    )
    checkpoint_dir: Path | None = Field(
        default=None, description="folder of checkpoints; default: checkpoints/ in the output folder"
    )
    save_model: bool = Field(
        default=True, description="keep final.safetensors and best.safetensors (lowest validation loss) as checkpoints"
    )
    save_predictions: bool = Field(
        default=False, description="write predictions.npz: scores, classes and split of every node, in its order"
    )
    keep_checkpoints: int = Field(default=3, ge=1, description="number of this training's checkpoints that are kept")
    resume: bool = Field(default=False, description="go on from the newest checkpoint; from the start if there is none")
    force: bool = Field(
        default=False, description="train although the ranks of a host are forecast to need more memory than it has"
    )
    trace: bool = Field(default=False, description="write each rank's trace.json, for Perfetto or chrome://tracing")
