"""The draft engine: continuous batching of drafting and catch-up over all sessions of all targets.

One step = settle what is late, choose work, run the model once, sample, answer. Synchronous and
single-threaded; `draft_thread.py` gives it a thread, `local_draft.py` runs it in the target's. It
owns nothing but its own KV cache: the text belongs to the targets, and it knows no transport.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

import torch

from specdec.config import DraftConfig
from specdec.engine.draft_memory import DraftMemory
from specdec.engine.draft_scheduler import DraftScheduler, PassCost, Work
from specdec.engine.draft_session import Session
from specdec.engine.draft_store import Outbox, SessionStore
from specdec.kvcache.block_manager import BlockManager
from specdec.model.executor import Executor
from specdec.sampling.draft_sampler import DraftItem, sample_draft
from specdec.sampling.processors import SequenceRows, adjust_logits
from specdec.speculation.messages import DraftInfo, Heartbeat, TargetMessage
from specdec.step_plan import StepPlan

logger = logging.getLogger(__name__)

# A session that lacks at most so many tokens drafts: one, two after full acceptance, a few more
# after steps that went without a draft. More than that is catch-up.
MAX_DRAFT_QUERY = 8
# A session asked so recently will be asked again soon; its next ask should not find the model
# busy for longer than this with somebody's prompt.
ACTIVE_S = 1.0
MAX_BLOCKING_S = 0.02


class DraftEngine:
    """Drafts for many targets with one model and one KV pool.

    `info` bounds context and k; `eos_token_ids` are the draft model's own.
    """

    def __init__(
        self,
        executor: Executor,
        config: DraftConfig,
        info: DraftInfo,
        eos_token_ids: frozenset[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor = executor
        self.config = config
        self.info = info
        self.cost = PassCost()
        self.memory = DraftMemory(
            BlockManager(
                executor.num_blocks, executor.block_size, config.cache.enable_prefix_caching
            ),
            config.max_share_per_target,
            config.idle_timeout_s,
        )
        self.sessions = SessionStore(
            self.memory,
            executor.vocab_size,
            info.max_model_len,
            info.max_num_speculative_tokens,
            eos_token_ids,
            config.limits,
            clock,
        )
        self._scheduler = DraftScheduler(
            config.scheduler.max_num_batched_tokens, config.scheduler.max_num_sequences
        )
        self._clock = clock

    # -- targets -------------------------------------------------------------------------------

    def add_target(self, target: str, vocab_size: int) -> None:
        """Take up a target; draft tokens for it stay below its `vocab_size`, which is positive or
        ValueError is raised."""
        self.sessions.add_target(target, vocab_size)

    def submit(self, target: str, messages: Iterable[TargetMessage]) -> None:
        """Take a target's messages in order; nothing is computed before `step`."""
        self.sessions.submit(target, messages)

    def drop_target(self, target: str) -> None:
        """Free everything of a target and forget it."""
        self.sessions.drop_target(target)
        self._scheduler.forget(target)

    def drain(self) -> None:
        """Refuse new sessions from now on; those that are open go on."""
        self.sessions.is_draining = True

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute or tell anything."""
        return self.sessions.has_mail or any(
            session.ask is not None or self._deserves_catch_up(session)
            for session in self.sessions.all()
        )

    def load(self) -> Heartbeat:
        """Free blocks, the time of a drafting pass, and for how many; safe from any thread."""
        return Heartbeat(
            sequence_number=0,
            sent_ns=0,
            num_free_blocks=self.memory.blocks.num_free_blocks,
            draft_step_ms=(self.cost.draft_step_s or 0.0) * 1000,
            num_targets=self.sessions.num_asking_targets,
        )

    # -- one step ------------------------------------------------------------------------------

    def step(self) -> Outbox:
        """One pass of the model over what is most urgent; returns (target, message) pairs."""
        self._settle_late()
        drafts, catch_ups = self._due()
        works = self._scheduler.select(drafts, catch_ups, self._catch_up_limit(drafts))
        if works:
            self._run(works)
        self._tell_ready()
        return self.sessions.take_outbox()

    def fail(self) -> Outbox:
        """After `step` raised: answer every ask with "failed" and forget all that was computed. The
        sessions stay known and are computed again."""
        for session in self.sessions.all():
            self.memory.release(session)
            if session.ask is not None:
                self.sessions.answer(session, "failed")
        return self.sessions.take_outbox()

    def _settle_late(self) -> None:
        """Answer what cannot be improved in time, with the tokens there are."""
        now_s = self._clock()
        step_s = self.cost.draft_step_s or 0.0
        for session in self.sessions.asked():
            assert session.ask is not None
            # The first token is tried until the deadline itself, so that a cost estimate that is
            # too high cannot stop all drafting, and with it its own correction.
            if now_s + (step_s if session.tail else 0.0) >= session.ask.deadline_s:
                is_drafting = session.num_pending_tokens <= MAX_DRAFT_QUERY
                self.sessions.answer(session, "overloaded" if is_drafting else "prefilling")

    def _due(self) -> tuple[list[Work], list[Work]]:
        """What may be computed now, memory granted: drafting, and catch-up, most urgent first."""
        drafts: list[Work] = []
        catch_ups: list[Work] = []
        for session in filter(self._grant, self._first_of_each(self.sessions.asked())):
            num_tokens = session.num_pending_tokens
            work = Work(session, num_tokens, is_catch_up=num_tokens > MAX_DRAFT_QUERY)
            (catch_ups if work.is_catch_up else drafts).append(work)
        is_busy = bool(drafts or catch_ups)
        lagging = [
            session
            for session in self.sessions.all()
            if session.ask is None
            and not (is_busy and session.is_ready)
            and self._deserves_catch_up(session)
        ]
        for session in filter(self._grant, self._first_of_each(lagging)):
            catch_ups.append(Work(session, session.num_lagging_tokens, is_catch_up=True))
        # A later grant may have evicted an earlier session, or found all of one in the cache.
        return [work for work in drafts if work.session.is_wanted], [
            work for work in catch_ups if work.session.is_wanted and work.num_tokens
        ]

    def _first_of_each(self, sessions: Iterable[Session]) -> list[Session]:
        """No more of a target than a pass has room for: what a target wants costs the others no
        time to look at."""
        room = self.config.scheduler.max_num_sequences
        num_taken: Counter[str] = Counter()
        taken = []
        for session in sessions:
            num_taken[session.target] += 1
            if num_taken[session.target] <= room:
                taken.append(session)
        return taken

    def _deserves_catch_up(self, session: Session) -> bool:
        """Whether a session that was not asked is worth computing for: it was never ready, or,
        where nothing else is to be done, a pause with k = 0 left a full block uncomputed. Fewer
        tokens cost next to nothing on waking."""
        if not session.is_wanted:
            return False
        return not session.is_ready or session.num_lagging_tokens >= self.executor.block_size

    def _catch_up_limit(self, drafts: list[Work]) -> int:
        """Catch-up tokens that may run without making drafting miss its deadlines: those that are
        known, or, between the rounds of active sessions, those of the asks to come."""
        now_s, step_s = self._clock(), self.cost.draft_step_s or 0.0
        asks = [(w.session.ask, len(w.session.tail)) for w in drafts if w.session.ask is not None]
        slacks = [ask.deadline_s - now_s - step_s * (ask.k - done) for ask, done in asks]
        if any(s.is_ready and now_s - s.last_used_s < ACTIVE_S for s in self.sessions.all()):
            slacks.append(MAX_BLOCKING_S)
        if not slacks:
            return self.config.scheduler.max_num_batched_tokens
        return self.cost.catch_up_tokens(min(slacks), self.executor.block_size)

    def _run(self, works: list[Work]) -> None:
        """Execute one pass, sample where a session's known tokens end, answer who is done."""
        started_s = self._clock()
        plan, sampled = StepPlan(), []
        for work in works:
            session = work.session
            is_sampled = session.ask is not None and work.num_tokens == session.num_pending_tokens
            plan.add(
                session.query_token_ids(work.num_tokens),
                session.num_computed_tokens,
                session.block_table,
                self.executor.block_size,
                int(is_sampled),
            )
            if is_sampled:
                sampled.append(session)
        logits = self.executor.execute(plan)
        for work in works:
            work.session.num_computed_tokens += work.num_tokens
            self.memory.register(work.session)
        if sampled:
            self._sample(logits, sampled)
        num_catch_up = sum(work.num_tokens for work in works if work.is_catch_up)
        self.cost.observe(num_catch_up, self._clock() - started_s)
        for session in sampled:
            if session.is_answerable:
                self.sessions.answer(session)

    def _sample(self, logits: torch.Tensor, sessions: list[Session]) -> None:
        """Append one draft token to each session; `logits` [len(sessions), vocab].

        What a request asks for decides what happens here, so an error is that session's and not
        the model's: each is tried alone, and who fails alone is refused for good.
        """
        for rows, width in self._rows_by_width(sessions, logits.shape[1]):
            group = [sessions[row] for row in rows]
            known = logits[:, :width] if len(rows) == len(sessions) else logits[rows, :width]
            try:
                self._append_drafts(known, group)
            except Exception:
                for row, session in enumerate(group):
                    self._sample_alone(known[row : row + 1], session)

    def _sample_alone(self, logits: torch.Tensor, session: Session) -> None:
        try:
            self._append_drafts(logits, [session])
        except Exception:
            logger.exception(
                "sampling failed, session %s of target %s", session.key[1], session.target
            )
            self.sessions.refuse(session, "unsupported")

    def _append_drafts(self, logits: torch.Tensor, sessions: list[Session]) -> None:
        """All of the sessions or, where it raises, none."""
        adjusted = adjust_logits(logits, [_rows(session) for session in sessions])
        drafted = sample_draft(adjusted, [self._draft_item(session) for session in sessions])
        for session, token in zip(sessions, drafted, strict=True):
            if token is None:
                session.append_unlawful()
            else:
                session.append_draft(*token)

    def _rows_by_width(self, sessions: list[Session], width: int) -> list[tuple[list[int], int]]:
        """Rows whose targets know equally many of the `width` ids, with that number.

        Ids that a target lacks are cut off before masks: a mask spares a row that it would empty,
        which it sees only where it has no padding left to spare.
        """
        rows: dict[int, list[int]] = {}
        for row, session in enumerate(sessions):
            known = min(width, self.sessions.target_vocab_size(session.target))
            rows.setdefault(known, []).append(row)
        return [(group, known) for known, group in rows.items()]

    def _draft_item(self, session: Session) -> DraftItem:
        assert session.ask is not None
        opened = session.opened
        return DraftItem(
            params=opened.params,
            seed=opened.seed,
            verification=opened.verification,
            position=session.num_known_tokens,
            # A target never repeats a round for a sequence, at whichever draft and epoch, and one
            # ask samples a position once: so (position, round) never repeats.
            proposal=session.ask.round,
            max_law_entries=self.config.max_law_entries,
        )

    def _grant(self, session: Session) -> bool:
        """Blocks for all of text + tail; else the session answers with what it has, or gives up
        its memory until it is asked again, so that others are not held up."""
        granted = self.memory.reserve(session, session.num_known_tokens, self._clock())
        for evicted in self.memory.take_evicted():
            self.sessions.answer(evicted, "evicted")
        if not granted:
            if not session.tail:
                self.sessions.put_aside(session)
            self.sessions.answer(session, "kv_full")
        return granted

    def _tell_ready(self) -> None:
        for session in self.sessions.all():
            is_told = session.is_ready or not session.is_wanted or session.ask is not None
            if not is_told and not session.num_lagging_tokens:
                self.sessions.answer(session)


def _rows(session: Session) -> SequenceRows:
    """The one row behind text + tail, with the history that its position would have."""
    return SequenceRows(session.request_logits, session.tail, first_row=len(session.tail))
