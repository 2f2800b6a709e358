"""Every convolution of PyG on parts of a directed, weighted graph: exact, or refused by name.

With `UPDATE_DOCS=1` in the environment the table of docs/graph-layers.md is written anew.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch_geometric.nn import conv
from torch_geometric.nn.aggr import MedianAggregation, QuantileAggregation
from torch_geometric.nn.conv import spline_conv

from models.graph.layers_of_pyg import BY_NUMBERS, CASES, WIDTH, Case, check_exact, spline_basis, spline_weighting
from models.graph.torch_parts import UNEVEN, each_part
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.refusals import CLASSES

PAGE = Path(__file__).parents[3] / "docs" / "graph-layers.md"
AGGREGATIONS: list[Any] = [
    [MedianAggregation(), QuantileAggregation(0.3), "max"], ["median", "softmax", "powermean"],
]  # fmt: skip
pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.filterwarnings("ignore:We do not recommend using the non-optimized CPU version of `SplineConv`")
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_is_exact_on_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and all gradients are those of PyG in one process, to 1e-10 in float64."""
    monkeypatch.setattr(spline_conv, "spline_basis", spline_basis)  # pyg-lib is not installed
    monkeypatch.setattr(spline_conv, "spline_weighting", spline_weighting)
    check_exact(CASES[name])


@pytest.mark.parametrize(
    "case",
    [
        *(CASES[name] for name in ("GATConv", "GCNConv", "CGConv", "TAGConv", "PNAConv")),
        *(Case(partial(conv.SAGEConv, WIDTH, 4, aggr=aggr)) for aggr in AGGREGATIONS),
    ],
)
def test_a_part_without_edges_is_exact(case: Case) -> None:
    """Also for the check, which runs there too; PyG's own quantiles fail where the first node has no edge."""
    check_exact(case, UNEVEN)


@pytest.mark.parametrize("name", BY_NUMBERS)
@each_part(1)
def test_a_convolution_is_refused_by_its_numbers(part: GraphPart, name: str) -> None:
    """On one rank, where it is exact, `distribute` gives a warning."""
    case = BY_NUMBERS[name]
    check: Any = partial(ug.check, case.make(), part)
    with pytest.raises(SpecError, match=f"{name} is not exact on parts of a graph"):
        case.call(check, part.x, part)


def test_the_table_in_the_docs_names_every_class_that_is_not_exact() -> None:
    refused = {*conv.__all__} - {*CASES, *BY_NUMBERS, "MessagePassing"}
    assert all(getattr(conv, name) in CLASSES for name in refused)
    rows = [
        f"| {verdict} | {', '.join(f'`{name}`' for name in conv.__all__ if name in classes)} |\n"
        for verdict, classes in {"by its name": refused, "by its numbers": BY_NUMBERS}.items()
    ]
    head, begin, rest = PAGE.read_text().partition("<!-- table -->\n")
    _, end, tail = rest.partition("<!-- end of the table -->")
    page = "".join([head, begin, "| refused | layers |\n|---|---|\n", *rows, end, tail])
    if "UPDATE_DOCS" in os.environ:  # noqa: TID251
        PAGE.write_text(page)
    assert PAGE.read_text() == page
