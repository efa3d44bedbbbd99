"""Draft tokens in colour: accepted, rejected, and what the target added itself."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from specdec.cli.generation import Decode, Step

ACCEPTED = "green"
REJECTED = "red strike"
BONUS = "bold cyan"
RECOVERED = "bold yellow"
UNDRAFTED = ""
# Tokenizers that mark word starts drop the space of a text's first token: decode in context.
NUM_CONTEXT_TOKENS = 6


def legend() -> Text:
    """One line that explains the colours."""
    return Text.assemble(
        ("accepted", ACCEPTED),
        " ",
        ("rejected", REJECTED),
        " ",
        ("bonus (after full acceptance)", BONUS),
        " ",
        ("recovered (after a rejection)", RECOVERED),
        " not drafted",
    )


class TokenPrinter:
    """Prints steps one after the other, decoding each run of tokens after what was committed."""

    def __init__(self, console: Console, decode: Decode, prompt_token_ids: list[int]) -> None:
        self._console = console
        self._decode = decode
        self._context = prompt_token_ids[-NUM_CONTEXT_TOKENS:]

    def __call__(self, step: Step) -> None:
        """Print one step and move on."""
        self._console.print(self._styled(step), end="")
        self._context = (self._context + step.token_ids)[-NUM_CONTEXT_TOKENS:]

    def _styled(self, step: Step) -> Text:
        accepted = step.token_ids[: step.num_accepted_tokens]
        own = step.token_ids[step.num_accepted_tokens :]
        rejected = step.draft_token_ids[step.num_accepted_tokens :]
        return Text.assemble(
            (self._text([], accepted), ACCEPTED),
            (self._text(accepted, rejected), REJECTED),
            (self._text(accepted, own), _own_style(step)),
        )

    def _text(self, before: list[int], token_ids: list[int]) -> str:
        if not token_ids:
            return ""
        context = self._context + before
        known, full = self._decode(context), self._decode(context + token_ids)
        return full[len(known) :] if full.startswith(known) else self._decode(token_ids)


def _own_style(step: Step) -> str:
    if not step.draft_token_ids:
        return UNDRAFTED
    full = step.num_accepted_tokens == len(step.draft_token_ids)
    return BONUS if full else RECOVERED
