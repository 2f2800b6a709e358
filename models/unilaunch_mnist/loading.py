"""Choose the network for a backend: only this module knows which network belongs to which backend."""

from unilaunch.errors import SpecError
from unilaunch.interfaces.backend import Placement
from unilaunch_mnist.network import Network, initial_weights


def load_network(backend: str, placement: Placement, seed: int) -> Network:
    """Return the network of a backend on this rank's device.

    Raises:
        SpecError: The backend has no such network on this device.
    """
    if backend == "torch":
        from unilaunch_mnist.torch_network import TorchNetwork

        return TorchNetwork(initial_weights(seed), str(placement))
    if backend == "mindspore" and placement.device != "cuda":
        from unilaunch_mnist.mindspore_network import MindSporeNetwork

        return MindSporeNetwork(initial_weights(seed), on_host=placement.device == "cpu")
    raise SpecError(
        f"--backend {backend} --device {placement.device}: the model mnist runs on torch (cpu, cuda, npu) and on "
        "mindspore (cpu, npu)"
    )
