"""Reads a flight recorder's file as docs/recorder.md has it: another reader than the core's, and a far simpler one."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

RECORD_KINDS = {1: "issued", 2: "entered", 3: "moved", 4: "finished", 5: "failed", 6: "small", 7: "event", 8: "waiting"}
EVENTS = [
    "started",
    "ended",
    "exception",
    "step",
    "group_made",
    "group_ended",
    "view",
    "boundary",
    "state_transfer",
    "mark",
    "loading",
    "waiting",
    "peer_state",
    "peer_lost",
    "worker_exited",
    "out_of_memory",
    "stack",
    "excluded",
    "mismatch",
    "not_finite",
    "timeout",
]
DTYPES = {11: "float32", 12: "float64"}
KINDS = [
    "barrier",
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "reduce",
    "all_to_all",
    "send",
    "recv",
]


@dataclass
class Op:
    record: str
    kind: str
    sequence: int
    shape: str = ""
    failure: str = ""
    stack: str = ""  # where it was called from


@dataclass
class Event:
    kind: str
    number: int
    slots: list[int]
    detail: str
    stack: str


@dataclass
class Group:
    name: str
    members: list[int]
    entered: int
    completed: int
    current: Op | None  # not looked at whether it is over


@dataclass
class Ring:
    job: str
    slot: int
    worker: int
    pid: int
    ended: bool
    groups: list[Group] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


def read(path: Path) -> Ring:
    data = path.read_bytes()
    magic, version, header_bytes, total = struct.unpack_from("<8sIIQ", data)
    assert (magic, version, header_bytes, total) == (b"CLRKREC1", 1, 4096, len(data))
    names_offset, _, groups_offset, groups, _, records_offset, records, _ = struct.unpack_from("<QQQIIQII", data, 24)
    _, slot, worker, _, _, pid, event_records = struct.unpack_from("<IIQIIII", data, 72)

    def name(number: int) -> bytes:
        if number in (0, 0xFFFFFFFF):
            return b""
        at = names_offset + (number - 1) * 8
        _, _, size = struct.unpack_from("<IHH", data, at)
        return data[at + 8 : at + 8 + size]

    def slots(number: int) -> list[int]:
        content = name(number)
        return list(struct.unpack(f"<{len(content) // 4}I", content))

    job = data[136:200].rstrip(b"\0").decode()
    ring = Ring(job, slot, worker, pid, struct.unpack_from("<I", data, 128)[0] == 1)
    for i in range(groups):
        at = groups_offset + i * 192
        group_name, members, state = struct.unpack_from("<III", data, at + 24)
        if state != 1:
            continue
        entered, completed, sequence = struct.unpack_from("<QQ48xQ", data, at + 64)
        shape, _, kind = struct.unpack_from("<IHB", data, at + 160)
        present = struct.unpack_from("<I", data, at + 180)[0]
        current = Op("current", KINDS[kind], sequence, name(shape).decode()) if present else None
        ring.groups.append(Group(name(group_name).decode(), slots(members), entered, completed, current))
    found = []
    for place in range(records + event_records):
        stamp = struct.unpack_from("<Q", data, records_offset + place * 64)[0]
        if stamp:
            found.append((place >= records, stamp, records_offset + place * 64))
    for _, _, at in sorted(found):
        _, extra, index, record, flags = struct.unpack_from("<IIHBB", data, at + 48)
        if record == 7:
            number, _, detail, stack, where, _ = struct.unpack_from("<QqIIII", data, at + 16)
            of = slots(where) if extra == 1 else [] if where == 0xFFFFFFFF else [where]
            ring.events.append(Event(EVENTS[flags], number, of, name(detail).decode(), name(stack).decode()))
        elif record in (6, 8):
            sequence, _, _, _, shape, _, _, kind = struct.unpack_from("<QIIIIHHB", data, at + 16)
            op = Op(RECORD_KINDS[record], KINDS[kind], sequence, name(shape).decode())
            group = ring.groups[index]
            group.entered = max(group.entered, sequence + 1)
            if record == 8:
                group.current = op
            else:
                group.completed = max(group.completed, sequence + 1)
                ring.ops.append(op)
        elif record in (4, 5):
            sequence, _, _, detail, _, kind = struct.unpack_from("<QqqIHB", data, at + 16)
            failure = name(detail).decode() if record == 5 else ""
            ring.ops.append(Op(RECORD_KINDS[record], KINDS[kind], sequence, "", failure))
        elif record in (1, 2):
            sequence, _, shape, _, kind = struct.unpack_from("<QQIHB", data, at + 16)
            (stack,) = struct.unpack_from("<I", data, at + 44)
            op = Op(RECORD_KINDS[record], KINDS[kind], sequence, name(shape).decode(), stack=name(stack).decode())
            ring.ops.append(op)
    return ring
