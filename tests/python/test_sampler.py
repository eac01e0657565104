"""ElasticSampler and the ledger: each sample exactly once per epoch, whoever is lost and whenever. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import closeranks
from closeranks.ledger import Account, Deal, Entry, Ledger, merge
from closeranks.sampler import ElasticSampler, Turn


class Job:
    """Samplers of all slots, driven as sessions drive them; every present one plans and commits for itself."""

    def __init__(self, length: int, slots: int, batch: int, *, shuffle: bool = True, accumulate: int = 1) -> None:
        self.slots, self.batch, self.accumulate = slots, batch, accumulate
        self.length = length
        self.shuffle = shuffle
        self.samplers = {slot: self.sampler(slot) for slot in range(slots)}
        self.step = 0
        self.drawn: list[int] = []  # dataset indices with weight, as the loaders of used slots gave them

    def sampler(self, slot: int) -> ElasticSampler:
        sampler = ElasticSampler(self.length, shuffle=self.shuffle, seed=5)
        sampler.bind(slot, self.slots, self.batch)
        return sampler

    @property
    def any(self) -> ElasticSampler:
        return next(iter(self.samplers.values()))

    def turn(self) -> Turn:
        present = set(self.samplers)
        turns = [sampler.begin(present, self.accumulate) for sampler in self.samplers.values()]
        assert all(turn == turns[0] for turn in turns)
        return turns[0]

    def take(self, lost: Collection[int] = ()) -> Turn:
        """One step in which the slots of `lost` die before they have contributed."""
        turn = self.turn()
        self.step += 1
        used = set(self.samplers) - set(lost)
        batches = {}
        for slot, sampler in self.samplers.items():
            drawn = list(sampler)
            assert len(sampler) == len(drawn)
            batches[slot] = [drawn[i : i + self.batch] for i in range(0, len(drawn), self.batch)]
            assert len(batches[slot]) >= turn.batches, "every present slot makes the same number of batches"
            for batch in batches[slot][: turn.batches]:
                assert len(batch) >= min(2, self.batch), "BatchNorm gets no batch of one"
            if slot in used:
                taken = [index for batch in batches[slot][: turn.batches] for index in batch]
                self.drawn += taken[: turn.takes[slot]]
        for slot in lost:
            del self.samplers[slot]
        for sampler in self.samplers.values():
            sampler.commit(turn, used, self.step, (1, 1 + self.slots - len(self.samplers)))
        return turn

    def join(self, slot: int) -> None:
        newcomer = ElasticSampler(self.length, shuffle=self.shuffle, seed=5)
        newcomer.bind(slot, self.slots, self.batch)
        newcomer.load_state_dict(self.any.state_dict())
        self.samplers[slot] = newcomer

    def over(self) -> bool:
        over = {sampler.epoch_is_over for sampler in self.samplers.values()}
        assert len(over) == 1
        return over.pop()

    def next_epoch(self) -> None:
        for sampler in self.samplers.values():
            sampler.next_epoch()


def exactly_once(job: Job, epoch: int = 0) -> None:
    assert sorted(job.drawn) == list(range(job.length))
    account = merge([sampler.ledger for sampler in job.samplers.values()]).merged()[epoch]
    assert account == Account(job.length, job.length, 0, 0)
    assert job.any.ledger.merged()[epoch].exact


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_every_remainder(slots: int, batch: int) -> None:
    for length in range(1, 3 * slots * batch + 2):
        job = Job(length, slots, batch)
        steps = 0
        while not job.over():
            job.take()
            steps += 1
        exactly_once(job)
        assert steps <= -(-length // (slots * batch)) + 1


def test_every_remainder_with_a_death_in_every_step() -> None:
    for length, batch, accumulate in itertools.product(range(1, 30), (1, 2, 4), (1, 3)):
        for dying in range(1, 9):
            job = Job(length, 3, batch, accumulate=accumulate)
            while not job.over():
                job.take({1} if job.step + 1 == dying and 1 in job.samplers else set())
            exactly_once(job)


def test_random_faults_and_joins() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        length, slots, batch = chance.randint(1, 120), chance.randint(2, 6), chance.randint(1, 6)
        job = Job(length, slots, batch, shuffle=chance.random() < 0.5, accumulate=chance.randint(1, 3))
        for _epoch in range(2):
            job.drawn = []
            while not job.over():
                vacant = [slot for slot in range(slots) if slot not in job.samplers]
                if vacant and chance.random() < 0.3:
                    job.join(chance.choice(vacant))
                lost = {slot for slot in job.samplers if chance.random() < 0.15}
                if len(lost) == len(job.samplers):
                    lost.pop()
                job.take(lost)
            exactly_once(job, _epoch)
            job.next_epoch()
        assert job.any.ledger.samples_lost == 0
        assert job.any.ledger.samples_repeated == 0


def test_two_runs_of_the_same_faults_have_the_same_ledger() -> None:
    def run() -> list[Entry]:
        job = Job(101, 4, 3)
        while not job.over():
            if job.step == 4:
                job.join(2)
            job.take({2} if job.step == 2 else {0} if job.step == 6 else set())
        for sampler in job.samplers.values():
            assert sampler.ledger.entries == job.any.ledger.entries
        return job.any.ledger.entries

    assert run() == run()


def test_the_queue_of_a_vacant_slot_waits_for_the_replacement() -> None:
    job = Job(40, 4, 2, shuffle=False)
    job.take()
    job.take({3})
    job.take()
    job.join(3)
    sampler = job.samplers[3]
    assert list(sampler)[:4] == [11, 15, 19, 23], "its second batch was not used: it is drawn again"


def test_what_is_left_is_dealt_anew_in_the_order_of_the_permutation() -> None:
    job = Job(24, 3, 2, shuffle=False)
    job.take({1})
    while job.any.round == 0:
        job.take()
    deal = job.any.ledger.deals[(0, 1)]
    assert deal.slots == (0, 2)
    assert deal.positions is not None
    assert deal.positions.tolist() == [1, 4, 7, 10, 13, 16, 19, 22]
    assert deal.queue(2).tolist() == [4, 10, 16, 22]


def test_a_closing_round_pads_with_weight_zero() -> None:
    job = Job(9, 4, 2, shuffle=False)
    job.take()
    turn = job.take()
    assert (turn.round, turn.batches) == (1, 1)
    assert turn.takes == {0: 1, 1: 0, 2: 0, 3: 0}
    exactly_once(job)


def test_batches_of_one_real_sample_are_doubled() -> None:
    sampler = ElasticSampler(5, shuffle=False)
    sampler.bind(0, 1, 2)
    assert list(sampler) == [0, 1, 2, 3, 4, 4]
    single = ElasticSampler(5, shuffle=False)
    single.bind(0, 1, 1)
    assert list(single) == [0, 1, 2, 3, 4]


def test_an_accumulated_step_ends_with_the_round() -> None:
    job = Job(26, 2, 2, accumulate=4)
    assert [job.take().batches for _ in range(2)] == [4, 3]
    exactly_once(job)


def test_another_number_of_slots_deals_anew() -> None:
    job = Job(50, 4, 2)
    for _ in range(3):
        job.take()
    smaller = Job(50, 3, 2)
    for sampler in smaller.samplers.values():
        sampler.load_state_dict(job.any.state_dict())
    smaller.drawn = list(job.drawn)
    while not smaller.over():
        smaller.take()
    exactly_once(smaller)


def test_a_loader_with_workers_gives_the_queue() -> None:
    sampler = ElasticSampler(10, seed=1)
    sampler.bind(1, 2, 2)
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=2, sampler=sampler, num_workers=1)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    assert torch.cat([x for (x,) in loader]).tolist() == [*order[1::2].tolist(), order[9].item()]


def test_epochs_have_their_own_permutations() -> None:
    sampler = ElasticSampler(50)
    sampler.bind(0, 1, 50)
    first = list(sampler)
    sampler.commit(sampler.begin([0]), {0}, 1, (1, 1))
    assert sampler.epoch_is_over
    sampler.next_epoch()
    assert sorted(first) == sorted(sampler) == list(range(50))
    assert first != list(sampler)


def test_the_highest_view_wins_when_ledgers_are_merged() -> None:
    survivor, late = Ledger(), Ledger()
    for ledger in (survivor, late):
        ledger.add_deal(Deal(0, 0, (0, 1), 12))
        ledger.add(Entry(0, 0, 0, 0, 4, 2, 1, 1))
    # Excluded after step 2, but it went on alone and wrote about a round that never was.
    late.add_deal(Deal(0, 1, (0,), 12, torch.arange(8, 12)))
    late.add(Entry(0, 1, 0, 0, 4, 3, 1, 1))
    survivor.add(Entry(0, 0, 1, 0, 4, 3, 1, 2))
    survivor.add_deal(Deal(0, 1, (1,), 12, torch.arange(8, 12)))
    survivor.add(Entry(0, 1, 1, 0, 4, 4, 1, 2))
    merged = merge([late, survivor])
    assert merged.merged()[0] == Account(12, 12, 0, 0)


def test_the_ledger_sees_what_is_lost_and_repeated() -> None:
    ledger = Ledger()
    ledger.add_deal(Deal(0, 0, (0, 1), 10))
    ledger.add(Entry(0, 0, 0, 0, 5, 1, 1, 1))
    ledger.add(Entry(0, 0, 1, 0, 3, 1, 1, 1))
    ledger.add(Entry(0, 0, 1, 1, 3, 2, 1, 1))
    assert ledger.merged()[0] == Account(samples=10, used=8, lost=2, repeated=2)
    assert (ledger.samples_lost, ledger.samples_repeated) == (0, 2), "the epoch is not finished: nothing is lost yet"
    ledger.finish_epoch(0)
    assert ledger.samples_lost == 2


def test_state_that_does_not_fit_is_refused() -> None:
    state = ElasticSampler(10).state_dict()
    with pytest.raises(closeranks.InvalidCall, match="length is 11 here and 10"):
        ElasticSampler(11).load_state_dict(state)
    with pytest.raises(closeranks.InvalidCall, match="iterated by closeranks"):
        iter(ElasticSampler(11))
