"""The verification rules on cases worked out by hand, and the engine's entry."""

import pytest
import torch

from specdec.params import SamplingParams
from specdec.sampling.law import SparseLaw
from specdec.sampling.processors import SequenceRows
from specdec.sequence import Verification
from specdec.speculation.verifier import Verdict, VerifyItem, verify_equal, verify_step


def item(verification, draft_token_ids=(), *, laws=(), round=0, seed=1, position=1, **params):
    temperature = 0.0 if verification is Verification.GREEDY else 1.0
    params = SamplingParams(**{"temperature": temperature, **params})
    rows = SequenceRows(params, [0], [], list(draft_token_ids))
    return VerifyItem(rows, verification, seed, position, round, list(laws))


def test_equal_tokens_are_accepted_up_to_the_first_difference():
    assert verify_equal([5, 6, 7], [5, 6]) == Verdict(2, 7)
    assert verify_equal([5, 6, 7], [5, 4]) == Verdict(1, 6)
    assert verify_equal([5, 6, 7], [4, 6]) == Verdict(0, 5)
    assert verify_equal([5], []) == Verdict(0, 5)


@pytest.mark.parametrize("verification", list(Verification))
def test_a_certain_target_is_followed_in_every_mode(verification):
    logits = torch.full((3, 4), -1e9, dtype=torch.float64)
    logits[0, 2] = logits[1, 3] = logits[2, 1] = 0.0
    assert verify_step(logits, [item(verification, [2, 3])]) == [Verdict(2, 1)]
    assert verify_step(logits, [item(verification, [2, 0])]) == [Verdict(1, 3)]
    assert verify_step(logits, [item(verification, [3, 3])]) == [Verdict(0, 2)]


def test_a_mixed_batch_equals_its_parts():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(13, 11, dtype=torch.float64, generator=generator)
    law = SparseLaw.one_hot(4)
    items = [
        item(Verification.GREEDY, [1, 2, 3]),
        item(Verification.COUPLED, [], seed=5),
        item(Verification.BLOCK, [4, 4], laws=[law, law], top_k=9),
        item(Verification.REJECTION, [7, 7], round=3, frequency_penalty=1.0),
        item(Verification.COUPLED, [7], seed=9, top_p=0.8),
    ]
    together = verify_step(logits, items)
    first_row = 0
    for one, verdict in zip(items, together, strict=True):
        rows = logits[first_row : first_row + one.rows.num_rows]
        assert verify_step(rows, [one]) == [verdict]
        first_row += one.rows.num_rows
    assert first_row == len(logits)
