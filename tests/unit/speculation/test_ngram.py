"""Prompt lookup against a scan of the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdec.params import SamplingParams
from specdec.sequence import Sequence, Verification
from specdec.speculation.proposers import ngram
from specdec.speculation.proposers.ngram import NgramProposer


def sequence(token_ids: list[int], seq_id: int = 1) -> Sequence:
    return Sequence(
        seq_id=seq_id,
        request_id=str(seq_id),
        token_ids=token_ids,
        num_prompt_tokens=max(1, len(token_ids) // 2),
        params=SamplingParams(max_tokens=1000),
        seed=0,
        verification=Verification.GREEDY,
        eos_token_ids=frozenset(),
        max_model_len=100_000,
    )


def scan(token_ids: list[int], ngram_min: int, ngram_max: int, k: int) -> list[int] | None:
    """The k tokens after the latest earlier occurrence of the longest suffix, by brute force."""
    for n in range(ngram_max, ngram_min - 1, -1):
        for start in range(len(token_ids) - n - 1, -1, -1):
            if token_ids[start : start + n] == token_ids[len(token_ids) - n :]:
                text = list(token_ids)
                for _ in range(k):  # each copied token may itself be copied again
                    text.append(text[start + n + len(text) - len(token_ids)])
                return text[len(token_ids) :]
    return None


def proposed(proposer: NgramProposer, k: int, seq_id: int = 1) -> list[int] | None:
    proposal = proposer.propose({seq_id: k}, wait_s=0.0).get(seq_id)
    assert (proposal is not None) == (k > 0 and proposer.available(seq_id))
    assert proposal is None or proposal.laws == []
    return proposal and proposal.token_ids


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@given(
    st.lists(tokens, min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 6),
)
def test_growing_text_equals_a_scan(
    blocks: list[list[int]], ngram_min: int, extra: int, k: int
) -> None:
    text = sequence([])
    proposer = NgramProposer(ngram_min, ngram_min + extra)
    proposer.open([text])
    for block in blocks:
        text.token_ids.extend(block)
        assert proposed(proposer, k) == scan(text.token_ids, ngram_min, ngram_min + extra, k)


def test_longest_match_beats_a_later_shorter_one() -> None:
    proposer = NgramProposer(2, 3)
    proposer.open([sequence([1, 2, 3, 70, 9, 2, 3, 80, 1, 2, 3])])
    assert proposed(proposer, 2) == [70, 9]


def test_latest_of_equal_matches_wins() -> None:
    proposer = NgramProposer(2, 2)
    proposer.open([sequence([2, 3, 70, 2, 3, 80, 5, 2, 3])])
    assert proposed(proposer, 2) == [80, 5]


def test_continuation_runs_on_into_itself() -> None:
    proposer = NgramProposer(2, 4)
    proposer.open([sequence([7, 1, 2, 3, 1, 2, 3])])
    assert proposed(proposer, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_long_prompt_is_indexed_over_several_steps() -> None:
    length = 3 * ngram.MAX_INDEXED_AT_ONCE
    prompt = [*range(100, 100 + length), 100 + length - 9, 100 + length - 8]
    proposer = NgramProposer(2, 4)
    proposer.open([sequence(prompt)])
    assert [proposed(proposer, 1) for _ in range(2)] == [None, [100 + length - 7]]


def test_text_of_another_request_is_never_proposed() -> None:
    proposer = NgramProposer(1, 3)
    proposer.open([sequence([1, 2, 3, 4, 5, 1, 2], seq_id=1), sequence([9, 1, 2], seq_id=2)])
    assert proposed(proposer, 3, seq_id=1) == [3, 4, 5]
    assert proposed(proposer, 3, seq_id=2) is None


def test_closed_and_unknown_sequences_get_nothing() -> None:
    proposer = NgramProposer(1, 3)
    proposer.open([sequence([1, 1, 1])])
    assert proposed(proposer, 0) is None
    assert proposed(proposer, 2) == [1, 1]
    proposer.close([1, 5])
    assert proposed(proposer, 2) is None
