"""The texts that a model is checked with at start, and how they are cut into steps.

One text from the first position on, as long as the work allows, and a short one at each named
length that lies beyond it. Plain lists of numbers; runs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specdec.model.loader import LoadedModel
from specdec.step_plan import StepPlan

# Work of the long text: parameters times tokens, and scores of eager attention in one layer.
_CPU_WORK = 6e10
_DEVICE_WORK = 1e13
_MOST_SCORES = 3e7
# A text spans three blocks and more where they are not longer than this together.
_MOST_BLOCK_TOKENS = 128
_BEHIND = 6
_FAR_TOKENS = 12
_MOST_FAR_TEXTS = 12
_VERIFIED = 5


@dataclass(frozen=True, slots=True)
class CheckText:
    """first: the position of the first token. rows: the tokens whose results are compared,
    ascending. length: the named length for whose sake the text is there, 0 for the long one."""

    token_ids: list[int]
    first: int
    rows: list[int]
    length: int = 0

    def position(self, row: int) -> int:
        """Where the row with this index among `rows` stands."""
        return self.first + self.rows[row]

    def num_blocks(self, block_size: int) -> int:
        return -(-len(self.token_ids) // block_size)


def check_texts(
    loaded: LoadedModel, lengths: list[int], num_heads: int, block_size: int
) -> list[CheckText]:
    """The long text first. `lengths` ascending."""
    longest = _longest(loaded, num_heads)
    least = min(3 * block_size, _MOST_BLOCK_TOKENS) + _BEHIND
    reached = [length for length in lengths if length + _BEHIND <= longest]
    size = min(max([least, *(length + _BEHIND for length in reached)]), loaded.max_len)
    texts = [CheckText(random_tokens(loaded, size), 0, _rows(size, reached, block_size))]
    beyond = [length for length in lengths if length + _BEHIND > size][:_MOST_FAR_TEXTS]
    for length in beyond:
        first = max(0, min(length, loaded.max_len - _BEHIND) - _BEHIND)
        count = min(_FAR_TOKENS, loaded.max_len - first)
        texts.append(
            CheckText(random_tokens(loaded, count, seed=length), first, list(range(count)), length)
        )
    return texts


def num_blocks(texts: list[CheckText], block_size: int) -> int:
    """What the pool of `checked_steps` needs."""
    beside = -(-_num_beside(texts, block_size) // block_size)
    return sum(text.num_blocks(block_size) for text in texts) + beside


def _num_beside(texts: list[CheckText], block_size: int) -> int:
    """Tokens of the second sequence: they end behind a block's end."""
    return min(len(texts[0].token_ids), block_size + 3)


def checked_steps(
    texts: list[CheckText], block_size: int
) -> Iterator[tuple[StepPlan, list[tuple[int, int]]]]:
    """The steps that compute the texts, in order, each with the text and the row of every logit
    row. Beside the long text runs a second sequence with its beginning; the short ones follow."""
    free = _shuffled_blocks(num_blocks(texts, block_size))
    size, beside = len(texts[0].token_ids), _num_beside(texts, block_size)
    tables = {"long": _deal(free, size, block_size), "beside": _deal(free, beside, block_size)}
    starts = {"long": 0, "beside": 0}
    for step in _cuts(size, beside):
        plan = StepPlan()
        places: list[tuple[int, int]] = []
        for name, count in step.items():
            _extend(plan, places, texts, 0, starts[name], count, tables[name], block_size)
            starts[name] += count
        yield plan, places
    if len(texts) > 1:
        plan, places = StepPlan(), []
        for index, text in enumerate(texts[1:], start=1):
            table = _deal(free, len(text.token_ids), block_size)
            _extend(plan, places, texts, index, 0, len(text.token_ids), table, block_size)
        yield plan, places


def random_tokens(loaded: LoadedModel, count: int, seed: int = 11) -> list[int]:
    """Token ids of no meaning: none that the configuration names, such as an image's place."""
    numbers = random.Random(seed)
    special = set(_special_ids(loaded.model.config.to_dict()))
    ordinary = [token for token in range(loaded.vocab_size) if token not in special]
    return numbers.choices(ordinary or range(loaded.vocab_size), k=count)


def _special_ids(settings: dict[str, object]) -> Iterator[int]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _special_ids(value)
        elif str(name).endswith(("_token_id", "_token_index")):
            yield from (v for v in (value if isinstance(value, list) else [value])
                        if isinstance(v, int))  # fmt: skip


def _longest(loaded: LoadedModel, num_heads: int) -> int:
    """Tokens of the longest text that the work allows."""
    embedding = loaded.model.get_input_embeddings()
    held = sum(parameter.numel() for parameter in loaded.model.parameters())
    held -= sum(parameter.numel() for parameter in embedding.parameters())
    work = _CPU_WORK if loaded.device.type == "cpu" else _DEVICE_WORK
    return int(min(work / max(held, 1), (_MOST_SCORES / num_heads) ** 0.5))


def _rows(size: int, lengths: Iterable[int], block_size: int) -> list[int]:
    """Tokens around every length and its multiples, around block ends, and the last ones."""
    around = {times * length + offset for length in lengths for times in (1, 2, 3)
              for offset in range(-2, 2)}  # fmt: skip
    blocks = {times * block_size + offset for times in (1, 2, 3) for offset in (-1, 0)}
    ends = {0, 1, *range(size - 2 * _VERIFIED - 2, size)}
    return sorted(row for row in around | blocks | ends if 0 <= row < size)


def _cuts(size: int, beside: int) -> list[dict[str, int]]:
    """How many tokens of which sequence each step computes: chunks of a prompt, rows of draft
    tokens, a single token, and the rest, the second sequence among them."""
    if size < 4 * _VERIFIED:
        return [{"long": size, "beside": beside}]
    first = (size - 2 * _VERIFIED - 1) * 5 // 9
    second = size - 2 * _VERIFIED - 1 - first
    return [
        {"long": first},
        {"beside": beside - 1, "long": second},
        {"long": _VERIFIED, "beside": 1},
        {"long": 1},
        {"long": _VERIFIED},
    ]


def _extend(
    plan: StepPlan,
    places: list[tuple[int, int]],
    texts: list[CheckText],
    index: int,
    start: int,
    count: int,
    table: list[int],
    block_size: int,
) -> None:
    """Add `count` tokens of a text from `start` on, and note where its compared rows are."""
    if count == 0:
        return
    text, before = texts[index], plan.num_tokens
    plan.add(text.token_ids[start : start + count], start, table, block_size, 0)
    plan.positions[before:] = range(text.first + start, text.first + start + count)
    for row, token in enumerate(text.rows):
        if start <= token < start + count:
            plan.logit_rows.append(before + token - start)
            places.append((index, row))


def _deal(free: list[int], num_tokens: int, block_size: int) -> list[int]:
    return [free.pop() for _ in range(-(-num_tokens // block_size))]


def _shuffled_blocks(count: int) -> list[int]:
    blocks = list(range(count))
    random.Random(5).shuffle(blocks)
    return blocks
