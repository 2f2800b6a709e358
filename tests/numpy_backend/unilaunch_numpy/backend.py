"""The backend: cpu only. The framework that it starts is the small automatic differentiation in `network.py`."""

from typing import Any

from typing_extensions import override

from unilaunch.interfaces.backend import Backend, Collectives


class NumpyBackend(Backend):
    """numpy with a small automatic differentiation: what each method does is said in `Backend`."""

    name = "numpy"
    framework = "unilaunch_numpy.network"
    devices = ("cpu",)
    launcher = "mpirun"

    @override
    def variables(self, *_: Any) -> dict[str, str]:
        return {}

    @override
    def program_variables(self, *_: Any) -> dict[str, str]:
        return {}

    @override
    def hooks(self, *_: Any) -> dict[str, Any]:
        return {}

    @override
    def after_fork(self, threads: int) -> None:
        """Do nothing: unilaunch seeds numpy's random numbers and sets its threads."""

    @override
    def start(self, *_: Any) -> None:
        import unilaunch_numpy.network  # noqa: F401  (the framework import)

    @override
    def connect(self, *_: Any) -> Collectives:
        raise NotImplementedError("numpy has no communication of its own: on cpu the ranks use unilaunch's")

    @override
    def stop(self) -> None:
        """Do nothing: there is no communication to end."""

    @override
    def versions(self) -> dict[str, str]:
        import numpy as np
        import scipy

        return {"numpy": np.__version__, "scipy": str(scipy.__version__)}

    @override
    def network(self, model: str) -> Any:
        if model != "gcn":
            return None
        from unilaunch_numpy.network import NumpyTensors

        return NumpyTensors
