"""The interface of a partitioner, which assigns each node to a part; partitioners are found by entry point."""

from abc import ABC, abstractmethod
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import PluginError
from unilaunch.interfaces import plugins
from unilaunch_graph.data.graph import Graph

_GROUP = ("unilaunch.partitioners", "partitioner")


class Partitioner(ABC):
    """A partitioner: an entry point of the group "unilaunch.partitioners".

    Attributes:
        package: The package of the partitioner; only `cut` imports it.
    """

    package: str

    @abstractmethod
    def cut(self, graph: Graph, num_parts: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the part of each node, in (num_nodes,) int64; the same graph must give the same parts.

        `assign` refines it: it moves single nodes so that the halo falls.

        Args:
            graph: The graph, symmetric.
            num_parts: Number of parts: at least 2, and fewer than nodes.
            weights: Weight of each node; the parts should have equal weights. (num_nodes,) int64
        """

    @property
    def label(self) -> str:
        """Name and version, as written in a manifest."""
        return f"{self.package} {version(self.package)}"


def load_partitioner(name: str) -> Partitioner:
    """Return the partitioner *name*.

    Raises:
        PluginError: There is no such partitioner, or its package is not installed.
    """
    found: Partitioner = plugins.make(*_GROUP, name)
    if find_spec(found.package) is None:
        raise PluginError(f"--partitioner {name} needs {found.package}: pip install 'unilaunch[partition]'")
    return found


def refuse_if_missing(name: str) -> None:
    """Raise a PluginError if the partitioner *name* cannot be used, before any file is read; "auto" is always valid."""
    if name != "auto":
        load_partitioner(name)
