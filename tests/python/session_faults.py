"""How workers of session_training.py come to grief: faults by step or by place in the epoch, at a moment within it.

A fault is {"slot": s, "step": n, "where": W, "delay_ms": d, "what": X, "life": L}: the worker of slot s does X to
itself d milliseconds after step n (the job's, from 1) has reached W; L (default 0) says which of the slot's workers,
the first being 0 and each replacement one more. Instead of "step": "epoch": e, "round": r, the first step of that round
of samples; r = -1: the epoch's last step.
  where: step      a thread's timer, from the beginning of the step: any instant, inside C++ too
         backward  when the first gradient is ready: a timer, too
         gradient  at once when the first gradient is ready: before any gradient op of the step
         after     after the step's block
         boundary  at once when it has come to the boundary after the step
         join      (a newcomer; n is ignored) a timer from the moment it begins to ask to be let in
         serve     (n is ignored) at once when its first bytes are on their way to a newcomer, in a round numbered
                   "from_round" (default: any) or later: one that is cancelled early is not served by everybody
         receive   (a newcomer; n is ignored) at once when the first bytes are on their way to it
  what:  kill (default), stop, loop (endless, in Python), leave (session.leave(); only "after")
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import closeranks

Fault = dict[str, Any]


def strike(fault: Fault) -> None:
    what = fault.get("what", "kill")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "loop":
        while True:
            pass


def later(fault: Fault, unless: Callable[[], bool] = lambda: False) -> None:
    def fire() -> None:
        time.sleep(fault.get("delay_ms", 0) / 1000)
        if not unless():
            strike(fault)

    threading.Thread(target=fire, daemon=True).start()


class Faults:
    """Those of one worker."""

    def __init__(self, faults: list[Fault], slot: int, life: int) -> None:
        self.all = [fault for fault in faults if fault["slot"] == slot and fault.get("life", 0) == life]
        self.due: list[Fault] = []
        self.at_boundary: Fault | None = None
        self._round: tuple[int, int] | None = None

    def at(self, where: str) -> list[Fault]:
        return [fault for fault in self.all if fault["where"] == where]

    def before_joining(self) -> None:
        for fault in self.at("join"):
            later(fault)

    def begin_step(self, step: closeranks.Step, sampler: closeranks.ElasticSampler, last_used: torch.Tensor) -> None:
        """Once per step; `last_used`: the parameter whose gradient is ready first."""
        turn = step.turn
        assert turn is not None
        begins = (turn.epoch, turn.round) != self._round
        ends = sum(turn.takes.values()) == sampler.left
        self._round = (turn.epoch, turn.round)

        def is_due(fault: Fault) -> bool:
            if "epoch" not in fault:
                return bool(fault.get("step") == step.number)
            in_place = ends if fault["round"] < 0 else begins and turn.round == fault["round"]
            return bool(fault["epoch"] == turn.epoch and in_place)

        self.due = [fault for fault in self.all if is_due(fault)]
        for fault in self.due:
            self.arm(fault, last_used)

    @staticmethod
    def arm(fault: Fault, last_used: torch.Tensor) -> None:
        if fault["where"] == "step":
            later(fault)
        elif fault["where"] == "backward":
            last_used.register_hook(lambda _: later(fault))
        elif fault["where"] == "gradient":
            last_used.register_hook(lambda _: strike(fault))

    def end_step(self, session: closeranks.Session) -> None:
        for fault in self.due:
            if fault["where"] == "boundary":
                self.at_boundary = fault
            elif fault["where"] == "after" and fault.get("what") == "leave":
                session.leave("the test said so")
            elif fault["where"] == "after":
                strike(fault)


class StrikingJob:
    """The job around a session, with the faults at its boundaries.

    children_live: of the loader's processes, when this worker left.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.children_live: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(closeranks._closeranks, name)

    def at_boundary(self, step: int, patience: float = 0) -> Any:
        if self.faults.at_boundary is not None:
            strike(self.faults.at_boundary)
        passed, transfer = closeranks._closeranks.at_boundary(step, patience)
        if passed == "transfer":
            for fault in self.faults.at("serve"):
                if transfer.round[1] >= fault.get("from_round", 0):
                    return passed, StrikingTransfer(transfer, fault)
        return passed, transfer

    def leave(self, reason: str) -> None:
        self.children_live = [child.is_alive() for child in multiprocessing.active_children()]
        closeranks._closeranks.leave(reason)

    def request_join(self) -> Any:
        transfer = closeranks._closeranks.request_join()
        for fault in self.faults.at("receive"):
            return StrikingTransfer(transfer, fault)
        return transfer


class StrikingTransfer:
    """The state on its way, until the first bytes are."""

    def __init__(self, transfer: closeranks._closeranks.StateTransfer, fault: Fault) -> None:
        self.transfer = transfer
        self.fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transfer, name)

    def send(self, slot: int, tensor: torch.Tensor) -> Any:
        self.transfer.send(slot, tensor)
        strike(self.fault)

    def receive(self, slot: int, tensor: torch.Tensor) -> Any:
        self.transfer.receive(slot, tensor)
        strike(self.fault)
