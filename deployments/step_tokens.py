"""The `specdec` object of a stream chunk: the tokens of one engine step, for a client that colours.

Of the emitted tokens, the first `num_accepted_tokens` were drafted; the one behind them is the
target's own (a bonus where all draft tokens were accepted, else recovered). Draft tokens beyond the
accepted ones were rejected. A stop may cut emitted tokens off, accepted ones too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from deployments.openai_logprobs import spelt
from specdec.model.token_bytes import TokenBytes, TokenWalk
from specdec.sequence import SequenceOutput


def step_tokens(
    output: SequenceOutput, before: Sequence[int], vocabulary: TokenBytes
) -> dict[str, Any]:
    """`before`: the token ids that the step's tokens follow, or the last few of them.

    `tokens` joined over all chunks are the text of the choice; `draft_tokens` are each draft
    token's own text, special tokens by their names, a part of a character by its bytes.
    """
    return {
        "token_ids": output.token_ids,
        "tokens": output.token_texts,
        "draft_token_ids": output.draft_token_ids,
        "draft_tokens": list(_texts_behind(before, output.draft_token_ids, vocabulary)),
        "num_accepted_tokens": output.num_accepted_tokens,
        "drafter": output.drafter,
    }


def _texts_behind(
    before: Sequence[int], token_ids: Sequence[int], vocabulary: TokenBytes
) -> Iterator[str]:
    walk = TokenWalk(vocabulary, before, skip_special_tokens=False)
    for token_id in token_ids:
        yield spelt(walk.step(token_id))
