"""What a request's own parameters cost in a step: the worst that each field may ask for.

    python -m benchmarks.request_costs [--vocab-size 49152] [--k 8] [--rounds 15]

No model runs: one sequence's rows of random logits are verified, its text is searched for stop
strings, its log-probabilities are taken. All requests take turns within each round, so that a busy
machine slows all alike; times are CPU time. `first` is the request's first step, in which what it
needs is built.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from benchmarks.measure import machine, percentile, verdict
from specdec.engine.output import StopStrings
from specdec.params import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BAD_WORDS_TOKENS,
    MAX_LOGIT_BIAS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOP_LOGPROBS,
    SamplingParams,
)
from specdec.sampling.logprobs import token_logprobs
from specdec.sampling.processors import SequenceRows
from specdec.sampling.request_logits import RequestLogits
from specdec.sequence import Verification
from specdec.speculation.verifier import VerifyItem, verify_step

AIM_MS = 2.0
PROMPT_TOKENS = 8000
CHARACTERS_PER_TOKEN = 5
TOGETHER = "all of these"


@dataclass
class Case:
    """One request, and the CPU time of its steps in ms."""

    params: SamplingParams
    base: str
    text: list[int]
    steps_ms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.params.validate(1 << 30)
        stops = frozenset(self.params.stop_token_ids)
        self._request = RequestLogits(self.params, self.text, len(self.text), stops)
        self._stops = StopStrings(self.params.stop)
        self._mode = Verification.GREEDY if self.params.is_greedy else Verification.BLOCK

    def step(self, logits: torch.Tensor, drafts: list[int]) -> None:
        started_s = time.thread_time()
        rows = SequenceRows(self._request, drafts)
        round_number = len(self.steps_ms)
        verify_step(logits, [VerifyItem(rows, self._mode, 1, len(self.text), round_number)])
        for _ in range(logits.shape[0]):
            self._stops.push("a" * CHARACTERS_PER_TOKEN, True)
        if self.params.logprobs is not None:
            token_logprobs(logits, [*drafts, 0], self.params.logprobs)
        self.text.extend(drafts)
        self.steps_ms.append((time.thread_time() - started_s) * 1000)

    @property
    def median_ms(self) -> float:
        return percentile(self.steps_ms[1:], 50)


def worst_bad_words() -> tuple[tuple[int, ...], ...]:
    """Single tokens, and long words that the text nearly completes."""
    num_long = MAX_BAD_WORDS_TOKENS // MAX_BAD_WORD_TOKENS // 2
    long = [(1,) * (MAX_BAD_WORD_TOKENS - 1) + (token_id,) for token_id in range(2, 2 + num_long)]
    return (*long, *((token_id,) for token_id in range(MAX_BAD_WORDS * 2 - num_long)))


def worst_fields(vocab_size: int) -> dict[str, dict[str, object]]:
    """Name -> parameters of a greedy request."""
    stop_ids = tuple(range(MAX_STOP_TOKEN_IDS))
    fields: dict[str, dict[str, object]] = {
        "logit_bias": {"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0)},
        "allowed_token_ids": {"allowed_token_ids": tuple(range(1, vocab_size))},
        "bad_words": {"bad_words_token_ids": worst_bad_words()},
        "penalties": {
            "repetition_penalty": 1.1,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
        },
        "min_tokens, stop_token_ids": {"min_tokens": 10**6, "stop_token_ids": stop_ids},
        "stop": {"stop": ("a" * (MAX_STOP_CHARS - 1) + "b",) * MAX_STOP_STRINGS},
    }
    together = {name: value for each in fields.values() for name, value in each.items()}
    return {**fields, TOGETHER: together, "logprobs": {"logprobs": MAX_TOP_LOGPROBS}}


def cases(vocab_size: int) -> dict[str, Case]:
    text = [1 + i % (vocab_size - 1) for i in range(PROMPT_TOKENS)]
    greedy = SamplingParams(temperature=0.0, max_tokens=10**6)
    sampled = SamplingParams(temperature=1.0, max_tokens=10**6)
    found = {"plain": Case(greedy, "plain", list(text))}
    for name, values in worst_fields(vocab_size).items():
        found[name] = Case(replace(greedy, **values), "plain", list(text))
    found["plain, sampled"] = Case(sampled, "plain, sampled", list(text))
    for name, params in {
        "top_p": replace(sampled, top_p=0.999),
        "top_k": replace(sampled, top_k=vocab_size - 1),
        "min_p": replace(sampled, min_p=1e-6),
    }.items():
        found[name] = Case(params, "plain, sampled", list(text))
    return found


def run(vocab_size: int, k: int, num_rounds: int, show: Callable[[str], None] = print) -> float:
    """Prints the table; returns what all fields together add to a step, in ms."""
    by_name = cases(vocab_size)
    names = list(by_name)
    generator = torch.Generator().manual_seed(0)
    for number in range(num_rounds):
        logits = torch.randn(k + 1, vocab_size, generator=generator)
        for place in range(len(names)):
            by_name[names[(place + number) % len(names)]].step(logits, [1] * k)
    show(f"K = {k}, vocabulary {vocab_size}, {PROMPT_TOKENS} distinct tokens of text")
    show(f"  {'':28} {'first':>8} {'ms/step':>8} {'added':>8} {'ratio':>6}")
    for name, case in by_name.items():
        base = by_name[case.base].median_ms
        added, ratio = case.median_ms - base, case.median_ms / base
        show(
            f"  {name:28} {case.steps_ms[0]:8.2f} {case.median_ms:8.2f} {added:8.2f} {ratio:5.1f}x"
        )
    return by_name[TOGETHER].median_ms - by_name["plain"].median_ms


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    added_ms = run(options.vocab_size, options.k, options.rounds)
    print(verdict("2 ms over what all fields add to a step", AIM_MS / added_ms, 1.0))


if __name__ == "__main__":
    main()
