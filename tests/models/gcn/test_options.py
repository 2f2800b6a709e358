"""The options of the GCN, of `plan` and of `predict`: what they mean, and what is refused before a graph is read."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphs_by_hand import make_directed_graph, make_graph, parts_of
from unilaunch.errors import RefusedTogetherError, SpecError
from unilaunch.interfaces.backend import Placement
from unilaunch_gcn.model import GcnModel
from unilaunch_gcn.options import refuse_untrainable, takes_edges_as_given
from unilaunch_gcn.plan import PlanCommand
from unilaunch_gcn.predict_command import PredictSpec, _trained
from unilaunch_gcn.spec import GcnSpec


@pytest.mark.parametrize(("options", "expected"), [
    ({"conv": "gcn"}, False), ({"conv": "sage"}, True), ({"conv": "gat"}, True),
    ({"conv": "sage", "edges": "symmetric"}, False), ({"conv": "sage", "use_gdc": True}, False),
])  # fmt: skip
def test_which_layers_take_edges_as_they_are_given(options: dict[str, Any], expected: object) -> None:
    spec = GcnSpec(**options)
    GcnModel().check(spec, 1)
    assert takes_edges_as_given(spec) == expected


@pytest.mark.parametrize(("options", "words"), [
    ({"edges": "given"}, "--edges given --conv gcn: A_hat needs a symmetric graph"),
    ({"conv": "sage", "use_gdc": True, "edges": "given"}, "--edges given --use-gdc: diffusion needs a symmetric graph"),
    ({"conv": "gat", "parallel": "tensor"}, "--parallel tensor --conv gat: "),
    ({"conv": "gat", "parallel": "auto"}, "--parallel auto --conv gat: "),
    ({"conv": "gat", "precision": "bfloat16"}, "--precision bfloat16 --conv gat: "),
    ({"conv": "gat", "use_gdc": True}, "--use-gdc --conv gat: "),
    ({"conv": "sage", "heads": 4}, "--heads 4 --conv sage: only --conv gat has heads"),
    ({"layers": 2, "residual": True}, "--residual --layers 2: only a layer between the first and the last"),
    ({"layers": 1, "hidden": 64}, "--hidden 64 --layers 1"),
    ({"layers": 1, "layer_norm": True}, "--layer-norm --layers 1"),
    ({"layers": 1, "conv": "gat", "heads": 4}, "--heads 4 --layers 1"),
])  # fmt: skip
def test_options_that_exclude_each_other_or_change_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=f"^{words}"):
        GcnModel().check(GcnSpec(**options), 1)


def test_a_device_refuses_attention_and_directed_edges() -> None:
    """Attention before a graph is looked for."""
    session: Any = SimpleNamespace(placement=Placement("cuda", 0, 1))
    with pytest.raises(RefusedTogetherError, match=r"^--conv gat --device cuda: [^\n]*--device cpu$"):
        GcnModel().prepare(GcnSpec(dataset="nowhere", conv="gat"), session)
    with pytest.raises(SpecError, match=r"--conv sage --device cuda: the edges are directed, .*--device cpu"):
        refuse_untrainable(GcnSpec(conv="sage"), parts_of(make_directed_graph(4, [(0, 1)]))[0], "cuda")
    refuse_untrainable(GcnSpec(conv="sage"), parts_of(make_graph(4, [(0, 1)]))[0], "cuda")


def test_plan_forecasts_no_device() -> None:
    with pytest.raises(SpecError, match=r"^--device cuda: plan forecasts ranks on cpu; .*leave --device out$"):
        PlanCommand().run(PlanCommand.spec(dataset="nowhere", device="cuda"))


@pytest.mark.parametrize(("run", "other", "expected"), [
    ({"dataset": "cora"}, "own.npz", True),
    ({"dataset": "own.npz"}, "cora", False),
    ({"dataset": "own.npz", "normalize_features": True}, "cora", True),
    ({"dataset": "cora"}, None, None),  # left to the name of the data set, which is the run's
])  # fmt: skip
def test_predict_scales_the_features_of_another_graph_as_in_training(
    run: dict[str, Any], other: str | None, expected: object, tmp_path: Path
) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"seed": 3, "options": GcnSpec(**run).to_json(), "started_in": ""}))
    trained, seed = _trained(PredictSpec(folder=tmp_path, dataset=other))
    assert (trained.normalize_features, trained.dataset, seed) == (expected, other or run["dataset"], 3)
