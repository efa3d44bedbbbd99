"""Which draft session may hold KV blocks: a budget per target, and eviction of idle sessions.

Grants or refuses at once; nobody waits for memory. It knows sessions and the block manager, and
neither the model nor what is drafted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from specdec.engine.draft_session import Session
from specdec.kvcache.block_manager import BlockManager


class DraftMemory:
    """Block tables of all sessions.

    A target's sessions together hold at most `max_share_per_target` of the pool (a shared block
    counts once for each holder). Within it whoever comes first takes what is free. Sessions lose
    blocks to others in two cases only, so that no two can evict each other in turn: a ready one
    that was not asked for `idle_timeout_s`, to anybody; and one of a target that holds more than an
    equal share of the pool, to a target that stays within its own.
    """

    def __init__(
        self, blocks: BlockManager, max_share_per_target: float, idle_timeout_s: float
    ) -> None:
        self.blocks = blocks
        self.max_blocks_per_target = max(1, int(blocks.num_blocks * max_share_per_target))
        self._idle_timeout_s = idle_timeout_s
        self._holders: dict[tuple[str, int], Session] = {}
        self._num_held: Counter[str] = Counter()
        self._evicted: list[Session] = []

    def num_held(self, target: str) -> int:
        """Blocks that a target's sessions hold now."""
        return self._num_held[target]

    def reserve(self, session: Session, num_tokens: int, now_s: float) -> bool:
        """Make the session's table hold `num_tokens` tokens; or False and no change to it.

        A session without a table first takes back what of its text is still cached.
        """
        if not session.block_table:
            self._share_prefix(session)
        num_missing = self.blocks.blocks_for(num_tokens) - len(session.block_table)
        if num_missing <= 0:
            return True
        self._make_room(session, num_missing, now_s)
        if self._excess(session.target, num_missing) > 0:
            return False
        if not self.blocks.ensure_capacity(session.block_table, num_tokens):
            return False
        self._num_held[session.target] += num_missing
        self._holders[session.key] = session
        return True

    def trim(self, session: Session) -> None:
        """Give back the blocks behind text + tail, after a commit that cut the tail."""
        num_before = len(session.block_table)
        self.blocks.truncate(session.block_table, session.num_known_tokens)
        self._num_held[session.target] -= num_before - len(session.block_table)

    def register(self, session: Session) -> None:
        """Keep the session's full blocks of committed text findable after a release."""
        self.blocks.register_full_blocks(
            session.block_table, session.token_ids, session.num_verified_tokens, _partition(session)
        )

    def release(self, session: Session) -> None:
        """Take all memory from a session; it has to be computed again."""
        self._num_held[session.target] -= len(session.block_table)
        self._holders.pop(session.key, None)
        self.blocks.release(session.block_table)
        session.num_computed_tokens = 0
        session.drop_tail()

    def take_evicted(self) -> list[Session]:
        """The sessions that lost their memory to others since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def check_integrity(self, sessions: Iterable[Session]) -> None:
        """AssertionError unless the books agree with the sessions, all there are."""
        held: Counter[str] = Counter()
        tables = []
        for session in sessions:
            held[session.target] += len(session.block_table)
            tables.append(session.block_table)
            assert (session.key in self._holders) == bool(session.block_table), session.key
            assert self.blocks.blocks_for(session.num_computed_tokens) <= len(session.block_table)
        self.blocks.check_integrity(tables)
        assert +held == +self._num_held, (held, self._num_held)
        assert max(held.values(), default=0) <= self.max_blocks_per_target

    def _share_prefix(self, session: Session) -> None:
        table, num_cached = self.blocks.acquire_prefix(session.token_ids, _partition(session))
        if self._excess(session.target, len(table)) > 0:
            self.blocks.release(table)
            return
        if table:
            session.block_table, session.num_computed_tokens = table, num_cached
            self._num_held[session.target] += len(table)
            self._holders[session.key] = session

    def _excess(self, target: str, num_more: int) -> int:
        return self._num_held[target] + num_more - self.max_blocks_per_target

    def _make_room(self, session: Session, num_missing: int, now_s: float) -> None:
        """Evict idle sessions, longest idle first, as far as it helps."""
        while self._excess(session.target, num_missing) > 0:
            if not self._evict(self._longest_idle(session, session.target, now_s)):
                return
        while self.blocks.num_free_blocks < num_missing:
            if not self._evict(self._longest_idle(session, None, now_s)):
                break
        while self.blocks.num_free_blocks < num_missing:
            if not self._evict(self._reclaimable(session.target, num_missing)):
                return

    def _reclaimable(self, target: str, num_missing: int) -> Session | None:
        """Of the target that holds most beyond an equal share the session that is missed least, for
        one that stays within it; what is asked right now comes last."""
        holding = {holder for holder, num_held in self._num_held.items() if num_held} | {target}
        share = self.blocks.num_blocks // len(holding)
        richest = max(holding - {target}, key=lambda other: self._num_held[other], default=target)
        if self._num_held[richest] <= share or self._num_held[target] + num_missing > share:
            return None
        theirs = [session for session in self._holders.values() if session.target == richest]
        return min(theirs, key=lambda session: (session.ask is not None, session.last_used_s))

    def _longest_idle(self, asking: Session, target: str | None, now_s: float) -> Session | None:
        idle = [
            session
            for session in self._holders.values()
            if session is not asking
            and session.ask is None
            and session.is_ready
            and (target is None or session.target == target)
            and now_s - session.last_used_s >= self._idle_timeout_s
        ]
        return min(idle, key=lambda session: session.last_used_s, default=None)

    def _evict(self, victim: Session | None) -> bool:
        if victim is None:
            return False
        self.release(victim)
        victim.is_wanted = victim.is_ready = False
        self._evicted.append(victim)
        return True


def _partition(session: Session) -> str:
    # Sessions do not share: `Open` carries neither tenant nor salt, and a cache shared across
    # tenants could be probed. A session's own blocks make its return from an eviction cheap.
    return f"{session.target}/{session.opened.session_id}"
