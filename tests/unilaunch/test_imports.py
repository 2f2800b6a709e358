"""What is light stays light; the public names are those that are promised; a record is what a dataclass is."""

import dataclasses
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

import unilaunch
from unilaunch.interfaces import plugins
from unilaunch.record import Record, field, replace
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import make_task
from unilaunch.spec.target import Target
from unilaunch.spec.task import encode_task

TASK = encode_task(make_task(LaunchSpec, Target("model", "gcn"), {"backend": "torch", "epochs": 3}, {}))


#: Programs, and what they do not import: no framework and no numpy on `import` and on `--help`; little in each child of
#: a launcher that has no agent yet, and in a rank that was handed its spec: they would take half of the time it adds.
LIGHT = {
    """
import unilaunch
from unilaunch.cli import main
from unilaunch.spec.options import parse
unilaunch.RunSpec, unilaunch.World, parse(['run', '--epochs', '3'])
sys.argv = ['unilaunch', 'partition', '-h']
for call in (lambda: parse(['--help']), main):
    try: call()
    except SystemExit: pass
""": "torch mindspore numpy scipy mpi4py",
    """
import unilaunch.agent.under_launcher
from unilaunch.launchers import detect
detect({})
""": "typing_extensions importlib.metadata pydantic psutil unilaunch.launchers.mpirun",
    f"""
from unilaunch.spec.task import decode_task
import unilaunch.agent.under_launcher, unilaunch.agent.guard, unilaunch.agent.preload, unilaunch.rank.run
assert decode_task({TASK!r}, ()).options.epochs == 3
""": "argparse importlib.metadata pydantic unilaunch.spec.run_spec unilaunch.spec.options",
    """
import unilaunch.rank.run, unilaunch_gcn.training, unilaunch_graph.partition.preparation, unilaunch_mnist.training
""": "pydantic unilaunch.spec.run_spec unilaunch.spec.options",
}


@pytest.mark.parametrize("program", LIGHT, ids=["a user's", "a launcher's child", "a rank", "a model"])
def test_what_is_light_stays_light(program: str) -> None:
    watched = f"import sys\n{program}print(sorted({set(LIGHT[program].split())} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[-1:], done.stderr) == (["[]"], "")


def test_public_names_resolve() -> None:
    """A name in __all__ is there, and is no submodule's name: the two would shadow each other."""
    assert {"LaunchResult", "LaunchSpec", "World", "__version__", "init", "launch"} < set(unilaunch.__all__)
    assert dir(unilaunch) == unilaunch.__all__ == sorted(unilaunch.__all__)
    assert not {module.name for module in pkgutil.iter_modules(unilaunch.__path__)} & set(unilaunch.__all__)
    assert all(getattr(unilaunch, name) is not None for name in unilaunch.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lunch'"):
        _ = unilaunch.lunch
    # `python unilaunch/__main__.py`, as msrun runs it, looks for every module in this folder first.
    assert not {path.stem for path in Path(unilaunch.__file__).parent.iterdir()} & sys.stdlib_module_names


def test_exceptions_and_base_classes_are_public() -> None:
    """Each exception of unilaunch's that a caller can get, and what each plug-in of ours extends."""
    modules = pkgutil.walk_packages(unilaunch.__path__, "unilaunch.")
    found = [vars(import_module(module.name)) for module in modules if not module.name.endswith("__main__")]
    classes = {one for names in found for one in names.values() if isinstance(one, type)}
    errors = {one.__name__ for one in classes if issubclass(one, unilaunch.UnilaunchError)}
    assert errors <= set(unilaunch.__all__)
    assert len(errors) > 14
    public = tuple(getattr(unilaunch, name) for name in ("Backend", "Command", "JobFile", "Launcher", "Model"))
    groups = (plugins.BACKENDS, plugins.COMMANDS, plugins.JOB_FILES, plugins.LAUNCHERS, plugins.MODELS)
    for group, base in zip(groups, public, strict=True):
        assert all(isinstance(one, base) for one in plugins.make_all(group).values())


class Point(Record):
    """A record."""

    x: int
    y: int = 2
    seen: Sequence[int] = field(default_factory=list)


class Named(Point):
    """A record with one more field."""

    name: str = "?"


def test_a_record_is_what_a_dataclass_is() -> None:
    """Users' programs hold some of ours: made, compared, shown and copied so; a default is made anew."""
    point = Point(1, seen=[])
    assert Point(1).seen is not Point(1).seen
    assert point == Point(x=1, y=2)
    assert point not in [Named(1), replace(point, y=3)]
    assert repr(Named(1, name="a")) == "Named(x=1, y=2, seen=[], name='a')"
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="expected x, y, seen"):
        Point(1, x=2)  # type: ignore[misc]
    assert dataclasses.replace(point, y=7) == Point(1, 7)
    assert dataclasses.asdict(Named(1)) == {"x": 1, "y": 2, "seen": [], "name": "?"}
