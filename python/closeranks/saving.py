"""What a Session keeps in a checkpoint, and how all slots agree on the one they go on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from closeranks import checkpoint, random_state
from closeranks.checkpoint import Stamp
from closeranks.errors import InvalidCall
from closeranks.state import JobState


def save(folder: Path, stamp: Stamp, state: JobState, counters: dict[str, Any]) -> Path:
    """Writes all of the job's state; `counters` are the session's own part of it. Raises OSError."""
    described, tensors = state.tensors()
    content = {
        "rest": state.rest(),
        "described": described,
        "tensors": tensors,
        "random": random_state.capture(),
        "generator_digests": [random_state.digests()],
        "counters": counters,
    }
    return checkpoint.write(folder, stamp, content)


def newest(folder: Path, slot: int, slots: int) -> tuple[Stamp, dict[str, Any]] | None:
    """The highest checkpoint in `folder`; None when there is none. Collective.

    Raises InvalidCall when other slots have found another one.
    """
    found = checkpoint.newest(folder)
    stamp = None if found is None else found[0]
    if dist.is_initialized():
        stamps: list[Any] = [None] * slots
        dist.all_gather_object(stamps, (stamp,))
        others = {entry for entry in stamps if entry is not None} - {(stamp,)}
        if others:
            raise InvalidCall(
                f"slot {slot} found checkpoint {stamp} in {folder}, another slot {others.pop()[0]}: all slots must see "
                "the same folder",
                move="fix_call",
            )
    return found


def restore(content: dict[str, Any], state: JobState, slot: int) -> dict[str, Any]:
    """Takes over a checkpoint's state; returns the session's counters. Raises InvalidCall for another model's."""
    state.places(content["described"])  # it refuses another model
    state.take_over(content["rest"], content["described"], content["tensors"])
    counters: dict[str, Any] = content["counters"]
    random_state.take_over(content["random"], content["generator_digests"], slot, counters["step"])
    return counters
