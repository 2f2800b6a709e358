"""The backend: cpu only. The framework that it starts is the small automatic differentiation in `autograd.py`."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from typing_extensions import override

from unilaunch.interfaces.backend import Backend, Collectives, Peers, Placement, Rendezvous
from unilaunch.interfaces.world import World


class NumpyBackend(Backend):
    """numpy with a small automatic differentiation."""

    name = "numpy"
    framework = "unilaunch_numpy.autograd"
    devices = ("cpu",)
    launcher = "mpirun"

    @override
    def variables(self, world: World, placement: Placement, rendezvous: Rendezvous | None) -> dict[str, str]:
        return {}

    @override
    def program_variables(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        return {}

    @override
    def hooks(self, rendezvous: Rendezvous, world: World, peers: Peers) -> dict[str, Callable[[ModuleType], None]]:
        return {}

    @override
    def after_fork(self, threads: int) -> None:
        """Do nothing: unilaunch seeds numpy's random numbers and sets its threads."""

    @override
    def start(self, world: World, placement: Placement) -> None:
        import unilaunch_numpy.autograd  # noqa: F401  (the framework import)

    @override
    def connect(self, world: World, placement: Placement, rendezvous: Rendezvous, timeout: float) -> Collectives:
        raise NotImplementedError("numpy has no communication of its own: on cpu the ranks use unilaunch's")

    @override
    def stop(self) -> None:
        """Do nothing: there is no communication to end."""

    @override
    def versions(self) -> Mapping[str, str]:
        import numpy as np
        import scipy

        return {"numpy": np.__version__, "scipy": str(scipy.__version__)}

    @override
    def network(self, model: str) -> Callable[[Any], Any] | None:
        if model != "gcn":
            return None
        from unilaunch_numpy.network import NumpyTensors

        return NumpyTensors
