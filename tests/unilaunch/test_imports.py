"""What is light stays light, and the public names are those that are promised."""

import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import unilaunch
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import make_task
from unilaunch.spec.target import Target
from unilaunch.spec.task import encode_task

TASK = encode_task(make_task(LaunchSpec, Target("model", "gcn"), {"backend": "torch", "epochs": 3}, {}))
#: Programs, and what they do not import: a user's, a launcher's child before it has an agent, a rank with its spec.
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
    "import unilaunch_graph\n": "torch mindspore numpy scipy",
    f"""
from unilaunch.spec.task import decode_task
import unilaunch.agent.under_launcher, unilaunch.agent.guard, unilaunch.agent.preload, unilaunch.rank.run
assert decode_task({TASK!r}, ()).options.epochs == 3
assert not {{'argparse', 'importlib.metadata'}} & set(sys.modules)
import unilaunch_gcn.training, unilaunch_graph.partition.preparation, unilaunch_mnist.training
""": "pydantic unilaunch.spec.run_spec unilaunch.spec.options",
}


@pytest.mark.parametrize("program", LIGHT, ids=["a user's", "a launcher's child", "a user's of graphs", "a rank"])
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


def test_exceptions_are_public() -> None:
    modules = pkgutil.walk_packages(unilaunch.__path__, "unilaunch.")
    found = [vars(import_module(module.name)) for module in modules if not module.name.endswith("__main__")]
    classes = {one for names in found for one in names.values() if isinstance(one, type)}
    errors = {one.__name__ for one in classes if issubclass(one, unilaunch.UnilaunchError)}
    assert len(errors) > 14
    assert errors <= set(unilaunch.__all__)
