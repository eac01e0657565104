"""One process of `closeranks bench`: times closeranks and Gloo in turn, through torch.distributed.

Both backends serve the same processes, so that a noisy neighbour hits both: rounds of ours and of the peer alternate.
A round is as many ops as fill ROUND_S, at least MIN_OPS; its figure is the time per op on the slowest process. The
median is over the rounds; p99 is over single ops, timed one by one afterwards (a clock read costs a small op some 5 %).
Rank 0 prints one JSON line per size to the file given by --out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROUND_S = 0.05
MIN_OPS = 3
ROUNDS = 15
# Single ops: a hundredth of them must be some.
SINGLE_OPS = 1000
SINGLE_S = 2.0


def operation(group: dist.ProcessGroup, tensor: torch.Tensor, ops: int) -> float:
    """Seconds per op of `ops` all_reduce calls, as this process saw it."""
    start = time.perf_counter()
    for _ in range(ops):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - start) / ops


def p99(tensor: torch.Tensor, group: dist.ProcessGroup, once: float) -> float:
    """The 99th percentile of the seconds of single all_reduce calls, on the process where it is largest."""
    ops = max(100, min(SINGLE_OPS, int(SINGLE_S / max(once, 1e-7))))
    singles = sorted(operation(group, tensor, 1) for _ in range(ops))
    return slowest(singles[int(0.99 * (ops - 1))], group)


def slowest(seconds: float, group: dist.ProcessGroup) -> float:
    figure = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(figure, op=dist.ReduceOp.MAX, group=group)
    return float(figure.item())


def measure(groups: dict[str, dist.ProcessGroup], bytes_: int) -> dict[str, list[float]]:
    """Per backend the seconds per op of each round; tensors are zeros, which stay finite under repeated sums."""
    tensor = torch.zeros(max(1, bytes_ // 4), dtype=torch.float32)
    ops: dict[str, int] = {}
    for name, group in groups.items():
        operation(group, tensor, 2)
        once = slowest(operation(group, tensor, MIN_OPS), group)
        ops[name] = max(MIN_OPS, min(2000, int(ROUND_S / max(once, 1e-7))))
    rounds: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(ROUNDS):
        for name, group in groups.items():
            dist.barrier(group=group)
            rounds[name].append(slowest(operation(group, tensor, ops[name]), group))
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("closeranks")
    world = dist.group.WORLD
    gloo = dist.new_group(backend="gloo")
    assert world is not None and isinstance(gloo, dist.ProcessGroup)
    groups = {"closeranks": world, "gloo": gloo}
    for bytes_ in (int(size) for size in arguments.bytes.split(",")):
        rounds = measure(groups, bytes_)
        dist.barrier()
        tail = p99(torch.zeros(max(1, bytes_ // 4)), world, statistics.median(rounds["closeranks"]))
        if dist.get_rank() == 0:
            ours, peer = rounds["closeranks"], rounds["gloo"]
            row = {
                "op": "all_reduce",
                "processes": dist.get_world_size(),
                "hosts": 1,
                "bytes": bytes_,
                "memory": "torch",
                "median_us": 1e6 * statistics.median(ours),
                "p99_us": 1e6 * tail,
                "peer": "gloo",
                "peer_median_us": 1e6 * statistics.median(peer),
                "ratio": statistics.median(peer) / statistics.median(ours),
            }
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
