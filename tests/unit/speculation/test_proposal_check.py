"""The check of all laws at once finds a fault exactly where the check of one law does."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.sampling.law import TOTAL_WEIGHT, SparseLaw
from specdec.speculation.messages import Proposal
from specdec.speculation.proposal_check import TOKEN_OUTSIDE_LAW, trusted_length

VOCAB = 50


@st.composite
def laws(draw) -> SparseLaw:
    """Sound laws mostly, else with one thing wrong."""
    ids = sorted(draw(st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=5)))
    cuts = draw(
        st.sets(st.integers(1, TOTAL_WEIGHT - 1), min_size=len(ids) - 1, max_size=len(ids) - 1)
    )
    weights = np.diff([0, *sorted(cuts), TOTAL_WEIGHT])
    match draw(st.sampled_from(["sound"] * 6 + ["sum", "order", "range", "zero", "ends", "none"])):
        case "sum":
            weights = weights - np.eye(len(ids), dtype=np.int64)[0]
        case "order":
            ids = ids[::-1]
        case "range":
            ids[-1] = draw(st.sampled_from([VOCAB, 2**31, 2**32 - 1]))
        case "zero":
            weights = np.where(np.arange(len(ids)) == 0, 0, weights)
        case "ends":
            weights = weights[:-1]
        case "none":
            ids, weights = [], np.array([])
    return SparseLaw(np.array(ids, np.uint32), weights.astype(np.uint16))


def expected(proposal: Proposal) -> tuple[int, str | None]:
    """Law by law, by the law's own words."""
    for index, (law, token_id) in enumerate(zip(proposal.laws, proposal.token_ids, strict=True)):
        fault = law.validate(VOCAB)
        if fault is not None:
            return index, fault
        if token_id not in law.ids.tolist():
            return index, "token_out_of_range" if token_id >= VOCAB else TOKEN_OUTSIDE_LAW
    return len(proposal.token_ids), None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(laws(), max_size=4), st.data())
def test_laws_together_are_judged_as_laws_alone(some_laws, data) -> None:
    token_ids = [
        data.draw(st.sampled_from([*law.ids.tolist()[:2], 7, 2**32 - 1])) for law in some_laws
    ]
    proposal = Proposal(1, 1, 0, 1, token_ids, some_laws)
    assert trusted_length(proposal, 8, VOCAB, needs_laws=True) == expected(proposal)
