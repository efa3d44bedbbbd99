"""The scheduler, everything at once: arrivals, aborts and steps with drafts in any order.

What a step computed is written into an imitation of the KV memory, in which a slot holds
(partition, all tokens up to here), just what a real key depends on.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specdec.engine.scheduler import Schedule
from specdec.errors import InvalidRequestError
from specdec.sequence import Sequence
from tests.unit.engine.scheduling import make_scheduler, make_sequence


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, aborts and steps with drafts, in any order, over a small pool."""

    @initialize(
        num_blocks=st.integers(1, 10),
        block_size=st.integers(1, 4),
        max_num_sequences=st.integers(1, 4),
        budget=st.integers(1, 12),
    )
    def start(self, num_blocks, block_size, max_num_sequences, budget):
        self.budget = budget
        self.size = block_size
        self.cap = min(max_num_sequences, budget)
        self.scheduler, self.manager = make_scheduler(
            num_blocks, block_size, max_num_sequences, budget
        )
        self.alive: list[Sequence] = []  # in order of arrival
        self.memory: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}

    def blocks(self, num_tokens: int) -> int:
        return (num_tokens + self.size - 1) // self.size

    def num_free(self) -> int:
        used = {block for seq in self.alive for block in seq.block_table}
        return self.manager.num_blocks - len(used)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=10),
        max_tokens=st.integers(1, 10),
        partition=st.sampled_from(["", "tenant"]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        tenant=st.sampled_from([None, "a", "b"]),
    )
    def add(self, prompt, max_tokens, partition, prompt_logprobs, tenant):
        seq = make_sequence(prompt, max_tokens, 1000, partition, prompt_logprobs, tenant)
        try:
            self.scheduler.add(seq)
        except InvalidRequestError:
            assert self.blocks(len(prompt) + 1) > self.manager.num_blocks
        else:
            assert self.blocks(len(prompt) + 1) <= self.manager.num_blocks
            self.alive.append(seq)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data):
        seq = self.alive.pop(data.draw(st.integers(0, len(self.alive) - 1)))
        assert self.scheduler.abort(seq.seq_id) is seq
        assert seq.block_table == []

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), paused=st.booleans())
    def pause_or_resume(self, data, paused):
        seq = self.alive[data.draw(st.integers(0, len(self.alive) - 1))]
        held = list(seq.block_table)
        (self.scheduler.pause if paused else self.scheduler.resume)(seq)
        assert (seq in self.scheduler.paused) == paused
        assert seq.block_table == held

    @precondition(lambda self: self.alive)
    @rule(seed=st.integers(0, 2**16), reserved=st.integers(0, 12))
    def step(self, seed, reserved):
        self.run_step(reserved, random.Random(seed).randint)

    def run_step(self, reserved: int, choose: Callable[[int, int], int]) -> None:
        before, paused = self.scheduler.running, self.scheduler.paused
        oldest = self.alive[0]
        schedule = self.scheduler.schedule(reserved)
        for seq in schedule.out_of_memory:
            assert self.blocks(seq.num_tokens) > self.manager.num_blocks
            self.alive.remove(seq)
        self.check_preemption(schedule, before, oldest)
        assert self.scheduler.paused == paused
        self.check_schedule(schedule, reserved, before)
        num_draft_tokens = sum(self.decode(seq, schedule, choose) for seq in schedule.decodes)
        assert schedule.num_tokens + num_draft_tokens <= self.budget
        for seq, chunk in schedule.prefills:
            self.prefill(seq, chunk, choose(0, 1))

    def check_preemption(self, schedule, before, oldest) -> None:
        """The latest of a tenant, never the oldest of all that runs, and nobody comes straight
        back; beside an admission, only for another tenant's share."""
        assert not (oldest in before and oldest in schedule.preempted)
        assert not set(map(id, schedule.preempted)) & set(map(id, schedule.sequences))
        for seq in schedule.preempted:
            assert (seq.block_table, seq.num_computed_tokens) == ([], 0)
            assert seq in self.scheduler.waiting
            for other in schedule.sequences:
                assert other.tenant != seq.tenant or other.seq_id < seq.seq_id

    def check_schedule(self, schedule, reserved, before) -> None:
        running = self.scheduler.running
        assert len(running) <= self.cap
        old = [s for s in running if s in before]
        decodes = [s for s in old if s.num_output_tokens and s.is_decoding]
        assert schedule.decodes[: len(decodes)] == decodes
        for seq in schedule.decodes[len(decodes) :]:  # paused before
            assert seq not in before
            assert seq.num_output_tokens
            assert seq.is_decoding
        assert all(s not in before for s in schedule.admitted)
        prefilling = [s for s in running if s not in schedule.decodes]
        scheduled = [s for s, _ in schedule.prefills]
        for tenant in {s.tenant for s in prefilling}:  # in order of arrival, one after the other
            mine = [s for s in prefilling if s.tenant == tenant]
            chunks = {id(s): chunk for s, chunk in schedule.prefills if s.tenant == tenant}
            assert [s for s in scheduled if s.tenant == tenant] == mine[: len(chunks)]
            for seq in mine[: len(chunks) - 1]:
                assert chunks[id(seq)] == seq.num_tokens - seq.num_computed_tokens
        assert all(chunk > 0 for _, chunk in schedule.prefills)
        assert bool(prefilling) == bool(scheduled)
        self.check_work_conserved(schedule, reserved)

    def check_work_conserved(self, schedule, reserved) -> None:
        """Who alone waits and finds a place and memory is not left waiting."""
        waiting, running = self.scheduler.waiting, self.scheduler.running
        spent_all = schedule.num_tokens >= self.budget - reserved
        is_one = len({s.tenant for s in (*waiting, *running)}) == 1
        has_place = len(running) < self.cap and not schedule.preempted
        if waiting and is_one and has_place and not spent_all:
            # A cached prefix can only lower what the head needs.
            assert self.num_free() - self.blocks(waiting[0].num_tokens) < len(running)

    def decode(self, seq: Sequence, schedule: Schedule, choose) -> int:
        wanted = choose(0, 6)
        spare = max(0, self.num_free() - len(self.scheduler.running))
        slots = (len(seq.block_table) + spare) * self.size
        limits = (wanted, seq.num_free_output_tokens - 1, slots - seq.num_tokens)
        tables = [list(s.block_table) for s in self.alive if s is not seq]
        left = self.scheduler.num_budget_tokens_left
        granted = self.scheduler.reserve_draft(seq, wanted)
        assert granted == max(0, min(*limits, left))
        assert self.scheduler.num_budget_tokens_left == left - granted
        assert tables == [s.block_table for s in self.alive if s is not seq]
        draft = [choose(0, 1) for _ in range(granted)]
        num_accepted = choose(0, granted)
        self.write(seq, seq.token_ids + draft, seq.num_tokens + granted)
        seq.token_ids += [*draft[:num_accepted], choose(0, 1)]
        self.scheduler.advance(seq, num_accepted + 1)
        assert seq.num_computed_tokens == seq.num_tokens - 1
        assert len(seq.block_table) == self.blocks(seq.num_computed_tokens)
        self.end_if_done(seq)
        return granted

    def prefill(self, seq: Sequence, chunk: int, token_id: int) -> None:
        end = seq.num_computed_tokens + chunk
        self.write(seq, seq.token_ids, end)
        if end == seq.num_tokens:
            seq.token_ids.append(token_id)
        self.scheduler.advance(seq, chunk)
        assert seq.num_computed_tokens == end
        self.end_if_done(seq)

    def write(self, seq: Sequence, token_ids: list[int], end: int) -> None:
        for position in range(seq.num_computed_tokens, end):
            slot = (seq.block_table[position // self.size], position % self.size)
            self.memory[slot] = (seq.partition, tuple(token_ids[: position + 1]))

    def end_if_done(self, seq: Sequence) -> None:
        assert seq.num_free_output_tokens >= 0
        if seq.num_free_output_tokens == 0:
            self.scheduler.finish(seq)
            self.alive.remove(seq)

    @invariant()
    def books_agree(self):
        self.manager.check_integrity([seq.block_table for seq in self.alive])
        assert self.manager.num_free_blocks == self.num_free()

    @invariant()
    def arrival_order_holds(self):
        """Of each tenant; and with one only, all that run came before all that wait."""
        running, waiting = self.scheduler.running, self.scheduler.waiting
        everybody = (*running, *waiting, *self.scheduler.paused)
        assert sorted(everybody, key=lambda s: s.seq_id) == self.alive
        assert self.scheduler.num_waiting == len(waiting)
        assert list(running) == sorted(running, key=lambda s: s.seq_id)
        for tenant in {s.tenant for s in waiting}:
            mine = [s.seq_id for s in waiting if s.tenant == tenant]
            assert mine == sorted(mine)

    @invariant()
    def every_computed_token_is_intact(self):
        for seq in self.alive:
            for position in range(seq.num_computed_tokens):
                slot = (seq.block_table[position // self.size], position % self.size)
                assert self.memory[slot] == (seq.partition, tuple(seq.token_ids[: position + 1]))

    def teardown(self):
        """Whatever came before, all sequences end, each in bounded time once it is the oldest."""
        if not hasattr(self, "alive"):
            return
        for seq in self.alive:
            self.scheduler.resume(seq)
        bound = sum(seq.num_prompt_tokens + 2 * seq.params.max_tokens for seq in self.alive)
        for _ in range(bound):
            if self.alive:
                self.run_step(12, lambda low, high: low)
        assert self.alive == []
        assert not self.scheduler.has_work
        self.manager.check_integrity([])


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
