"""What target and draft say to each other, as plain data (design section 4).

The rpc package carries these over gRPC and never interprets them; the target side
(`speculation/draft_sessions.py`) and the draft engine do. Lengths: `base_len` counts committed
*output* tokens; positions are indices in the target's sequence, prompt included.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec.params import SamplingParams
from specdec.sampling.law import SparseLaw
from specdec.sequence import Verification

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class DraftInfo:
    """What a draft deployment says of itself in the `Info` handshake."""

    model: str
    tokenizer_hash: str
    vocab_size: int
    max_model_len: int
    drafter_kind: str
    protocol_version: int
    incarnation: int
    max_num_speculative_tokens: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Who the target is; the first message of a connection, before any session.

    A higher `incarnation` of the same `target_id` replaces the older one, and within one
    incarnation a higher `connection`. Draft tokens at or above `vocab_size` are of no use to it.
    """

    target_id: str
    incarnation: int
    connection: int
    protocol_version: int
    model: str
    vocab_size: int


@dataclass(slots=True)
class Open:
    """Start, or restart under a higher epoch, a session: the whole committed text so far.

    An epoch never repeats for a session, whichever draft it is sent to, so that random draws
    keyed by it do not repeat either. `seed`: of the noise in coupled mode, else of the draft's own
    proposals; never what decides acceptance, and `params` has none. `traceparent`: W3C trace
    context of a traced request, else "".
    """

    session_id: int
    epoch: int
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    params: SamplingParams
    seed: int
    verification: Verification
    traceparent: str = ""


@dataclass(slots=True)
class Commit:
    """Tokens committed since `base_len`, and how many draft tokens (k) are wanted next.

    `deadline_ms` is the time from sending within which a proposal is still of use.
    """

    session_id: int
    epoch: int
    base_len: int
    round: int
    token_ids: list[int]
    k: int
    deadline_ms: float


@dataclass(slots=True)
class Close:
    """The session is over; its memory may be freed."""

    session_id: int
    epoch: int


@dataclass(slots=True)
class Heartbeat:
    """Proof of life, both ways; the draft adds its load and echoes the target's two numbers.

    `idle_fraction` of the draft's time; `num_targets` that asked it lately, 0 where not told.
    `draining`: the draft replica is going away and takes no new sessions.
    """

    sequence_number: int
    sent_ns: int
    num_free_blocks: int = 0
    idle_fraction: float = 0.0
    draft_step_ms: float = 0.0
    draining: bool = False
    num_targets: int = 0


@dataclass(slots=True)
class Proposal:
    """Draft tokens for positions base_len, base_len + 1, ... of the output.

    `laws` holds one law per token in rejection and block mode, and is empty otherwise (one-hot).
    No token ids and a `reason`: the draft declines, now or for good (DECLINE_REASONS).
    """

    session_id: int
    epoch: int
    base_len: int
    round: int
    token_ids: list[int]
    laws: list[SparseLaw] = field(default_factory=list)
    reason: str = ""
    draft_ms: float = 0.0


@dataclass(slots=True)
class Resync:
    """The draft cannot follow: unknown session, a gap, a wrong epoch. Answer with Open."""

    session_id: int
    epoch: int
    reason: str


DECLINE_REASONS = (
    "prefilling",  # the draft has not yet computed the context; it will
    "kv_full",  # no memory for this session now
    "evicted",  # idle session lost its memory; it is rebuilt when asked again
    "context_full",  # the draft's context is shorter than the text; for good
    "overloaded",  # would miss the deadline
    "draining",  # the replica is going away
    "over_limit",  # this target's sessions or text are at the draft's bound; for good
    "unsupported",  # a token or parameter that this draft has no place for; for good
    "not_finite",  # the draft's model makes NaN or infinities of this text; for good
    "failed",  # the draft's model raised an error; the session is rebuilt when asked again
)

TargetMessage = Open | Commit | Close | Heartbeat
DraftMessage = Proposal | Resync | Heartbeat
