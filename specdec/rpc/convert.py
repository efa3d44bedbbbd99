"""Protocol messages to and from protobuf: the one place that reads draft.proto's messages.

Pure translation. It never raises for what a peer says in a well-formed message: a value that has
no meaning here becomes one that the trust boundary refuses (`speculation/proposal_check.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from specdec.rpc.convert_params import (
    params_from_wire,
    params_to_wire,
    verification_from_wire,
    verification_to_wire,
)
from specdec.sampling.law import SparseLaw
from specdec.speculation.messages import (
    Close,
    Commit,
    DraftInfo,
    DraftMessage,
    Heartbeat,
    Hello,
    Open,
    Proposal,
    Resync,
    TargetMessage,
)
from specdec.v1 import draft_pb2, verify_pb2

TOKENS_PER_CHUNK = 200_000  # varints of at most 5 bytes: below 1 MiB
# A message of a step, either way: more is sent in several, and no peer sends more.
MAX_RECORDS = 1024
MAX_TOKENS = 200_000
MAX_PROPOSED_BYTES = 2**20
# Longer proposals are too long by any k, and cut where they are read.
MAX_PROPOSAL_TOKENS = 256
# What a peer says of itself is cut to what can be: nothing beyond these is a measurement.
MAX_TIME_MS = 60_000.0
MAX_BLOCKS = 2**28
MAX_NUM_TARGETS = 10_000


def info_to_wire(info: DraftInfo) -> draft_pb2.InfoResponse:
    return draft_pb2.InfoResponse(
        model=info.model,
        tokenizer_hash=info.tokenizer_hash,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        drafter_kind=info.drafter_kind,
        protocol_version=info.protocol_version,
        incarnation=info.incarnation,
        max_num_speculative_tokens=info.max_num_speculative_tokens,
    )


def info_from_wire(wire: draft_pb2.InfoResponse) -> DraftInfo:
    return DraftInfo(
        model=wire.model,
        tokenizer_hash=wire.tokenizer_hash,
        vocab_size=wire.vocab_size,
        max_model_len=wire.max_model_len,
        drafter_kind=wire.drafter_kind,
        protocol_version=wire.protocol_version,
        incarnation=wire.incarnation,
        max_num_speculative_tokens=wire.max_num_speculative_tokens,
    )


def hello_to_wire(hello: Hello) -> draft_pb2.Hello:
    return draft_pb2.Hello(
        target_id=hello.target_id,
        incarnation=hello.incarnation,
        connection=hello.connection,
        protocol_version=hello.protocol_version,
        model=hello.model,
        vocab_size=hello.vocab_size,
    )


def hello_from_wire(wire: draft_pb2.Hello) -> Hello:
    return Hello(
        target_id=wire.target_id,
        incarnation=wire.incarnation,
        connection=wire.connection,
        protocol_version=wire.protocol_version,
        model=wire.model,
        vocab_size=wire.vocab_size,
    )


# Target to draft


def open_to_wire(message: Open) -> Iterator[draft_pb2.SyncRequest]:
    """An Open in messages of at most 1 MiB."""
    token_ids = message.prompt_token_ids + message.output_token_ids
    head = draft_pb2.Open(
        session_id=message.session_id,
        epoch=message.epoch,
        num_prompt_tokens=len(message.prompt_token_ids),
        num_output_tokens=len(message.output_token_ids),
        token_ids=token_ids[:TOKENS_PER_CHUNK],
        params=params_to_wire(message.params),
        seed=message.seed & 0xFFFF_FFFF_FFFF_FFFF,
        verification=verification_to_wire(message.verification),
        traceparent=message.traceparent,
    )
    yield draft_pb2.SyncRequest(open=head)
    for start in range(TOKENS_PER_CHUNK, len(token_ids), TOKENS_PER_CHUNK):
        more = draft_pb2.OpenTokens(
            session_id=message.session_id,
            epoch=message.epoch,
            token_ids=token_ids[start : start + TOKENS_PER_CHUNK],
        )
        yield draft_pb2.SyncRequest(open_tokens=more)


def bulk_to_wire(message: Open | Close) -> Iterator[draft_pb2.SyncRequest]:
    if isinstance(message, Open):
        return open_to_wire(message)
    return iter((draft_pb2.SyncRequest(close=close_to_wire(message)),))


def open_from_wire(head: draft_pb2.Open, token_ids: list[int]) -> Open | None:
    """The Open once all of its tokens are there; None if it makes no sense."""
    verification = verification_from_wire(head.verification)
    if verification is None or not head.num_prompt_tokens:
        return None
    return Open(
        session_id=head.session_id,
        epoch=head.epoch,
        prompt_token_ids=token_ids[: head.num_prompt_tokens],
        output_token_ids=token_ids[head.num_prompt_tokens :],
        params=params_from_wire(head.params),
        seed=head.seed,
        verification=verification,
        traceparent=head.traceparent,
    )


def close_to_wire(message: Close) -> draft_pb2.Close:
    return draft_pb2.Close(session_id=message.session_id, epoch=message.epoch)


def close_from_wire(wire: draft_pb2.Close) -> Close:
    return Close(session_id=wire.session_id, epoch=wire.epoch)


def steps_to_wire(messages: Iterable[TargetMessage]) -> Iterator[draft_pb2.SpeculateRequest]:
    """All that one step has to say, in one message as a rule. An Open travels on Sync, not here."""
    wire, num_records, num_tokens = draft_pb2.SpeculateRequest(), 0, 0
    for message in messages:
        more = len(message.token_ids) if isinstance(message, Commit) else 0
        if num_records == MAX_RECORDS or (num_records and num_tokens + more > MAX_TOKENS):
            yield wire
            wire, num_records, num_tokens = draft_pb2.SpeculateRequest(), 0, 0
        _add_to_step(wire, message)
        num_records, num_tokens = num_records + 1, num_tokens + more
    if num_records:
        yield wire


def _add_to_step(wire: draft_pb2.SpeculateRequest, message: TargetMessage) -> None:
    match message:
        case Commit():
            wire.commits.add(
                session_id=message.session_id,
                epoch=message.epoch,
                base_len=message.base_len,
                round=message.round,
                token_ids=message.token_ids,
                k=message.k,
                deadline_us=max(0, round(message.deadline_ms * 1000)),
            )
        case Close():
            wire.closes.add(session_id=message.session_id, epoch=message.epoch)
        case Heartbeat():
            wire.heartbeat.CopyFrom(_heartbeat_to_wire(message))
        case Open():
            raise AssertionError("an Open travels on Sync")


def step_fault(wire: draft_pb2.SpeculateRequest | verify_pb2.VerifyResponse) -> str | None:
    """Why a step's message is more than any target sends, or None; nothing of it is copied."""
    if len(wire.commits) + len(wire.closes) > MAX_RECORDS:
        return f"more than {MAX_RECORDS} records in a message"
    if sum(len(commit.token_ids) for commit in wire.commits) > MAX_TOKENS:
        return f"more than {MAX_TOKENS} tokens in a message"
    return None


