"""Colours of draft tokens, token by token."""

from __future__ import annotations

import pytest
from rich.console import Console

from specdec.cli.generation import Step
from specdec.cli.show import ACCEPTED, BONUS, RECOVERED, REJECTED, UNDRAFTED, TokenPrinter

LETTERS = {1: "a", 2: "b", 3: "c", 4: "d", 9: "X"}


def decode(token_ids: list[int]) -> str:
    """A decoder that, like SentencePiece, drops the space of a text's first word."""
    return " ".join(LETTERS[token_id] for token_id in token_ids)


def styled(step: Step, context: list[int]) -> list[tuple[str, str]]:
    """The parts of a printed step, with their styles."""
    text = TokenPrinter(Console(), decode, context)._styled(step)
    assert str(text.style) == ""
    return [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Step([2], "b"), [(" b", UNDRAFTED)]),
        (Step([2, 3], "", [2], 1), [(" b", ACCEPTED), (" c", BONUS)]),
        (Step([2, 3], "", [2, 9], 1), [(" b", ACCEPTED), (" X", REJECTED), (" c", RECOVERED)]),
        (Step([3], "", [9, 9], 0), [(" X X", REJECTED), (" c", RECOVERED)]),
        # A stop cut the block inside its accepted tokens: nothing of the target's own is left.
        (Step([2], "", [2, 3, 4], 3), [(" b", ACCEPTED)]),
    ],
)
def test_each_part_has_its_colour(step, expected):
    # Text without a style of its own needs no span.
    assert styled(step, [1]) == [part for part in expected if part[1]]


def test_printer_decodes_in_the_context_of_what_it_printed(capsys):
    printer = TokenPrinter(Console(), decode, [1])
    printer(Step([2, 3], "", [2], 1))
    printer(Step([4], ""))
    assert capsys.readouterr().out == " b c d"
