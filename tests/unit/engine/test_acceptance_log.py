"""The engine's saved acceptance statistics against what its own outputs say."""

from __future__ import annotations

import pytest

from specdec.errors import ConfigError
from specdec.speculation.controller.acceptance_log import read_log
from tests.unit.engine.engine_harness import (
    OFF,
    TellingProposer,
    fixed,
    generate,
    make_engine,
    random_prompt,
    request,
    run,
)

PROMPT = random_prompt(11, seed=5)
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


def by_position(outputs) -> tuple[list[int], list[int], list[int]]:
    """Rounds drafted, decided and accepted at each draft position."""
    rounds = [(len(o.draft_token_ids), o.num_accepted_tokens) for o in outputs]
    depth = range(max(drafted for drafted, _ in rounds))
    return (
        [sum(drafted > position for drafted, _ in rounds) for position in depth],
        [sum(drafted > position <= accepted for drafted, accepted in rounds) for position in depth],
        [sum(accepted > position for _, accepted in rounds) for position in depth],
    )


def test_statistics_are_those_of_the_outputs(tiny_llama, tmp_path):
    path = tmp_path / "acceptance.jsonl"
    truth = generate(make_engine(tiny_llama), PROMPT, speculation=OFF, **GREEDY)
    engine = make_engine(
        tiny_llama,
        drafters=("draft",),
        draft_proposer=TellingProposer({len(PROMPT): PROMPT + truth}, wrong_at=2),
        speculation={"acceptance_log": str(path)},
    )
    generate(engine, PROMPT, speculation=fixed(1), **GREEDY)
    engine.reset_counters()  # that was a warm-up
    outputs = run(engine, [request(PROMPT, speculation=fixed(4), **GREEDY)])["r"][1:]
    run(engine, [request(PROMPT, speculation=OFF, **{**GREEDY, "temperature": 0.9, "seed": 1})])
    assert engine.stats().controller["acceptance_log_failures"] == 0.0
    engine.shutdown()

    drafted, off = read_log(path).records
    assert (drafted.drafter, drafted.label) == ("draft", "greedy")
    with_draft = [output for output in outputs if output.draft_token_ids]
    assert drafted.rounds == len(with_draft)
    assert [list(c) for c in (drafted.drafted, drafted.trials, drafted.successes)] == list(
        by_position(with_draft)
    )
    assert drafted.trials[2] > 0 == drafted.successes[2]
    assert drafted.tokens == sum(len(output.token_ids) for output in with_draft)
    assert (off.drafter, off.label, off.rounds) == (None, "temperature<=1.0", 23)
    assert 0 < off.target_seconds < 60


def test_a_log_that_is_none_stops_the_engine_at_its_start(tiny_llama, tmp_path):
    (tmp_path / "notes.txt").write_text("my notes\n")
    with pytest.raises(ConfigError, match=r"notes\.txt, line 1"):
        make_engine(tiny_llama, speculation={"acceptance_log": str(tmp_path / "notes.txt")})
    assert (tmp_path / "notes.txt").read_text() == "my notes\n"