def step_from_wire(
    wire: draft_pb2.SpeculateRequest | verify_pb2.VerifyResponse,
) -> list[TargetMessage]:
    """Commits and closes; the heartbeat is for the connection (`heartbeat_from_wire`)."""
    messages: list[TargetMessage] = [
        Commit(
            session_id=commit.session_id,
            epoch=commit.epoch,
            base_len=commit.base_len,
            round=commit.round,
            token_ids=list(commit.token_ids),
            k=commit.k,
            deadline_ms=commit.deadline_us / 1000,
        )
        for commit in wire.commits
    ]
    messages.extend(close_from_wire(close) for close in wire.closes)
    return messages


# Draft to target


def ready_to_wire(messages: Iterable[DraftMessage]) -> draft_pb2.SpeculateResponse:
    """All that is ready at the draft, in one message."""
    wire = draft_pb2.SpeculateResponse()
    for message in messages:
        match message:
            case Proposal():
                _add_proposal(wire, message)
            case Resync():
                wire.resyncs.add(
                    session_id=message.session_id, epoch=message.epoch, reason=message.reason
                )
            case Heartbeat():
                wire.heartbeat.CopyFrom(_heartbeat_to_wire(message))
    return wire


def proposed_bytes(message: DraftMessage) -> int:
    """About what a message takes on the wire."""
    if not isinstance(message, Proposal):
        return 32
    return 32 + 5 * len(message.token_ids) + sum(16 + 6 * len(law.ids) for law in message.laws)


def ready_fault(wire: draft_pb2.SpeculateResponse | verify_pb2.VerifyRequest) -> str | None:
    """Why a message is more than any draft sends, or None."""
    if len(wire.proposals) + len(wire.resyncs) > MAX_RECORDS:
        return f"more than {MAX_RECORDS} records in a message"
    return None


