"""The fault tests' training script: a small model through closeranks.data_parallel, with kills.

--faults is a JSON list of {"slot": s, "step": n, "where": W, "delay_ms": d}: the worker of slot s kills itself with
SIGKILL (or stops itself, raises, exits) d milliseconds after step n has reached W:
  step      a thread's timer, from the beginning of the step: any instant, inside C++ too
  forward   in the middle of the forward pass
  backward  when the first gradient is ready, so that buckets are in flight
  rebuild   a timer from the beginning of step 1, in which DDP rebuilds its buckets
"what" is kill (default), stop, stop_second (SIGSTOP, continued after one second by a child), raise, exit0.
Each slot that reaches the end writes FOLDER/slot-N.json: steps done, losses, a digest of its parameters, present slots,
contributors of every finished all_reduce.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import closeranks


class Net(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(32, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 8)
        self.in_forward: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        if self.in_forward is not None:
            self.in_forward()
        return self.last(torch.relu(self.second(x)))


def strike(what: str) -> None:
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "stop_second":
        subprocess.Popen([sys.executable, "-c", f"import os,time; time.sleep(1); os.kill({os.getpid()}, 18)"])
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "raise":
        raise RuntimeError("the data of this worker is broken")
    elif what == "exit0":
        sys.stdout.flush()
        sys.exit(0)


def arm(fault: dict[str, Any], net: Net) -> None:
    """Prepares `fault` at the beginning of its step."""
    what, delay = fault.get("what", "kill"), fault.get("delay_ms", 0) / 1000

    def fire() -> None:
        if delay:
            time.sleep(delay)
        strike(what)

    if fault["where"] == "step":
        if what in ("raise", "exit0"):
            fire()
        else:
            threading.Thread(target=fire, daemon=True).start()
    elif fault["where"] == "rebuild":
        threading.Thread(target=fire, daemon=True).start()
    elif fault["where"] == "forward":
        net.in_forward = fire
    elif fault["where"] == "backward":
        net.last.weight.register_hook(lambda _: threading.Thread(target=fire, daemon=True).start())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--pause-ms", type=float, default=0)
    parser.add_argument("--faults", default="[]")
    parser.add_argument("--unmodified", action="store_true", help="torch's own DDP instead of data_parallel")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("closeranks")
    rank = dist.get_rank()
    faults = [fault for fault in json.loads(arguments.faults) if fault["slot"] == rank]

    torch.manual_seed(1)
    net = Net(arguments.hidden)
    # Several buckets, so that more than one op is in flight.
    wrap = torch.nn.parallel.DistributedDataParallel if arguments.unmodified else closeranks.data_parallel
    model = wrap(net, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    losses, contributors, seen = [], {}, -1
    for step in range(arguments.steps):
        net.in_forward = None
        for fault in faults:
            if fault["step"] == step:
                arm(fault, net)
        x = torch.randn(16, 32, generator=generator)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        for op in closeranks.recent_ops(model.process_group):
            if op.sequence > seen and op.kind == "all_reduce":
                seen = op.sequence
                contributors[op.sequence] = op.contributors
        if arguments.pause_ms:
            time.sleep(arguments.pause_ms / 1000)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    result = {
        "slot": rank,
        "steps": len(losses),
        "losses": losses,
        "finite": bool(torch.tensor(losses).isfinite().all()),
        "parameters": digest.hexdigest(),
        "present": closeranks.present(model.process_group),
        "contributors": contributors,
    }
    (arguments.out / f"slot-{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
