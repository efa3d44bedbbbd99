"""What lookup would have had accepted, against what the real proposer said before the commit."""

from __future__ import annotations

import random

import pytest

from specdec.engine.drafters import Drafters
from specdec.params import SamplingParams
from specdec.sequence import Sequence, Verification
from specdec.speculation.controller import SequenceResult
from specdec.speculation.proposer import Committed
from specdec.speculation.proposers import ngram
from specdec.speculation.proposers.ngram import NgramProposer


def sequence(seq_id: int, token_ids: list[int], drafters: tuple[str, ...] = ("ngram",)) -> Sequence:
    made = Sequence(
        seq_id=seq_id,
        request_id=str(seq_id),
        token_ids=token_ids,
        num_prompt_tokens=1,
        params=SamplingParams(max_tokens=10_000),
        seed=0,
        verification=Verification.GREEDY,
        eos_token_ids=frozenset(),
        max_model_len=100_000,
    )
    made.drafters = drafters
    return made


def result(seq_id: int, num_committed: int) -> SequenceResult:
    return SequenceResult(seq_id, "ngram", 0, 0, 0, num_committed, finished=False)


def commit(drafters: Drafters, sequences: list[Sequence], tokens: list[list[int]]) -> list:
    """What the engine does with committed tokens: append, score, tell. The scores by sequence."""
    committed, results = [], []
    for one, new in zip(sequences, tokens, strict=True):
        one.token_ids.extend(new)
        committed.append(Committed(one.seq_id, new, 0, 0))
        results.append(result(one.seq_id, len(new)))
    drafters.score(committed, results)
    drafters.commit(committed)
    return [r.scored for r in results]


@pytest.mark.parametrize("alphabet", [2, 3, 6])
def test_scores_are_those_of_the_proposal_that_would_have_been_made(alphabet: int) -> None:
    """Random texts, four sequences; a second proposer is asked for as many tokens as are committed
    just before they are, and its proposal compared token by token."""
    draws = random.Random(alphabet)
    mine, other = NgramProposer(1, 3), NgramProposer(1, 3)
    drafters = Drafters({"ngram": mine})
    sequences = [
        sequence(i, [draws.randrange(alphabet) for _ in range(2 + 3 * i)]) for i in range(4)
    ]
    drafters.open(sequences)
    other.open(sequences)
    num_scored = num_unscored = 0
    for step in range(120):
        tokens, expected = [], []
        for one in sequences:
            drafters.available(one)
            if step % 3 == 0:  # whether it also proposed must not matter
                mine.propose({one.seq_id: 2}, 0.0)
            count = draws.randrange(1, 8)
            proposal = other.propose({one.seq_id: count}, 0.0).get(one.seq_id)
            copied = proposal.token_ids if proposal else []
            # Half of the texts go on as proposed for a while.
            keep = draws.randrange(count + 1) if draws.random() < 0.5 else 0
            new = [*copied[:keep], *(draws.randrange(alphabet) for _ in range(count))][:count]
            right = next((i for i in range(len(copied)) if copied[i] != new[i]), len(copied))
            expected.append((count, right) if proposal else None)
            tokens.append(new)
        scored = commit(drafters, sequences, tokens)
        for given, wanted in zip(scored, expected, strict=True):
            if wanted is None:
                assert given == ()
                num_unscored += 1
            else:
                (score,) = given
                assert (score.drafter, score.num_compared, score.num_matching) == ("ngram", *wanted)
                num_scored += 1
    assert num_scored > 200
    assert num_unscored > 0


def test_what_copies_itself_is_scored_past_the_end_of_the_text() -> None:
    """7 8 7 8 found two back: the proposal runs on as 7 8 7 8 7 ..., longer than the text behind
    the match."""
    drafters = Drafters({"ngram": NgramProposer(1, 2)})
    one = sequence(1, [7, 8, 7, 8])
    drafters.open([one])
    assert drafters.available(one) == ("ngram",)
    ((score,),) = commit(drafters, [one], [[7, 8, 7, 8, 7, 7]])
    assert (score.num_compared, score.num_matching) == (6, 5)


def test_no_match_no_score() -> None:
    drafters = Drafters({"ngram": NgramProposer(2, 3)})
    one = sequence(1, [1, 2, 3, 4, 5])
    drafters.open([one])
    assert drafters.available(one) == ()
    assert commit(drafters, [one], [[6, 7]]) == [()]


def test_a_look_is_scored_once_and_a_stale_one_never() -> None:
    """Committed without a look in between: what was found belongs to a shorter text."""
    drafters = Drafters({"ngram": NgramProposer(1, 2)})
    one = sequence(1, [1, 2, 1])
    drafters.open([one])
    assert drafters.available(one) == ("ngram",)
    ((score,),) = commit(drafters, [one], [[2]])
    assert (score.num_compared, score.num_matching) == (1, 1)
    assert commit(drafters, [one], [[1]]) == [()], "nobody looked again"
    drafters.available(one)
    one.token_ids.append(2)  # a token of which nobody was told
    assert commit(drafters, [one], [[1]]) == [()]


def test_a_match_that_is_lost_is_no_longer_scored() -> None:
    """A look that finds nothing replaces one that did."""
    drafters = Drafters({"ngram": NgramProposer(1, 1)})
    one = sequence(1, [1, 2, 1])
    drafters.open([one])
    assert drafters.available(one)
    one.token_ids[-1] = 9
    assert not drafters.available(one)
    assert commit(drafters, [one], [[2]]) == [()]


def test_the_index_of_a_long_prompt_is_scored_as_far_as_it_has_grown(monkeypatch) -> None:
    """Four tokens are indexed at a time: the early look finds nothing, and is not scored."""
    monkeypatch.setattr(ngram, "MAX_INDEXED_AT_ONCE", 4)
    drafters = Drafters({"ngram": NgramProposer(2, 2)})
    one = sequence(1, [*range(10), 5, 6])
    drafters.open([one])
    assert drafters.available(one) == ()
    assert commit(drafters, [one], [[7]]) == [()]
    drafters.available(one)
    assert drafters.available(one) == ("ngram",)
    ((score,),) = commit(drafters, [one], [[8, 9, 9]])
    assert (score.num_compared, score.num_matching) == (3, 2)


class Slow:
    """Takes time, and so is never asked what it would have said."""

    name, takes_time = "draft", True

    def open(self, sequences):
        pass

    def commit(self, results):
        pass

    def num_matching(self, seq_id, token_ids):
        raise AssertionError("a drafter that takes time was asked")


def test_closed_foreign_and_empty_commits_are_not_scored() -> None:
    drafters = Drafters({"draft": Slow(), "ngram": NgramProposer(1, 2)})
    both, slow_only = sequence(1, [1, 2, 1], ("ngram",)), sequence(2, [1, 2, 1], ("draft",))
    drafters.open([both, slow_only])
    drafters.available(both)
    assert commit(drafters, [both, slow_only], [[], [2]]) == [(), ()]
    drafters.available(both)
    drafters.close(both)
    assert commit(drafters, [both], [[2]]) == [()]