def _add_proposal(wire: draft_pb2.SpeculateResponse, message: Proposal) -> None:
    proposal = wire.proposals.add(
        session_id=message.session_id,
        epoch=message.epoch,
        base_len=message.base_len,
        round=message.round,
        token_ids=message.token_ids,
        reason=message.reason,
        draft_us=max(0, round(message.draft_ms * 1000)),
    )
    for law in message.laws:
        proposal.laws.add(
            token_ids=law.ids.astype("<u4", copy=False).tobytes(),
            weights=law.weights.astype("<u2", copy=False).tobytes(),
        )


def ready_from_wire(
    wire: draft_pb2.SpeculateResponse | verify_pb2.VerifyRequest,
) -> list[Proposal | Resync]:
    """Proposals and resyncs; the heartbeat is for the link (`heartbeat_from_wire`)."""
    messages: list[Proposal | Resync] = [
        Proposal(
            session_id=proposal.session_id,
            epoch=proposal.epoch,
            base_len=proposal.base_len,
            round=proposal.round,
            token_ids=list(proposal.token_ids[:MAX_PROPOSAL_TOKENS]),
            laws=[_law_from_wire(law) for law in proposal.laws[:MAX_PROPOSAL_TOKENS]],
            reason=proposal.reason,
            draft_ms=_within(proposal.draft_us / 1000, MAX_TIME_MS),
        )
        for proposal in wire.proposals
    ]
    messages.extend(
        Resync(session_id=resync.session_id, epoch=resync.epoch, reason=resync.reason)
        for resync in wire.resyncs
    )
    return messages


def _law_from_wire(wire: draft_pb2.SparseLaw) -> SparseLaw:
    """Bytes that do not divide into numbers become an empty law, which no check passes."""
    sound = len(wire.token_ids) % 4 == 0 and len(wire.weights) % 2 == 0
    return SparseLaw(
        np.frombuffer(wire.token_ids if sound else b"", "<u4").astype(np.uint32, copy=False),
        np.frombuffer(wire.weights if sound else b"", "<u2").astype(np.uint16, copy=False),
    )


def _heartbeat_to_wire(message: Heartbeat) -> draft_pb2.Heartbeat:
    return draft_pb2.Heartbeat(
        sequence_number=message.sequence_number,
        sent_ns=message.sent_ns,
        num_free_blocks=message.num_free_blocks,
        idle_fraction=message.idle_fraction,
        draft_step_ms=message.draft_step_ms,
        draining=message.draining,
        num_targets=message.num_targets,
    )


def heartbeat_from_wire(wire: draft_pb2.Heartbeat) -> Heartbeat:
    return Heartbeat(
        sequence_number=wire.sequence_number,
        sent_ns=wire.sent_ns,
        num_free_blocks=min(wire.num_free_blocks, MAX_BLOCKS),
        idle_fraction=_within(wire.idle_fraction, 1.0),
        draft_step_ms=_within(wire.draft_step_ms, MAX_TIME_MS),
        draining=wire.draining,
        num_targets=min(wire.num_targets, MAX_NUM_TARGETS),
    )


def _within(value: float, most: float) -> float:
    """The nearest number from 0 to `most`; 0 for what is none."""
    return min(value, most) if value > 0 else 0.0


# The same with the roles of dialling swapped


def verify_steps_to_wire(messages: Iterable[TargetMessage]) -> Iterator[verify_pb2.VerifyResponse]:
    for step in steps_to_wire(messages):
        heartbeat = step.heartbeat if step.HasField("heartbeat") else None
        yield verify_pb2.VerifyResponse(
            commits=step.commits, closes=step.closes, heartbeat=heartbeat
        )


def verify_bulk_to_wire(message: Open | Close) -> Iterator[verify_pb2.VerifyResponse]:
    for piece in bulk_to_wire(message):
        match piece.WhichOneof("content"):
            case "open":
                yield verify_pb2.VerifyResponse(opens=[piece.open])
            case "open_tokens":
                yield verify_pb2.VerifyResponse(open_tokens=[piece.open_tokens])
            case "close":
                yield verify_pb2.VerifyResponse(closes=[piece.close])


def verify_request_to_wire(ready: draft_pb2.SpeculateResponse) -> verify_pb2.VerifyRequest:
    heartbeat = ready.heartbeat if ready.HasField("heartbeat") else None
    return verify_pb2.VerifyRequest(
        proposals=ready.proposals, resyncs=ready.resyncs, heartbeat=heartbeat
    )
