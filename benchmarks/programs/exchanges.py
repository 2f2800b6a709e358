"""One rank of benchmarks/exchange.py: a halo exchange by unilaunch, and the same rows by gloo, in turn.

exchanges.py GRAPH PARTITION_DIR STORE ROUNDS WIDTH...

STORE is a new file, by which gloo's ranks find each other.

Rank 0 prints a line of JSON for each width: each way's seconds of an exchange in each round, by the slowest rank.
"""

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import unilaunch_graph as ug

#: Exchanges of one way in a round.
COUNT = 20
Exchange = Callable[[torch.Tensor], None]


def ours(part: ug.torch.GraphPart, sent: torch.Tensor) -> Exchange:
    """Return the exchange of unilaunch's own transport: MPI, or sockets."""
    plan = part.halo_operator
    return lambda received: part.ranks.exchange(sent, plan.send_counts, received, plan.receive_counts).wait()


def all_to_all(part: ug.torch.GraphPart, sent: torch.Tensor) -> Exchange:
    """Return gloo's all-to-all of uneven counts."""
    plan = part.halo_operator

    def exchange(received: torch.Tensor) -> None:
        dist.all_to_all_single(received, sent, plan.receive_counts, plan.send_counts)

    return exchange


def messages(part: ug.torch.GraphPart, sent: torch.Tensor) -> Exchange:
    """Return gloo's messages between each two ranks that have rows for each other, all at once."""
    plan = part.halo_operator

    def exchange(received: torch.Tensor) -> None:
        arriving, leaving = torch.split(received, plan.receive_counts), torch.split(sent, plan.send_counts)
        works = [dist.irecv(rows, rank) for rank, rows in enumerate(arriving) if len(rows) and rank != part.rank]
        works += [dist.isend(rows, rank) for rank, rows in enumerate(leaving) if len(rows) and rank != part.rank]
        for work in works:
            if work is not None:
                work.wait()

    return exchange


def seconds(exchange: Exchange, received: torch.Tensor) -> float:
    """Return the slowest rank's seconds of one exchange."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(COUNT):
        exchange(received)
    taken = torch.tensor((time.perf_counter() - begin) / COUNT, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


def main() -> None:
    """Measure each width, and compare the rows that arrive."""
    graph, parts, store, rounds, *widths = sys.argv[1:]
    part = ug.load(graph, partition_dir=parts, normalize_features=False)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=part.rank, world_size=part.world_size)
    for width in map(int, widths):
        rows = part.owned[:, None] + torch.arange(width) / 1024.0
        sent = rows.float().index_select(0, part.halo_operator.every)
        ways = {"ours": ours(part, sent), "all_to_all": all_to_all(part, sent), "messages": messages(part, sent)}
        received = {name: torch.empty(part.num_halo, width) for name in ways}
        for name, exchange in ways.items():  # connects and warms up
            exchange(received[name])
            assert torch.equal(received[name], received["ours"]), f"{name}: other rows"
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(int(rounds)):
            for name, exchange in ways.items():
                taken[name].append(seconds(exchange, received[name]))
        halo = torch.tensor(part.num_halo)
        dist.all_reduce(halo)
        if part.rank == 0:
            transport = type(part.ranks.collectives).__name__
            print(json.dumps({"width": width, "transport": transport, "rows": int(halo), "seconds": taken}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
