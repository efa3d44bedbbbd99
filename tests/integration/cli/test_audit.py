"""`specdec audit`: quiet where speculation is exact, and loud, with the right place, where not."""

from __future__ import annotations

import gzip
import json
from types import SimpleNamespace

import pytest
import torch

from specdec.cli import comparison
from specdec.cli.comparison import compare, logit_gap
from specdec.cli.prompts import read_prompts
from specdec.errors import InvalidRequestError
from specdec.params import SamplingParams, SpeculationParams
from specdec.sampling.coupled import gumbel_argmax
from specdec.sequence import SequenceOutput

GREEDY = SamplingParams(max_tokens=4, temperature=0.0)
FIXED = SpeculationParams(mode="fixed", k=2)


@pytest.fixture
def prompt_file(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("the cat sat on the mat and the cat sat\n\nonce upon a time\n")
    return path


@pytest.mark.parametrize("drafter", ["draft", "ngram"])
def test_exact_engine_passes_in_both_modes(specdec, models, prompt_file, drafter):
    report = specdec.json(
        "audit", prompt_file, *models, "--max-tokens", 16, "--drafter", drafter, "--batch", 2
    )
    assert report["num_comparisons"] == 4
    assert report["num_tokens"] > 0
    assert report["num_draft_tokens"] >= report["num_accepted_tokens"]
    assert report["num_divergences"] == report["num_ties"] == 0
    assert report["divergences"] == []
    if drafter == "draft":
        assert report["num_draft_tokens"] > 0


def test_verdict_is_printed(specdec, models, prompt_file):
    result = specdec("audit", prompt_file, *models, "--max-tokens", 8, "--mode", "greedy")
    assert "no divergence: 2 comparisons (greedy)" in result.stdout


def test_audit_without_drafts_says_that_it_tested_nothing(specdec, models, tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("abc\n")
    result = specdec(
        "audit", path, *models, "--drafter", "ngram", "--max-tokens", 1, "--mode", "greedy"
    )
    assert "nothing was drafted" in result.stderr


class ScriptedEngine:
    """Answers speculation off and on from a script; its logits come from a table by position."""

    def __init__(self, off, on, logits):
        self.outputs = {"off": off, "fixed": on}
        self.logits = logits
        self.asked = []

    def generate(self, requests):
        for request in requests:
            ids = self.outputs[request.params.speculation.mode]
            yield SequenceOutput(0, request.request_id, ids[:1])
            yield SequenceOutput(0, request.request_id, ids[1:], finish_reason="length")

    def next_token_logits(self, token_ids):
        self.asked.append(token_ids)
        return torch.tensor(self.logits, dtype=torch.float64)


def only(engine, params=GREEDY):
    done = []
    (result,) = compare(engine, [[7, 8]], "greedy", params, FIXED, 1, lambda: done.append(1))
    assert done == [1]
    return result


def test_first_divergence_and_its_gap():
    engine = ScriptedEngine([1, 2, 3], [1, 0, 3], [0.5, 0.0, 2.0, 1.0])
    divergence = only(engine).divergence
    assert (divergence.position, divergence.token_id_off, divergence.token_id_on) == (1, 2, 0)
    assert divergence.gap == pytest.approx(1.5)  # 2.0 for token 2 less 0.5 for token 0
    assert not divergence.is_tie
    assert engine.asked == [[7, 8, 1]]  # the prompt and what both agreed on


def test_tie_is_named_as_one():
    divergence = only(ScriptedEngine([1, 2], [1, 0], [2.0 - 5e-5, 0.0, 2.0, 1.0])).divergence
    assert divergence.is_tie
    assert divergence.gap == pytest.approx(5e-5, rel=1e-3)


def test_two_low_tokens_that_are_close_to_each_other_are_no_tie():
    divergence = only(ScriptedEngine([1, 0], [1, 1], [1.0, 1.0, 9.0])).divergence
    assert divergence.gap == pytest.approx(8.0)
    assert not divergence.is_tie


def test_text_that_ends_earlier_diverges_and_is_no_tie():
    divergence = only(ScriptedEngine([1, 2], [1], [0.0, 0.0, 0.0])).divergence
    assert (divergence.position, divergence.token_id_on, divergence.gap) == (1, None, None)
    assert not divergence.is_tie


def test_equal_texts_do_not_diverge():
    assert only(ScriptedEngine([1, 2], [1, 2], [])).divergence is None


def test_coupled_gap_counts_the_shared_noise():
    params = SamplingParams(max_tokens=4, temperature=0.5, seed=-3)
    logits = torch.linspace(-1, 1, 50, dtype=torch.float64)
    engine = SimpleNamespace(next_token_logits=lambda token_ids: logits)
    winner = gumbel_argmax(logits / 0.5, -3 % 2**64, position=2)
    assert logit_gap(engine, [7, 8], params, (winner, winner)) == 0.0
    other = (winner + 1) % 50
    assert logit_gap(engine, [7, 8], params, (winner, other)) > 0.0


def test_divergence_is_exit_status_1_with_a_table(specdec, models, prompt_file, monkeypatch):
    run = comparison._run

    def corrupted(engine, batch, params):
        runs = run(engine, batch, params)
        if params.speculation.mode != "off" and 0 in runs:
            runs[0].token_ids[3] ^= 1
        return runs

    monkeypatch.setattr(comparison, "_run", corrupted)
    arguments = ["audit", prompt_file, *models, "--max-tokens", 8, "--mode", "greedy"]
    report = specdec.json(*arguments, code=1)
    (entry,) = report["divergences"]
    assert (entry["prompt_index"], entry["position"]) == (0, 3)
    assert entry["token_id_on"] == entry["token_id_off"] ^ 1
    assert entry["gap"] > 1e-4
    assert "diverged" in specdec(*arguments, code=1).stdout


def test_prompt_files(tmp_path):
    lines = tmp_path / "mixed.jsonl"
    lines.write_text(
        "plain text\n"
        + json.dumps({"prompt": "from prompt"})
        + "\n\n"
        + json.dumps({"turns": ["first", "second"], "category": "x"})
        + "\n"
    )
    assert read_prompts(lines) == ["plain text", "from prompt", "first"]
    assert read_prompts(lines, limit=2) == ["plain text", "from prompt"]
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    assert read_prompts(packed) == read_prompts(lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n\n", "holds no prompt"),
        (b"ok\n{broken\n", ":2: not JSON"),
        (b'{"turns": []}\n', ":1: needs a text `prompt`"),
        (b'{"prompt": 5}\n', ":1: needs a text `prompt`"),
        (b"\xff\xfe", "cannot read"),
    ],
)
def test_bad_prompt_file_names_the_line(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=message):
        read_prompts(path)


def test_missing_prompt_file_is_exit_status_2(specdec):
    assert "cannot read" in specdec("audit", "/no/such/file", code=2).stderr


def test_audit_of_speculation_off_is_refused(specdec, prompt_file):
    specdec("audit", prompt_file, "--speculation", "off", code=2)
