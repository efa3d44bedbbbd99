"""Which of the engine's rounds are compared with an expectation."""

from __future__ import annotations

from specdec.cli.acceptance_check import whole_rounds
from specdec.sequence import SequenceOutput


def steps(*accepted: int) -> list[SequenceOutput]:
    """The first token, from the prompt's pass, then a step for each number of accepted tokens."""
    first = SequenceOutput(1, "r", [9])
    later = [SequenceOutput(1, "r", [9] * (n + 1), num_accepted_tokens=n) for n in accepted]
    return [first, *later]


def test_only_rounds_with_room_for_k_tokens_and_a_bonus_count():
    # Starts 1, 3, 4, 7 in a text of 8: with K 2 a start of 5 would be the last one whole.
    assert whole_rounds(steps(1, 0, 2, 0), k=2) == (2 + 1 + 3, 3)
    assert whole_rounds(steps(1, 0, 2, 0), k=4) == (2 + 1, 2)


def test_the_first_token_is_no_round_and_a_short_text_has_none():
    assert whole_rounds(steps(), k=4) == (0, 0)
    assert whole_rounds(steps(0, 0), k=4) == (0, 0)
