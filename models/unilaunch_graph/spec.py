"""What the user can choose about a graph and how it is divided."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from unilaunch.spec.run_spec import Spec

_TOP_K = 128


def _text(name: Any) -> Any:
    """Return a path as text: the converters return paths."""
    return str(name) if isinstance(name, Path) else name


class DataSpec(Spec):
    """Which graph, and how it is divided."""

    #: As other programs for graphs call them.
    other_names: ClassVar[Mapping[str, str]] = {
        "data": "dataset", "data_set": "dataset", "dataset_name": "dataset", "data_root": "data_dir",
        "n_parts": "num_parts", "nparts": "num_parts", "num_partitions": "num_parts", "n_partitions": "num_parts",
        "gdc": "use_gdc",
    }  # fmt: skip

    dataset: Annotated[str, BeforeValidator(_text)] = Field(
        default="sbm",
        description="sbm (generated), cora, citeseer, pubmed, reddit, ogbn-arxiv, ogbn-products, "
        "ogbn-papers100M, or a file or folder",
        examples=["sbm", "cora", "citeseer", "pubmed", "reddit", "ogbn-arxiv", "ogbn-products", "ogbn-papers100M"],
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
    balance: Literal["nodes", "edges", "train"] = Field(default="nodes", description="what is balanced over the parts")
    partitioner: str = Field(
        default="auto",
        description="what cuts the graph: auto, which is metis; mtkahypar is slower",
    )
    owner: Path | None = Field(
        default=None,
        description="your own partition: a file with the rank that owns each node, .npy, or text as gpmetis writes it",
    )
    use_gdc: bool = Field(default=False, description="diffuse the graph first: its edges become PageRank's")
    gdc_alpha: float = Field(default=0.05, gt=0, lt=1, description="PageRank's probability of going back")
    gdc_top_k: int = Field(default=_TOP_K, ge=1, description="edges that each node keeps of it, the strongest")
    gdc_threshold: float | None = Field(default=None, gt=0, description="keep all edges from this strength on instead")
    split_seed: int = Field(
        default=0, ge=0, description="seed of the split of a graph file that has no masks; left out for others"
    )
    normalize_features: bool | None = Field(
        default=None,
        description="divide each node's features by their sum; default: of sbm, cora, citeseer and pubmed, as in the "
        "GCN paper",
    )

    @field_validator("owner")
    @classmethod
    def _is_the_only_cut(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        """Refuse an owner of each node beside options that decide it."""
        for name in ("parallel", "balance", "partitioner"):
            if value and info.data.get(name) != cls.model_fields[name].default:
                raise ValueError(f"left out beside {name}")
        return value

    @field_validator("gdc_alpha", "gdc_top_k", "gdc_threshold")
    @classmethod
    def _needs_gdc(cls, value: float | None, info: ValidationInfo) -> float | None:
        """Refuse an option of the diffusion where there is none."""
        if value != cls.model_fields[str(info.field_name)].default and not info.data.get("use_gdc"):
            raise ValueError("left out without use_gdc")
        if info.field_name == "gdc_threshold" and value and info.data.get("gdc_top_k", _TOP_K) != _TOP_K:
            raise ValueError("left out beside gdc_top_k")
        return value
