"""Log-probabilities against torch's own, row by row (starred case 15)."""

import pytest
import torch

from specdec.sampling.logprobs import ROWS_AT_ONCE, token_logprobs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_log_probabilities_are_those_of_the_raw_logits(dtype):
    num_rows = 2 * ROWS_AT_ONCE + 3  # more than one piece, the last one short
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(num_rows, 50, dtype=torch.float64, generator=generator)
    logits = logits.to(dtype)
    token_ids = [row % 50 for row in range(num_rows)]
    results = token_logprobs(logits, token_ids, 5)
    for row, token_id, result in zip(logits, token_ids, results, strict=True):
        expected = torch.log_softmax(row.double(), -1)
        assert result.token_id == token_id
        assert result.logprob == pytest.approx(float(expected[token_id]), abs=1e-12)
        assert result.rank == int((row > row[token_id]).sum()) + 1
        values, _ = expected.topk(5)
        assert [value for _, value in result.top] == pytest.approx(values.tolist(), abs=1e-12)
        for top_id, value in result.top:
            assert value == pytest.approx(float(expected[top_id]), abs=1e-12)


def test_a_row_has_the_same_numbers_alone_and_among_others():
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1))
    together = token_logprobs(logits, list(range(6)), 3)
    for row in range(6):
        assert token_logprobs(logits[row : row + 1], [row], 3) == [together[row]]


def test_none_asked_and_more_than_there_are():
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    (bare,) = token_logprobs(logits, [1], 0)
    assert (bare.rank, bare.top) == (2, [])
    (full,) = token_logprobs(logits, [1], 20)
    assert [token_id for token_id, _ in full.top] == [2, 1, 0]
    assert token_logprobs(logits[:0], [], 3) == []


def test_an_excluded_token_has_no_probability():
    (result,) = token_logprobs(torch.tensor([[0.0, float("-inf"), 0.0]]), [1], 1)
    assert result.logprob == float("-inf")
    assert result.rank == 3
