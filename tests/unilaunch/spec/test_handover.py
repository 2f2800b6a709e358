"""What `launch` hands to its ranks: the spec that it has checked, whole, and read without pydantic."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from typing_extensions import override

from unilaunch.errors import PluginError, SpecError
from unilaunch.interfaces import plugins
from unilaunch.record import replace
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import make_task
from unilaunch.spec.run_spec import Spec
from unilaunch.spec.target import Target
from unilaunch.spec.task import Task, decode_task, encode_task
from unilaunch_gcn.model import GcnModel


class _Inner(Spec):
    width: int = 1
    folder: Path = Path("inner")


class _Rich(Spec):
    """Every kind of field that a model may have."""

    widths: tuple[int, ...] = (16,)
    names: list[str] = Field(default=[])
    rate: float | None = 0.5
    files: tuple[Path, ...] = ()
    by_name: dict[str, list[float]] = Field(default={})
    inner: _Inner = _Inner()
    flag: bool = True


class _RichModel(GcnModel):
    name = "rich"
    spec = _Rich  # type: ignore[assignment]

    @override
    def check(self, options: Any, world_size: int) -> None:
        """Fit any number of ranks."""


@pytest.fixture
def _rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "models", lambda: {"rich": _RichModel()})
    monkeypatch.setattr(plugins, "load_model", lambda _: _RichModel())


def _task(what: Target, /, **values: Any) -> Task[LaunchSpec]:
    return make_task(LaunchSpec, what, values, {})


_LETTERS = st.characters(codec="utf-8", exclude_characters="\0")  # NUL is refused
_TEXTS = st.text(_LETTERS, max_size=8) | st.sampled_from(["-out", "--", "a b", "é", "path", "tuple"])
_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "widths": st.lists(st.integers(-5, 5)).map(tuple),
        "names": st.lists(_TEXTS),
        "rate": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "files": st.lists(_TEXTS.filter(bool).map(Path)).map(tuple),
        "by_name": st.dictionaries(_TEXTS, st.lists(st.floats(-1, 1))),
        "inner": st.builds(_Inner, width=st.integers(), folder=_TEXTS.filter(bool).map(Path)),
        "flag": st.booleans(),
        "seed": st.integers(0, 9),
        "interface": _TEXTS.filter(bool),
    },
)


@pytest.mark.usefixtures("_rich")
@given(_VALUES)
def test_every_value_makes_the_way(values: dict[str, Any]) -> None:
    """Of its own type, and equal: lists, optional ones, paths, and what begins with a dash."""
    task = _task(Target("model", "rich"), **values, backend="torch")
    taken = decode_task(encode_task(task), ())
    assert taken.options
    for name in _Rich.model_fields:
        ours, theirs = getattr(task.options, name), getattr(taken.options, name)
        if name == "inner":
            ours, theirs = dict(ours), dict(theirs.__dict__)
        assert (type(theirs), theirs) == (type(ours), ours)
    assert taken.options.to_json() == json.loads(json.dumps(task.options.to_json() if task.options else {}))
    assert taken.spec.to_json() == {name: task.spec.to_json()[name] for name in taken.spec.to_json()}


def test_a_text_that_fits_into_no_variable_is_refused() -> None:
    """A notebook's source, for one; Linux would refuse to start mpirun."""
    task = _task(Target("module", "tool"), target="-m tool")
    with pytest.raises(SpecError, match=r"-m tool: its source, .* are 12\d{4} bytes together, .* holds 120000: "):
        encode_task(replace(task, target=replace(task.target, source="é" * 20_000)))


@pytest.mark.parametrize(("change", "words"), [
    (lambda told: told | {"version": "0.0.9"}, "launch is unilaunch 0.0.9, and this host has"),
    (lambda told: told | {"target": {"kind": "script", "name": "none.py"}}, "script none.py: no such file"),
    (lambda told: told | {"target": {"kind": "model", "name": "none"}}, "no model 'none'"),
])  # fmt: skip
def test_what_does_not_fit_this_host_is_refused(change: Any, words: str) -> None:
    """In one line: another version, a script or a model that only the launching host has."""
    told = json.loads(encode_task(_task(Target("model", "gcn"), backend="torch")))
    with pytest.raises((SpecError, PluginError), match=words):
        decode_task(json.dumps(change(told)), ())


def test_a_rank_that_was_handed_its_spec_imports_neither_pydantic_nor_a_parser() -> None:
    """They would take half of the time that a rank adds to its program's."""
    text = encode_task(_task(Target("model", "gcn"), backend="torch", epochs=3))
    program = (
        "import sys\n"
        "from unilaunch.spec.task import decode_task\n"
        "import unilaunch.agent.under_launcher, unilaunch.agent.guard, unilaunch.agent.preload, unilaunch.rank.run\n"
        f"assert decode_task({text!r}, ()).options.epochs == 3\n"
        "assert not {'argparse', 'importlib.metadata'} & set(sys.modules)\n"
        "import unilaunch_gcn.training, unilaunch_graph.partition.preparation, unilaunch_mnist.training\n"
        "print(sorted({'pydantic', 'unilaunch.spec.run_spec', 'unilaunch.spec.options'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", ""), shlex.join(done.args)
