"""Session's parts and Session itself in one process: state, transfer, checkpoints, generators, steps."""

from __future__ import annotations

import queue
import random
import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import closeranks
from closeranks import checkpoint, random_state, transfer
from closeranks.sampler import ElasticSampler
from closeranks.state import JobState, digest_of
from closeranks.step import Step


class Net(nn.Module):
    def __init__(self, width: int = 300) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(width)
        self.narrow = nn.Linear(width, 4, dtype=torch.bfloat16)
        self.images = nn.Parameter(torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(torch.relu(self.norm(self.first(x))).bfloat16()).float() + self.images.sum()


def groups_of(net: Net) -> list[dict[str, Any]]:
    first = list(net.first.parameters())
    rest = [parameter for parameter in net.parameters() if all(parameter is not other for other in first)]
    return [{"params": first}, {"params": rest, "lr": 0.01}]


def trained(seed: int, **objects: Any) -> JobState:
    """The state of a job that has done some steps; its tensors are the same for the same seed."""
    torch.manual_seed(seed)
    net = Net()
    optimizer = torch.optim.AdamW(groups_of(net), lr=0.1)
    for _ in range(3):
        net(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return JobState(net, optimizer, objects, None)


def fresh(**objects: Any) -> JobState:
    torch.manual_seed(99)
    net = Net()
    return JobState(net, torch.optim.AdamW(groups_of(net), lr=0.1), objects, None)


def assert_same(one: JobState, other: JobState) -> None:
    (described, tensors), (described_too, tensors_too) = one.tensors(), other.tensors()
    assert digest_of(described) == digest_of(described_too)
    for what, tensor, too in zip(described, tensors, tensors_too, strict=True):
        assert tensor.dtype == too.dtype and torch.equal(tensor, too), what
    for (name, buffer), too in zip(one.module.named_buffers(), other.module.buffers(), strict=True):
        assert torch.equal(buffer, too), name
    assert one.optimizer.state_dict()["param_groups"] == other.optimizer.state_dict()["param_groups"]


class Pipes:
    """A transfer's group inside one process: messages by (from, to), in order."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int, int], queue.Queue[torch.Tensor]] = defaultdict(queue.Queue)

    def end(self, slot: int, sources: list[int], newcomers: list[int]) -> End:
        return End(self, slot, sources, newcomers)


class End:
    def __init__(self, pipes: Pipes, slot: int, sources: list[int], newcomers: list[int]) -> None:
        self.pipes, self.slot, self.sources, self.newcomers = pipes, slot, sources, newcomers

    def send(self, slot: int, tensor: torch.Tensor) -> Moved:
        assert tensor.dtype == torch.uint8 and tensor.is_contiguous()
        self.pipes.queues[(self.slot, slot)].put(tensor.clone())
        return Moved(None, None)

    def receive(self, slot: int, tensor: torch.Tensor) -> Moved:
        return Moved(tensor, self.pipes.queues[(slot, self.slot)])


class Moved:
    def __init__(self, place: torch.Tensor | None, source: queue.Queue[torch.Tensor] | None) -> None:
        self.place, self.source = place, source

    def wait(self) -> None:
        if self.place is not None and self.source is not None:
            self.place.copy_(self.source.get(timeout=20))


@pytest.mark.parametrize(("sources", "newcomers"), [([1], [0]), ([0, 2, 3], [1]), ([1, 3], [0, 2])])
def test_state_moves_in_stripes(monkeypatch: pytest.MonkeyPatch, sources: list[int], newcomers: list[int]) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 1000)
    pipes, history = Pipes(), [1, 2]
    jobs = {}
    for slot in sources:
        jobs[slot] = trained(3, history=[1, 2, slot], counter=slot)
        jobs[slot].module.norm.running_mean += slot  # buffers are each slot's own
    for slot in sources:
        transfer.serve(pipes.end(slot, sources, newcomers), slot, jobs[slot], {"step": 7}, ["layout"])
    lowest = min(sources)
    for slot in newcomers:
        newcomer = fresh(history=history, counter=0)
        received = transfer.receive(pipes.end(slot, sources, newcomers), newcomer)
        newcomer.take_over(received.rest, received.described, received.tensors)
        assert_same(newcomer, jobs[lowest])
        assert received.more == {"step": 7}
        assert received.digest == digest_of(newcomer.tensors()[0], ["layout"])
        assert history == [1, 2, lowest], "lists are restored in place"
        assert newcomer.objects["counter"] == lowest
    assert all(pipe.empty() for pipe in pipes.queues.values())


def test_sources_that_disagree_are_found() -> None:
    pipes, jobs = Pipes(), {0: trained(1), 1: trained(1)}
    for slot, layout in ((0, "a"), (1, "b")):
        transfer.serve(pipes.end(slot, [0, 1], [2]), slot, jobs[slot], {}, layout)
    with pytest.raises(closeranks.InvalidCall, match="slots 0 and 1 hold"):
        transfer.receive(pipes.end(2, [0, 1], [2]), fresh())


def test_another_model_is_refused() -> None:
    state = fresh()
    described, _ = trained(1).tensors()
    torch.manual_seed(1)
    other = JobState(nn.Linear(3, 3), torch.optim.SGD([torch.zeros(1, requires_grad=True)]), {}, None)
    with pytest.raises(closeranks.InvalidCall, match="other parameters"):
        other.places(described)
    state.module.first = nn.Linear(8, 301)
    with pytest.raises(closeranks.InvalidCall, match=r"first.weight is \(301, 8\)"):
        state.places(described)


@pytest.mark.parametrize("sources", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [0, 1, 63, 64, 1000, 12345])
def test_stripes_cover_every_byte_once(total: int, sources: int) -> None:
    cuts = [transfer.stripe(total, place, sources) for place in range(sources)]
    assert cuts[0][0] == 0 and cuts[-1][1] == total
    assert all(left[1] == right[0] for left, right in pairwise(cuts))


def test_parts_of_the_byte_space() -> None:
    flat = [torch.arange(size, dtype=torch.uint8) for size in (3, 0, 5, 1)]
    space = transfer.ByteSpace(flat)
    whole = torch.cat(flat)
    for begin in range(space.total):
        for end in range(begin + 1, space.total + 1):
            assert torch.equal(torch.cat(list(space.parts(begin, end))), whole[begin:end])


# ---- generators ------------------------------------------------------------------------------------------------------


def draw() -> tuple[float, float, float]:
    return torch.rand(1).item(), float(numpy.random.rand()), random.random()


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


def test_generators_that_stand_alike_are_taken_over() -> None:
    seed_all(4)
    draw()
    state, digest = random_state.capture(), random_state.digests()
    expected = draw()
    seed_all(4)
    random_state.take_over(state, [digest, digest], slot=2, step=10)
    assert draw() == expected
    seed_all(4)
    random_state.take_over(state, [digest], slot=2, step=10)
    assert draw() == expected, "a single source, seeded alike"


def test_generators_of_their_own_get_a_stream_of_their_own() -> None:
    drawn = set()
    for slot, step in ((0, 10), (1, 10), (1, 11)):
        seed_all(50)
        state, digest = random_state.capture(), random_state.digests()
        drawn.add(draw())
        seed_all(51)
        random_state.take_over(state, [digest, b"x" * len(digest)], slot, step)
        assert all(a != b for a, b in zip(draw(), draw(), strict=True))
        drawn.add(draw())
    assert len(drawn) == 4


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_the_highest_whole_checkpoint_is_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert checkpoint.newest(tmp_path / "missing") is None
    for stamp in ((1, 2, 900), (2, 1, 5), (1, 10, 7)):
        checkpoint.write(tmp_path, stamp, {"stamp": stamp, "tensor": torch.arange(2000)})
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "closeranks-000001-000002-000000900.pt"
    found = checkpoint.newest(tmp_path)
    assert found is not None and found[0] == (2, 1, 5) == found[1]["stamp"]
    assert torch.equal(found[1]["tensor"], torch.arange(2000))

    whole = (tmp_path / checkpoint.name_of((1, 10, 7))).read_bytes()
    torn = whole[: len(whole) // 2]
    holed = whole[:500] + bytes(300) + whole[800:]
    for number, content in enumerate((torn, holed, b"", whole[:-1])):
        (tmp_path / checkpoint.name_of((9, number, 1))).write_bytes(content)
    found = checkpoint.newest(tmp_path)
    assert found is not None and found[0] == (2, 1, 5)
    told = capfd.readouterr().err
    assert told.count("is skipped") == 4
    assert "checksum" in told and "not written to its end" in told


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"lambda|pickle"):
        checkpoint.write(tmp_path, (1, 1, 1), {"function": lambda: 1})
    assert list(tmp_path.iterdir()) == []


# ---- Session, alone --------------------------------------------------------------------------------------------------


class Training:
    def __init__(self, seed: int = 0, length: int = 23, batch: int = 4, **keywords: Any) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        self.sampler = ElasticSampler(length)
        data = TensorDataset(torch.randn(length, 3, generator=torch.Generator().manual_seed(0)), torch.arange(length))
        self.loader = DataLoader(data, batch_size=batch, sampler=self.sampler)
        self.state: dict[str, Any] = {"scheduler": self.scheduler, "best": 1.0}
        self.session = closeranks.Session(self.net, self.optimizer, self.sampler, self.state, **keywords)
        self.seen: list[int] = []

    def run(self, epochs: int, until: int | None = None, **keywords: Any) -> Training:
        for step in self.session.steps(self.loader, epochs, **keywords):
            with step as (x, index):
                self.net(x).square().mean().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
                self.seen += index.tolist()
            if self.session.step == until:
                break
        return self

    def parameters(self) -> torch.Tensor:
        return torch.cat([value.flatten().double() for value in self.net.state_dict().values()])


def test_a_session_alone_trains_every_sample_once() -> None:
    training = Training().run(2)
    session = training.session
    assert (session.step, session.epoch, session.present) == (12, 2, [0])
    assert training.sampler.ledger.merged()[0].exact and training.sampler.ledger.merged()[1].exact
    assert sorted(training.seen) == sorted([*range(23)] * 2)
    assert list(session.steps(training.loader, epochs=2)) == [], "they are done"


def test_a_resumed_job_ends_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    expected = Training().run(3)
    first = Training().run(3, until=8)
    path = first.session.save(tmp_path)
    assert path is not None and path.name.endswith("000000008.pt")
    second = Training(seed=0, resume=tmp_path)
    second.state["best"] = 0.0
    assert (second.session.step, second.session.epoch) == (8, 1)
    assert second.session.resume(tmp_path)
    assert second.state["best"] == 1.0
    second.run(3)
    assert torch.equal(second.parameters(), expected.parameters())
    assert second.sampler.ledger.entries == expected.sampler.ledger.entries
    assert second.scheduler.get_last_lr() == expected.scheduler.get_last_lr()
    with pytest.raises(closeranks.InvalidCall, match="before the first step"):
        second.session.resume(tmp_path)


def test_resumed_jobs_outrank_those_they_resume(tmp_path: Path) -> None:
    class Coordinated(Losing):
        view = (1, 40)

        def job_view(self) -> tuple[int, int]:
            return self.view

    Training(job=Coordinated()).run(1).session.save(tmp_path)
    Coordinated.view = (1, 1)
    path = Training(job=Coordinated(), resume=tmp_path).run(2).session.save(tmp_path)
    assert path is not None and path.name == checkpoint.name_of((2, 1, 12))
    found = checkpoint.newest(tmp_path)
    assert found is not None and found[0] == (2, 1, 12)


def test_accumulated_batches_come_as_a_list() -> None:
    training = Training()
    sizes = []
    for step in training.session.steps(training.loader, accumulate=4):
        with step as batches:
            sizes.append(len(batches))
            for x, _ in batches:
                training.net(x).square().mean().backward()
            training.optimizer.step()
    assert sizes == [4, 2]
    assert training.session.step == 2
    assert training.sampler.ledger.merged()[0].exact


def test_a_loader_of_ones_own_is_iterated_as_it_is() -> None:
    training = Training()
    session = closeranks.Session(training.net, training.optimizer)
    seen = []
    for step in session.steps([1, 2, 3], epochs=2):
        with step as batch:
            seen.append(batch)
    assert seen == [1, 2, 3, 1, 2, 3]
    assert session.epoch == 2


class Losing(closeranks.job.FixedJob):
    """A job that says which calls it had."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.leave_at = 0

    def at_boundary(self, step: int, patience: float = 0) -> Any:
        self.calls.append(("boundary", step))
        return ("leave" if step == self.leave_at else "passed"), None

    def step_finished(self, step: int) -> None:
        self.calls.append(("finished", step))

    def pause(self, what: str, seconds: float) -> None:
        self.calls.append(("pause", what, seconds))

    def leave(self, reason: str) -> None:
        self.calls.append(("leave", reason))


def test_boundaries_and_leaving() -> None:
    job = Losing()
    job.leave_at = 3
    training = Training(job=job).run(5)
    assert training.session.leaving
    assert job.calls == [
        ("boundary", 1),
        ("finished", 1),
        ("boundary", 2),
        ("finished", 2),
        ("boundary", 3),
        ("leave", "it was asked to leave"),
    ]
    job = Losing()
    training = Training(job=job)
    for step in training.session.steps(training.loader):
        with step:
            training.session.leave("enough")
    assert job.calls[-1] == ("leave", "enough") and job.calls[-2] == ("finished", 1)
    with training.session.expected_pause("evaluation", up_to_s=5):
        assert job.calls[-1] == ("pause", "evaluation", 5)
    assert job.calls[-1] == ("pause", "evaluation", 0)


def test_an_incomplete_step_is_repeated_exactly() -> None:
    expected = Training(policy="exact").run(1)
    training = Training(policy="exact")
    steps: list[Step] = []
    for step in training.session.steps(training.loader, epochs=1):
        steps.append(step)
        with step as (x, _):
            training.net(x).square().mean().backward()
            if len(steps) in (2, 3):
                raise closeranks.Incomplete("slot 3 is gone", move="retry")
            training.optimizer.step()
            training.optimizer.zero_grad()
            training.scheduler.step()
    assert [step.number for step in steps] == [1, 2, 2, 2, 3, 4, 5, 6]
    assert steps[3].repetition == 2
    assert torch.equal(training.parameters(), expected.parameters()), "buffers and generators went back, too"
    assert training.sampler.ledger.entries == expected.sampler.ledger.entries


def test_errors_that_do_not_ask_for_a_repetition_pass() -> None:
    training = Training(policy="exact")
    for error in (ValueError("the user's own"), closeranks.PeerLost("slot 1 is gone")):
        with pytest.raises(type(error)):
            for step in training.session.steps(training.loader):
                with step:
                    raise error
    with pytest.raises(closeranks.Incomplete):
        for step in training.session.steps(training.loader):
            with step as (x, _):
                training.net(x).sum().backward()
                training.optimizer.step()  # too late to repeat
                raise closeranks.Incomplete("slot 1 is gone")
    assert training.session.step == 0


def test_wrong_use_is_said(tmp_path: Path) -> None:
    training = Training()
    with pytest.raises(closeranks.InvalidCall, match="with step as batch"):
        for _ in training.session.steps(training.loader):
            pass
    with pytest.raises(closeranks.InvalidCall, match="between two steps"):
        for step in training.session.steps(training.loader):
            with step:
                training.session.save(tmp_path)
    data = TensorDataset(torch.arange(23))
    with pytest.raises(closeranks.InvalidCall, match="drop_last=True"):
        next(training.session.steps(DataLoader(data, 4, sampler=training.sampler, drop_last=True)))
    with pytest.raises(closeranks.InvalidCall, match="another sampler"):
        next(training.session.steps(DataLoader(data, 4)))
    with pytest.raises(closeranks.InvalidCall, match="takes a torch DataLoader"):
        next(training.session.steps([1, 2]))
    with pytest.raises(closeranks.InvalidCall, match="'lock' cannot be pickled"):
        closeranks.Session(training.net, training.optimizer, state={"lock": threading.Lock()})
    with pytest.raises(closeranks.InvalidCall, match="policy is 'fail'"):
        closeranks.Session(training.net, training.optimizer, policy="fail")  # type: ignore[arg-type]


def test_sharded_models_are_refused() -> None:
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 - slow to import

    net = nn.Linear(2, 2)
    net.__class__ = type("FSDPLinear", (FSDPModule, nn.Linear), {})
    with pytest.raises(closeranks.Unsupported, match="sharded by FSDP"):
        closeranks.Session(net, torch.optim.SGD(net.parameters()))


# ---- joins, with the job around the session played -------------------------------------------------------------------


class Round(End):
    """A join's round, as one of its members sees it. Both sit in slot 0: the newcomer takes over all that one does."""

    def __init__(self, pipes: Pipes, step: int, outcome: bool) -> None:
        super().__init__(pipes, 0, [0], [0])
        self.step, self.outcome = step, outcome
        self.finished: list[tuple[bool, str]] = []

    def finish(self, ok: bool, reason: str = "") -> bool:
        self.finished.append((ok, reason))
        return ok and self.outcome


class Joining(Losing):
    """Lets somebody in at the boundaries of `rounds`."""

    def __init__(self, pipes: Pipes, rounds: dict[int, bool]) -> None:
        super().__init__()
        self.pipes, self.rounds = pipes, rounds
        self.served: list[Round] = []

    def at_boundary(self, step: int, patience: float = 0) -> Any:
        if step not in self.rounds:
            return super().at_boundary(step, patience)
        self.served.append(Round(self.pipes, step, self.rounds[step]))
        return "transfer", self.served[-1]


class Newcomer(Losing):
    """Is let in in the last of `rounds`; without rounds the job has finished."""

    def __init__(self, pipes: Pipes, rounds: dict[int, bool]) -> None:
        super().__init__()
        self.rounds = [Round(pipes, step, outcome) for step, outcome in rounds.items()]
        self.new = True

    def job_is_newcomer(self) -> bool:
        return self.new

    def request_join(self) -> Any:
        if not self.rounds:
            raise closeranks.Closed("the job has finished", move="none")
        return self.rounds.pop(0)


def test_a_newcomer_goes_on_where_the_survivor_is() -> None:
    pipes, rounds = Pipes(), {4: False, 9: True}
    survivor = Training(job=Joining(pipes, rounds))
    told: list[tuple[int, list[int]]] = []
    survivor.session.on_join(lambda slots: told.append((survivor.session.step, slots)))
    survivor.state["best"] = 0.25
    survivor.run(3, until=8)  # boundary 9 comes with the next turn
    survivor.run(3, until=9)
    assert told == [(8, [0])]

    newcomer = Training(job=Newcomer(pipes, rounds))
    newcomer.run(1, until=9)
    assert newcomer.state["best"] == 0.25
    assert newcomer.session.step == 9
    assert newcomer.session.epoch == 1
    assert torch.equal(newcomer.parameters(), survivor.parameters())
    assert newcomer.sampler.ledger.entries == survivor.sampler.ledger.entries
    assert newcomer.scheduler.get_last_lr() == survivor.scheduler.get_last_lr()
    assert isinstance(newcomer.session._job, Newcomer)
    assert newcomer.session._job.calls[-1] == ("finished", 9)


def test_a_newcomer_with_another_model_says_so_and_ends() -> None:
    pipes = Pipes()
    survivor = Training(job=Joining(pipes, {2: True}))
    survivor.run(1, until=1)
    survivor.run(1, until=2)
    torch.manual_seed(0)
    net = nn.Linear(3, 9)
    job = Newcomer(pipes, {2: True})
    asked = job.rounds[0]
    session = closeranks.Session(net, torch.optim.SGD(net.parameters(), lr=0.1), job=job)
    with pytest.raises(closeranks.InvalidCall, match="other parameters"):
        next(session.steps([1]))
    assert asked.finished[0][0] is False
    assert "other parameters" in asked.finished[0][1]


def test_a_newcomer_that_nobody_needs_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training(job=Newcomer(Pipes(), {}))
    with pytest.raises(SystemExit) as ended:
        training.run(1)
    assert ended.value.code == 0
    assert "the job has finished" in capsys.readouterr().out
