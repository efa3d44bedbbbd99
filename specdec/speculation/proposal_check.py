"""The trust boundary: how much of a proposal may be believed, and why not more.

Pure checks of numbers against what was asked; whether the tokens still extend the committed text
is the session's business. A fault is answered by truncation, never by an exception.
"""

from __future__ import annotations

from specdec.sampling.law import SparseLaw
from specdec.sequence import Verification
from specdec.speculation.messages import Proposal

TOO_MANY_TOKENS = "too_many_tokens"
TOKEN_OUT_OF_RANGE = "token_out_of_range"
LAW_MISSING = "law_missing"
TOKEN_OUTSIDE_LAW = "token_outside_law"
LAW_IGNORED = "law_ignored"

LAW_MODES = frozenset({Verification.REJECTION, Verification.BLOCK})


def trusted_length(
    proposal: Proposal, asked_k: int, vocab_size: int, verification: Verification
) -> tuple[int, str | None]:
    """How many leading tokens are sound, and the reason that ended them (None: all are).

    A law is judged before the token drawn from it, so that for an honest draft with a larger
    vocabulary the cut depends on the law alone and biases nothing (literature 3.1).
    """
    num_tokens = min(len(proposal.token_ids), asked_k)
    reason = TOO_MANY_TOKENS if len(proposal.token_ids) > asked_k else None
    needs_laws = verification in LAW_MODES
    if needs_laws and len(proposal.laws) < num_tokens:
        num_tokens, reason = len(proposal.laws), LAW_MISSING
    for index in range(num_tokens):
        fault = None
        if needs_laws:
            fault = _law_fault(proposal.laws[index], proposal.token_ids[index], vocab_size)
        elif not 0 <= proposal.token_ids[index] < vocab_size:
            fault = TOKEN_OUT_OF_RANGE
        if fault is not None:
            return index, fault
    return num_tokens, reason


def _law_fault(law: SparseLaw, token_id: int, vocab_size: int) -> str | None:
    fault = law.validate(vocab_size)
    if fault is not None:
        return fault
    if not 0 <= token_id < vocab_size:
        return TOKEN_OUT_OF_RANGE
    return TOKEN_OUTSIDE_LAW if law.prob(token_id) == 0 else None
