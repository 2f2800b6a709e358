"""`sbm`: a generated graph, the same on every machine, so that a first run needs no network.

A degree-corrected stochastic block model (Karrer and Newman, 2011, doi:10.1103/PhysRevE.83.016107): both ends of an
edge are drawn by weight, the second one mostly from the first one's class. A node's words come partly from the topic of
its class; topics overlap their neighbours. Made so that a GCN must use the edges: it reaches about 82 % of the test
nodes, and a perceptron that sees the words alone about half.
"""

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.data.dataset import Dataset, Request
from unilaunch_graph.data.edges import undirected
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL, Graph
from unilaunch_graph.data.split import place_in_class

#: Raise it with every change to the graph: it is part of a partition's identity.
VERSION = 1
SEED = 20_170_224
NUM_NODES, NUM_CLASSES, NUM_DRAWN_EDGES = 3_000, 7, 11_000
HOMOPHILY = 0.55  # share of the edges that surely stay within a class
LEAST_WEIGHT, MOST_WEIGHT = 16, 1_000
NUM_WORDS, WORDS_PER_NODE, WORDS_PER_TOPIC = 500, 18, 120
TOPICALITY = 0.36  # share of a node's words that come from its class's topic
NUM_TRAIN_PER_CLASS, NUM_VAL, NUM_TEST = 20, 500, 1_000


def open_sbm(request: Request) -> Dataset:
    """Return the generated data set; no file is read, and only the name of the request matters."""
    return Dataset(
        request.name, {"name": "sbm", "version": VERSION, "seed": SEED, "nodes": NUM_NODES}, generate, is_symmetric=True
    )


def generate() -> Graph:
    """Make the graph: 3,000 nodes, 7 classes, 500 binary words in CSR, 20 training nodes per class, 500 and 1,000."""
    # Only PCG64's random() and exactly rounded arithmetic: the same bits with every numpy on every machine.
    rng = np.random.Generator(np.random.PCG64(SEED))
    labels = _whole(rng, NUM_NODES, NUM_CLASSES)
    indptr, indices = undirected(*_edges(rng, labels), NUM_NODES)
    return Graph(indptr, indices, _words(rng, labels), labels, _split(labels), NUM_CLASSES)


def _edges(rng: np.random.Generator, labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw both ends of each edge, with repetitions and self-loops. (NUM_DRAWN_EDGES,) twice."""
    order = np.argsort(labels, kind="stable")
    # Nodes as stretches of a line, as long as their weights, classes side by side: a point on it draws a node.
    ends = np.concatenate([[0], np.cumsum(_weights(rng)[order])])
    borders = ends[np.searchsorted(labels[order], np.arange(NUM_CLASSES + 1))]

    def nodes_at(points: NDArray[np.int64]) -> NDArray[np.int64]:
        nodes: NDArray[np.int64] = order[np.searchsorted(ends, points, side="right") - 1]
        return nodes

    sources = nodes_at(_whole(rng, NUM_DRAWN_EDGES, ends[-1]))
    stays = rng.random(NUM_DRAWN_EDGES) < HOMOPHILY
    low = np.where(stays, borders[labels[sources]], 0)
    high = np.where(stays, borders[labels[sources] + 1], ends[-1])
    return sources, nodes_at(low + _whole(rng, NUM_DRAWN_EDGES, high - low))


def _weights(rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw what each node's degree is proportional to: a Pareto tail of exponent 3, cut off. (NUM_NODES,)."""
    pareto: NDArray[np.float64] = LEAST_WEIGHT / np.sqrt(1.0 - rng.random(NUM_NODES))
    return pareto.clip(max=MOST_WEIGHT).astype(np.int64)


def _words(rng: np.random.Generator, labels: NDArray[np.int64]) -> sp.csr_array:
    """Draw the words of each node, each counted once. (NUM_NODES, NUM_WORDS) float32 CSR."""
    nodes = np.repeat(np.arange(NUM_NODES), WORDS_PER_NODE)
    topics = labels[nodes] * NUM_WORDS // NUM_CLASSES
    of_topic = (topics + _whole(rng, len(nodes), WORDS_PER_TOPIC)) % NUM_WORDS
    of_any = _whole(rng, len(nodes), NUM_WORDS)
    words = np.where(rng.random(len(nodes)) < TOPICALITY, of_topic, of_any)
    seen = sp.coo_array((np.ones(len(nodes), np.bool_), (nodes, words)), shape=(NUM_NODES, NUM_WORDS))
    return seen.tocsr().astype(np.float32)


def _split(labels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Take the first nodes of each class to train on, then of the others the first to validate and test with."""
    order = np.argsort(labels, kind="stable")
    place, _ = place_in_class(labels[order])
    split = np.full(NUM_NODES, NONE, np.uint8)
    split[order[place < NUM_TRAIN_PER_CLASS]] = TRAIN
    others = np.flatnonzero(split == NONE)
    split[others[:NUM_VAL]] = VAL
    split[others[NUM_VAL : NUM_VAL + NUM_TEST]] = TEST
    return split


def _whole(rng: np.random.Generator, count: int, below: int | np.int64 | NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw *count* whole numbers from 0 to *below*, exclusive."""
    return (rng.random(count) * below).astype(np.int64)
