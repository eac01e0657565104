"""The random generators of torch, numpy and python: what a newcomer or a resumed job goes on with.

A slot's generators are its own: dropout masks should differ between slots, and where a script seeds them alike on all
slots (layers dropped on all at once, say) they must not. So a generator that stands alike on all sources is taken over
as it is. One that differs gets a stream of the newcomer's own: seeded from where its script had put it and the job's
step, so that it neither repeats what its predecessor drew nor what another slot draws.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

DIGEST_BYTES = 8  # of each generator, in the order of NAMES
NAMES = ("torch", "numpy", "python")


def capture() -> dict[str, Any]:
    """The states of this process's generators; numpy's is None while nobody has imported numpy."""
    numpy = sys.modules.get("numpy")
    return {
        "torch": torch.get_rng_state(),
        "numpy": None if numpy is None else numpy.random.get_state(),
        "python": random.getstate(),
        "torch_seed": torch.initial_seed(),
    }


def restore(state: dict[str, Any]) -> None:
    """Puts all generators where capture() found them."""
    for name in NAMES:
        _restore_one(name, state)


def digests() -> bytes:
    """DIGEST_BYTES per generator: equal on two slots when their generators stand alike."""
    return b"".join(_digest(name, capture()) for name in NAMES)


def take_over(state: dict[str, Any], sources: list[bytes], slot: int, step: int) -> None:
    """Goes on from `state`, the lowest source's; `sources` has digests() of all of them.

    With a single source nothing can be compared: then it counts whether torch was seeded alike here and there.
    """
    own = capture()
    seeded_alike = own["torch_seed"] == state["torch_seed"]
    for place, name in enumerate(NAMES):
        seen = {source[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES] for source in sources}
        if len(seen) == 1 and (len(sources) > 1 or seeded_alike):
            _restore_one(name, state)
        else:
            material = _digest(name, own) + f"{name} {slot} {step}".encode()
            _seed(name, int.from_bytes(hashlib.sha256(material).digest()[:8], "little"))


@contextmanager
def seeded_aside(place: str) -> Iterator[None]:
    """Torch's generator is seeded from `place` and its first seed within, and stands where it stood afterwards.

    A DataLoader's iterator draws the seed of its worker processes. Drawn like this, a new one (a newcomer's, or one
    after a resume) does not shift what training draws, and no two places get the same seed.
    """
    generator = torch.default_generator
    state, seed = generator.get_state(), generator.initial_seed()
    generator.manual_seed(int.from_bytes(hashlib.sha256(f"{seed} {place}".encode()).digest()[:8], "little"))
    try:
        yield
    finally:
        generator.set_state(state)


def _restore_one(name: str, state: dict[str, Any]) -> None:
    numpy = sys.modules.get("numpy")
    if name == "torch":
        torch.set_rng_state(state["torch"])
    elif name == "python":
        random.setstate(state["python"])
    elif numpy is not None and state["numpy"] is not None:
        numpy.random.set_state(state["numpy"])


def _seed(name: str, seed: int) -> None:
    numpy = sys.modules.get("numpy")
    if name == "torch":
        torch.manual_seed(seed)
    elif name == "python":
        random.seed(seed)
    elif numpy is not None:
        numpy.random.seed(seed % 2**32)


def _digest(name: str, state: dict[str, Any]) -> bytes:
    value = state[name]
    content = value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
    if name == "numpy" and value is not None:
        content = repr((value[0], *value[2:])).encode() + value[1].tobytes()
    return hashlib.sha256(content).digest()[:DIGEST_BYTES]
