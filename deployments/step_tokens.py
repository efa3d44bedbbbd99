"""The `specdec` object of a stream chunk: the tokens of one engine step, for a client that colours.

Of the emitted tokens, the first `num_accepted_tokens` were drafted; the one behind them is the
target's own (a bonus where all draft tokens were accepted, else recovered). Draft tokens beyond the
accepted ones were rejected. A stop may cut emitted tokens off, accepted ones too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deployments.prompts import Prompter
from specdec.sequence import SequenceOutput

# Decoders treat the first token of a text apart, so a draft token is read behind a few others.
NUM_CONTEXT_TOKENS = 6


def step_tokens(
    output: SequenceOutput, before: Sequence[int], prompter: Prompter
) -> dict[str, Any]:
    """`before`: the last NUM_CONTEXT_TOKENS token ids, or more, that the step's tokens follow.

    `tokens` joined over all chunks are the text of the choice; `draft_tokens` are each draft
    token's own text, special tokens by their names.
    """
    return {
        "token_ids": output.token_ids,
        "tokens": output.token_texts,
        "draft_token_ids": output.draft_token_ids,
        "draft_tokens": _texts_behind(before, output.draft_token_ids, prompter),
        "num_accepted_tokens": output.num_accepted_tokens,
        "drafter": output.drafter,
    }


def _texts_behind(before: Sequence[int], token_ids: Sequence[int], prompter: Prompter) -> list[str]:
    """The text that each token adds; a part of a character shows as U+FFFD."""
    window = [*before[-NUM_CONTEXT_TOKENS:], *token_ids]
    start = len(window) - len(token_ids)
    texts = []
    for position, token_id in enumerate(token_ids, start):
        context = window[max(0, position - NUM_CONTEXT_TOKENS) : position]
        known, full = prompter.decode(context), prompter.decode([*context, token_id])
        texts.append(full[len(known) :] if full.startswith(known) else prompter.decode([token_id]))
    return texts
