"""What the engine tests share: tiny engines, and a drafter that is told the future."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from specdec.config import CacheConfig, DraftConfig, EngineConfig, ModelConfig, SchedulerConfig
from specdec.config import SpeculationConfig as SpeculationLimits
from specdec.engine import Engine, GenerateRequest, build_engine
from specdec.params import SamplingParams, SpeculationParams
from specdec.sequence import SequenceOutput
from specdec.speculation.proposer import Committed, DraftTokens

BLOCK_SIZE = 4


def fixed(k: int, drafter: str | None = None) -> SpeculationParams:
    return SpeculationParams(mode="fixed", k=k, drafter=drafter)


OFF = SpeculationParams(mode="off")


def make_engine(
    target: Path,
    draft: Path | None = None,
    drafters: tuple[str, ...] = ("ngram",),
    draft_proposer=None,
    num_blocks: int = 256,
    prefix_caching: bool = False,
    draft_max_model_len: int | None = None,
    speculation: dict[str, str] | None = None,
    **scheduler,
) -> Engine:
    """A float64 engine; a draft folder makes the draft run in this process."""
    cache = CacheConfig(
        block_size=BLOCK_SIZE, num_blocks=num_blocks, enable_prefix_caching=prefix_caching
    )
    config = EngineConfig(
        target=ModelConfig(model=str(target), dtype="float64"),
        cache=cache,
        scheduler=SchedulerConfig(**{"max_num_batched_tokens": 256, **scheduler}),
        speculation=SpeculationLimits(
            drafters=drafters,
            max_num_speculative_tokens=8,
            ngram_min=1,
            ngram_max=3,
            **(speculation or {}),
        ),
    )
    draft_config = draft and DraftConfig(
        draft=ModelConfig(model=str(draft), dtype="float64"),
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=256),
        scheduler=SchedulerConfig(max_model_len=draft_max_model_len),
    )
    return build_engine(config, draft_config, draft_proposer)


def request(prompt: list[int], name: str = "r", partition: str = "", **params) -> GenerateRequest:
    return GenerateRequest(name, prompt, SamplingParams(**params), partition=partition)


def run(engine: Engine, requests: list[GenerateRequest]) -> dict[str, list[SequenceOutput]]:
    """Run to the end and check that nothing is left behind."""
    outputs: dict[str, list[SequenceOutput]] = {r.request_id: [] for r in requests}
    for output in engine.generate(requests):
        outputs[output.request_id].append(output)
        check_integrity(engine)
    assert engine.block_manager.num_used_blocks == 0
    return outputs


def check_integrity(engine: Engine) -> None:
    """free + used == total; a decoding sequence has KV for all but its last token (case *7)."""
    running = engine.scheduler.running
    engine.block_manager.check_integrity([s.block_table for s in running])
    for sequence in running:
        assert sequence.num_computed_tokens < sequence.num_tokens


def token_ids(outputs: list[SequenceOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


def generate(engine: Engine, prompt: list[int], **params) -> list[int]:
    return token_ids(run(engine, [request(prompt, **params)])["r"])


def random_prompt(length: int, seed: int, vocab_size: int = 288) -> list[int]:
    return random.Random(seed).choices(range(3, vocab_size), k=length)


class TellingProposer:
    """Proposes the true continuation with a wrong token at `wrong_at` of each proposal (None:
    never), so that a rejection can be forced at every position."""

    name = "draft"
    takes_time = False

    def __init__(self, truth: dict[int, list[int]], wrong_at: int | None = None) -> None:
        self.truth = truth  # the whole text by its prompt's length
        self.wrong_at = wrong_at
        self.num_asked = 0
        self._texts: dict[int, list[int]] = {}
        self._prompt_lens: dict[int, int] = {}

    def open(self, sequences: Sequence) -> None:
        for sequence in sequences:
            self._texts[sequence.seq_id] = list(sequence.token_ids)
            self._prompt_lens[sequence.seq_id] = sequence.num_prompt_tokens

    def available(self, seq_id: int) -> bool:
        return seq_id in self._texts

    def prepare(self, seq_ids: Sequence[int]) -> None:
        assert all(seq_id in self._texts for seq_id in seq_ids)

    def propose(self, ks: Mapping[int, int], wait_s: float) -> dict[int, DraftTokens]:
        assert 0 <= wait_s < 10
        self.num_asked += len(ks)
        return {seq_id: DraftTokens(self._draft(seq_id, k)) for seq_id, k in ks.items()}

    def _draft(self, seq_id: int, k: int) -> list[int]:
        start = len(self._texts[seq_id])
        tokens = self.truth[self._prompt_lens[seq_id]][start : start + k]
        if self.wrong_at is not None and self.wrong_at < len(tokens):
            tokens[self.wrong_at] = (tokens[self.wrong_at] + 1) % 288
        return tokens

    def confidence(self, seq_id: int) -> None:
        return None

    def num_matching(self, seq_id: int, token_ids: Sequence[int]) -> None:
        return None

    def commit(self, results: Sequence[Committed]) -> None:
        for result in results:
            self._texts[result.seq_id].extend(result.token_ids)

    def close(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            del self._texts[seq_id]

    def disabled_reason(self, seq_id: int) -> str | None:
        return None

    def shutdown(self) -> None:
        pass
