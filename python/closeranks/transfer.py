"""Moves a job's state to newcomers: every source sends its stripe of the bytes, all at once.

Per source and newcomer, in this order: a header (HEADER), from the lowest source the catalog (pickled), then the chunks
of the source's stripe. The replicated tensors lie end to end in one space of bytes, in the order of JobState.tensors();
source i of K has the i-th K-th of it.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch

from closeranks import random_state
from closeranks.errors import InvalidCall
from closeranks.state import Described, JobState, bytes_of, digest_of

CHUNK_BYTES = 8 << 20  # large enough that its own cost vanishes, small enough that several are under way
WINDOW = 4  # chunks under way per peer
STRIPE_ALIGNMENT = 64
HEADER = struct.Struct("<Q32s24s")  # bytes of the catalog that follow, layout digest, digests of the generators
MAX_CATALOG_BYTES = 1 << 34  # a header that says more is not a header


class Moving(Protocol):
    """A send or receive under way."""

    def wait(self) -> None: ...


class Channel(Protocol):
    """What is used of _closeranks.StateTransfer; tests bring their own."""

    @property
    def newcomers(self) -> list[int]: ...
    @property
    def sources(self) -> list[int]: ...
    def send(self, slot: int, tensor: torch.Tensor) -> Moving: ...
    def receive(self, slot: int, tensor: torch.Tensor) -> Moving: ...


class ByteSpace:
    """Tensors' bytes end to end. `flat` are 1-d uint8 CPU tensors."""

    def __init__(self, flat: list[torch.Tensor]) -> None:
        self.flat = flat
        self.starts = [0, *accumulate(part.numel() for part in flat)]

    @property
    def total(self) -> int:
        return self.starts[-1]

    def parts(self, begin: int, end: int) -> Iterator[torch.Tensor]:
        """The pieces of tensors that lie between the bytes begin and end."""
        index = bisect_right(self.starts, begin) - 1
        while begin < end:
            start = begin - self.starts[index]
            stop = min(end - self.starts[index], self.flat[index].numel())
            if start < stop:
                yield self.flat[index][start:stop]
                begin += stop - start
            index += 1


def stripe(total: int, place: int, sources: int) -> tuple[int, int]:
    """The bytes of source number `place` of `sources`: about a K-th each, together all."""

    def cut(at: int) -> int:
        return total if at == sources else total * at // sources // STRIPE_ALIGNMENT * STRIPE_ALIGNMENT

    return cut(place), cut(place + 1)


def chunks(begin: int, end: int) -> Iterator[tuple[int, int]]:
    for at in range(begin, end, CHUNK_BYTES):
        yield at, min(at + CHUNK_BYTES, end)


def serve(channel: Channel, slot: int, state: JobState, more: dict[str, Any], layout: object) -> None:
    """A source's part. `more` goes into the catalog, `layout` into the digest that must be equal on all sources.

    Raises closeranks.Error when a newcomer is lost.
    """
    described, tensors = state.tensors()
    lowest = slot == min(channel.sources)
    catalog = b""
    if lowest:
        file = io.BytesIO()
        torch.save(
            {
                "rest": state.rest(),
                "described": described,
                "random": random_state.capture(),
                "more": more,
            },
            file,
        )
        catalog = file.getvalue()
    header = HEADER.pack(len(catalog), digest_of(described, layout), random_state.digests())
    space = ByteSpace([bytes_of(tensor) for tensor in tensors])
    under_way: deque[Moving] = deque()

    def send(tensor: torch.Tensor) -> None:
        for newcomer in channel.newcomers:
            under_way.append(channel.send(newcomer, tensor))
        while len(under_way) > WINDOW * len(channel.newcomers):
            under_way.popleft().wait()

    send(_tensor_of(header))
    if catalog:
        content = _tensor_of(catalog)
        for begin, end in chunks(0, len(catalog)):
            send(content[begin:end])
    for begin, end in chunks(*stripe(space.total, channel.sources.index(slot), len(channel.sources))):
        pieces = list(space.parts(begin, end))
        send(pieces[0] if len(pieces) == 1 else torch.cat(pieces))
    while under_way:
        under_way.popleft().wait()


@dataclass(frozen=True)
class Received:
    """What a newcomer has been sent."""

    rest: dict[str, Any]
    described: list[Described]
    tensors: list[torch.Tensor]
    random: dict[str, Any]
    more: dict[str, Any]
    digest: bytes  # the sources' digest_of(described, layout)
    generator_digests: list[bytes]


def receive(channel: Channel, state: JobState) -> Received:
    """A newcomer's part; the parameters' bytes are in their places when it returns, nothing else is touched.

    Raises InvalidCall when the sources disagree or the model is another one, closeranks.Error when a source is lost.
    """
    headers = [torch.empty(HEADER.size, dtype=torch.uint8) for _ in channel.sources]
    for moving in [channel.receive(source, header) for source, header in zip(channel.sources, headers, strict=True)]:
        moving.wait()
    sizes, digests, generators = zip(*(HEADER.unpack(header.numpy().tobytes()) for header in headers), strict=True)
    for source, digest in zip(channel.sources, digests, strict=True):
        if digest != digests[0]:
            raise InvalidCall(
                f"slots {channel.sources[0]} and {source} hold tensors of other names, shapes, types or DDP "
                "buckets: the job's workers do not train the same model",
                move="fix_call",
            )
    if not 0 < sizes[0] <= MAX_CATALOG_BYTES:
        raise InvalidCall(f"slot {channel.sources[0]} announces a catalog of {sizes[0]} bytes", move="give_up")
    catalog = torch.empty(sizes[0], dtype=torch.uint8)
    _receive_all(channel, {channel.sources[0]: [catalog[a:b] for a, b in chunks(0, sizes[0])]})
    content = torch.load(io.BytesIO(catalog.numpy().tobytes()), weights_only=False)

    described: list[Described] = content["described"]
    tensors = state.places(described)
    space = ByteSpace([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])
    wanted: dict[int, list[torch.Tensor]] = {}
    packed: list[tuple[torch.Tensor, int, int]] = []
    for place, source in enumerate(channel.sources):
        wanted[source] = []
        for begin, end in chunks(*stripe(space.total, place, len(channel.sources))):
            pieces = list(space.parts(begin, end))
            if len(pieces) == 1:
                wanted[source].append(pieces[0])
            else:
                packed.append((torch.empty(end - begin, dtype=torch.uint8), begin, end))
                wanted[source].append(packed[-1][0])
    _receive_all(channel, wanted)
    for buffer, begin, end in packed:
        at = 0
        for piece in space.parts(begin, end):
            piece.copy_(buffer[at : at + piece.numel()])
            at += piece.numel()
    return Received(
        content["rest"],
        described,
        tensors,
        content["random"],
        content["more"],
        digests[0],
        list(generators),
    )


def _receive_all(channel: Channel, wanted: dict[int, list[torch.Tensor]]) -> None:
    """Receives each source's tensors in order, all sources at once."""
    under_way: deque[Moving] = deque()
    for number in range(max((len(tensors) for tensors in wanted.values()), default=0)):
        for source, tensors in wanted.items():
            if number < len(tensors):
                under_way.append(channel.receive(source, tensors[number]))
        while len(under_way) > WINDOW * len(wanted):
            under_way.popleft().wait()
    while under_way:
        under_way.popleft().wait()


def _tensor_of(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
