"""From a schedule and its proposals to the step plan and the verifier's work list.

Pure: reads sequences, changes nothing, computes no tensors. One `Row` per sequence that takes part
in the step, in the order of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specdec.engine.scheduler import Schedule
from specdec.sampling.processors import SequenceRows
from specdec.sampling.request_logits import RequestLogits
from specdec.sequence import Sequence
from specdec.speculation.proposer import DraftTokens
from specdec.speculation.verifier import VerifyItem
from specdec.step_plan import StepPlan

NO_DRAFT = DraftTokens([])


@dataclass(slots=True)
class Row:
    """One sequence's part in a step.

    `num_query_tokens` run for it; the last `num_verify_rows` logit rows go to the verifier (0
    while a prefill is not at its end), the `num_prompt_rows` before them serve prompt
    log-probabilities. `planned_k` is what the controller wanted, `draft` what came.
    """

    sequence: Sequence
    draft: DraftTokens
    planned_k: int
    num_query_tokens: int
    num_verify_rows: int
    num_prompt_rows: int
    is_decode: bool

    @property
    def num_logit_rows(self) -> int:
        return self.num_verify_rows + self.num_prompt_rows


def build_rows(
    schedule: Schedule, ks: Mapping[int, int], drafts: Mapping[int, DraftTokens]
) -> list[Row]:
    """One Row per scheduled sequence: decodes first, then prefill chunks."""
    rows = []
    for sequence in schedule.decodes:
        draft = drafts.get(sequence.seq_id, NO_DRAFT)
        num_query = 1 + len(draft.token_ids)
        planned_k = ks.get(sequence.seq_id, 0)
        rows.append(Row(sequence, draft, planned_k, num_query, num_query, 0, True))
    for sequence, num_tokens in schedule.prefills:
        completes = sequence.num_computed_tokens + num_tokens == sequence.num_tokens
        num_verify = 1 if completes else 0
        num_prompt = _num_prompt_rows(sequence, num_tokens, num_verify)
        rows.append(Row(sequence, NO_DRAFT, 0, num_tokens, num_verify, num_prompt, False))
    return rows


def _num_prompt_rows(sequence: Sequence, num_tokens: int, num_verify: int) -> int:
    # After a preemption the output is prefilled again; its rows predict no prompt token.
    in_prompt = sequence.num_computed_tokens < sequence.num_prompt_tokens
    if sequence.params.prompt_logprobs is None or not in_prompt:
        return 0
    return num_tokens - num_verify


def build_plan(rows: list[Row], block_size: int) -> StepPlan:
    """The flat integer plan that every rank executes."""
    plan = StepPlan()
    for row in rows:
        sequence = row.sequence
        start = sequence.num_computed_tokens
        known = sequence.token_ids[start : start + row.num_query_tokens - len(row.draft.token_ids)]
        plan.add(
            known + row.draft.token_ids,
            start,
            sequence.block_table,
            block_size,
            row.num_logit_rows,
        )
    return plan


def verify_work(
    rows: list[Row], requests: Mapping[int, RequestLogits]
) -> tuple[list[int], list[VerifyItem]]:
    """Which of the plan's logit rows the verifier needs, in order, and its items; `requests` by
    sequence id."""
    indices: list[int] = []
    items: list[VerifyItem] = []
    first = 0
    for row in rows:
        end = first + row.num_logit_rows
        if row.num_verify_rows:
            indices.extend(range(first + row.num_prompt_rows, end))
            items.append(_verify_item(row, requests[row.sequence.seq_id]))
        first = end
    return indices, items


def _verify_item(row: Row, request: RequestLogits) -> VerifyItem:
    sequence = row.sequence
    return VerifyItem(
        rows=SequenceRows(request, row.draft.token_ids),
        verification=sequence.verification,
        seed=sequence.seed,
        position=sequence.num_tokens,
        round=sequence.round,
        laws=row.draft.laws,
    )
