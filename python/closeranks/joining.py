"""Both ends of a join: a survivor serves the job's state at a boundary, a newcomer takes it over.

The newcomer's DDP must have the survivors' buckets before it is let in, so their layout comes with the catalog, and the
digest that every source sends covers it.
"""

from __future__ import annotations

from typing import Any

from closeranks import _closeranks, random_state, transfer
from closeranks.errors import Closed, Error, InvalidCall
from closeranks.job import Job
from closeranks.parallel import ContributorsParallel, adopt_bucket_layout, bucket_layout, parameter_names
from closeranks.state import JobState, digest_of


def serve(
    moving: _closeranks.StateTransfer,
    slot: int,
    state: JobState,
    counters: dict[str, Any],
    model: ContributorsParallel | None,
) -> bool:
    """A survivor's part. True: the newcomers are in; False: it was called off, and nothing has changed."""
    try:
        layout = None if model is None else bucket_layout(model)
        more = {"counters": counters, "buckets": layout}
        transfer.serve(moving, slot, state, more, _named(model, layout))
    except Error as error:
        return moving.finish(False, f"slot {slot} cannot serve its state: {error}")
    return moving.finish(True)


def enter(
    job: Job, slot: int, state: JobState, model: ContributorsParallel | None
) -> tuple[_closeranks.StateTransfer, dict[str, Any]]:
    """A newcomer's part: asks to be let in until it is, and returns the transfer and the session's counters.

    Ends the process when the job has finished without it. Raises as receive().
    """
    while True:
        try:
            moving = job.request_join()
        except Closed as error:
            if error.move != "none":
                raise
            print(f"closeranks: slot {slot} is not needed any more: {error}", flush=True)
            raise SystemExit(0) from None
        counters = receive(moving, slot, state, model)
        if counters is not None:
            return moving, counters


def receive(
    moving: _closeranks.StateTransfer, slot: int, state: JobState, model: ContributorsParallel | None
) -> dict[str, Any] | None:
    """One attempt of a newcomer. Returns the session's counters once it is in; None: it was called off, ask again.

    Raises InvalidCall when this worker's script is another one than the job's: asking again would not help.
    """
    try:
        received = transfer.receive(moving, state)
        state.take_over(received.rest, received.described, received.tensors)
        if model is not None:
            adopt_bucket_layout(model, received.more["buckets"])
            described, _ = state.tensors()
            if digest_of(described, _named(model, bucket_layout(model))) != received.digest:
                raise InvalidCall(
                    f"the model or DDP's buckets of slot {slot}'s new worker are not those of the job: every worker "
                    "must build the same model with the same options",
                    move="fix_call",
                )
        counters: dict[str, Any] = received.more["counters"]
        random_state.take_over(received.random, received.generator_digests, slot, counters["step"])
    except InvalidCall as error:
        moving.finish(False, str(error))
        raise
    except Error as error:
        moving.finish(False, f"slot {slot} has not got the state: {error}")
        return None
    return counters if moving.finish(True) else None


def _named(model: ContributorsParallel | None, layout: list[list[int]] | None) -> object:
    """A layout in the parameters' names, which are the same on all workers when their models are."""
    if model is None or layout is None:
        return None
    names = parameter_names(model)
    return [[names[number] for number in bucket] for bucket in layout]
