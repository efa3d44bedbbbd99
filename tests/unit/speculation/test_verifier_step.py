"""`verify_step`, the engine's entry: modes in one batch, draws, parameters at every position."""

import itertools
import math

import numpy as np
import pytest
import torch

from specdec.params import SamplingParams
from specdec.sampling.law import SparseLaw
from specdec.sampling.logprobs import token_logprobs
from specdec.sampling.philox import Domain, uniform
from specdec.sampling.processors import adjust_logits, probs
from specdec.sequence import Verification
from specdec.speculation import verifier
from specdec.speculation.verifier import (
    Verdict,
    VerifyItem,
    verify_block,
    verify_rejection,
    verify_step,
)
from tests.logit_rows import logit_rows

SAMPLED = (Verification.REJECTION, Verification.BLOCK)
RULES = {Verification.REJECTION: verify_rejection, Verification.BLOCK: verify_block}
VOCAB_SIZE = 11


def law(*token_probs):
    return SparseLaw.from_probs(np.array(token_probs), len(token_probs), min_mass=1.0)


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def item(verification, draft_token_ids=(), *, laws=(), round=0, seed=1, output=(), **params):
    temperature = 0.0 if verification is Verification.GREEDY else 1.0
    params = SamplingParams(**{"temperature": temperature, "max_tokens": 64, **params})
    rows = logit_rows(params, [0], list(output), list(draft_token_ids), frozenset({10}))
    return VerifyItem(rows, verification, seed, 1 + len(output), round, list(laws))


def table_logits(context, vocab_size=VOCAB_SIZE, salt=0):
    """Logits of a small table model: any two contexts have unrelated ones."""
    state = salt + 1
    for token_id in context:
        state = (state * 31 + token_id + 7) % 2_147_483_647
    generator = torch.Generator().manual_seed(state)
    return 1.5 * torch.randn(vocab_size, dtype=torch.float64, generator=generator)


def step(verification, output, draft_token_ids, *, laws=(), round=0, **params):
    """One verify pass of the table model; the committed tokens and how many were accepted."""
    rows = [table_logits((*output, *draft_token_ids[:j])) for j in range(len(draft_token_ids) + 1)]
    work = item(verification, draft_token_ids, laws=laws, round=round, output=output, **params)
    (verdict,) = verify_step(torch.stack(rows), [work])
    num_accepted = verdict.num_accepted_tokens
    return [*draft_token_ids[:num_accepted], verdict.next_token_id], num_accepted


def generate(verification, num_tokens, k, propose, **params):
    output, round = [], 0
    while len(output) < num_tokens:
        committed, _ = step(verification, output, propose(output, k, round), round=round, **params)
        output, round = output + committed, round + 1
    return output[:num_tokens]


def drafts_with_noise(output, k, round, noise=0.7):
    """Draft tokens that are right about half of the time."""
    tokens = []
    for _ in range(k):
        context = (*output, *tokens)
        logits = table_logits(context) + noise * table_logits(context, salt=round + 1)
        tokens.append(int(logits.argmax()))
    return tokens


@pytest.mark.parametrize("verification", list(Verification))
def test_a_certain_target_is_followed_in_every_mode(verification):
    logits = torch.full((3, 4), -1e9, dtype=torch.float64)
    logits[0, 2] = logits[1, 3] = logits[2, 1] = 0.0
    assert verify_step(logits, [item(verification, [2, 3])]) == [Verdict(2, 1)]
    assert verify_step(logits, [item(verification, [2, 0])]) == [Verdict(1, 3)]
    assert verify_step(logits, [item(verification, [3, 3])]) == [Verdict(0, 2)]


def mixed_items():
    laws = [SparseLaw.one_hot(4)] * 2
    return [
        item(Verification.GREEDY, [1, 2, 3]),
        item(Verification.COUPLED, [], seed=5),
        item(Verification.BLOCK, [4, 4], laws=laws, top_k=9),
        item(Verification.REJECTION, [7, 7], round=3, frequency_penalty=1.0),
        item(Verification.COUPLED, [7], seed=9, top_p=0.8, min_tokens=1),
        item(Verification.GREEDY, [], logit_bias={3: 5.0}),
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_mixed_batch_equals_its_parts(dtype):
    items = mixed_items()
    num_rows = sum(one.rows.num_rows for one in items)
    logits = torch.stack([table_logits((n,)) for n in range(num_rows)]).to(dtype)
    before = logits.clone()
    together = verify_step(logits, items)
    assert torch.equal(logits, before)
    first_row = 0
    for one, verdict in zip(items, together, strict=True):
        rows = logits[first_row : first_row + one.rows.num_rows]
        assert verify_step(rows, [one]) == [verdict]
        first_row += one.rows.num_rows


def test_greedy_without_processors_is_one_argmax_without_a_copy(monkeypatch):
    logits = torch.stack([table_logits((n,)) for n in range(3)]).to(torch.bfloat16)
    calls = []
    monkeypatch.setattr(verifier, "probs", lambda *_: pytest.fail("softmax in greedy mode"))
    argmax = torch.Tensor.argmax

    def counted_argmax(self, *args, **kwargs):
        calls.append(self.data_ptr())
        return argmax(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "argmax", counted_argmax)
    verify_step(logits, [item(Verification.GREEDY, [1]), item(Verification.GREEDY)])
    assert calls == [logits.data_ptr()]


@pytest.mark.parametrize("verification", SAMPLED)
def test_draws_are_keyed_by_seed_position_and_round(verification):
    for seed, round, num_output in itertools.product((3, -4), (0, 1, 70), (0, 5)):
        output = list(range(num_output))
        drafts = [1, 2, 3]
        rows = torch.stack([table_logits((*output, *drafts[:j])) for j in range(4)])
        work = item(verification, drafts, seed=seed, round=round, output=output)
        position = 1 + num_output
        draws = [
            uniform(seed, Domain.ACCEPTANCE, position + j, round=round) for j in range(len(drafts))
        ]
        residual = uniform(seed, Domain.RESIDUAL, position, round=round)
        expected = RULES[verification](probs(rows, work.rows.params), drafts, [], draws, residual)
        assert verify_step(rows, [work]) == [expected]


@pytest.mark.parametrize("verification", SAMPLED)
def test_no_draw_is_used_twice_in_the_life_of_a_sequence(verification, monkeypatch):
    keys = []

    def recorded(*key, round):
        keys.append((*key, round))
        return uniform(*key, round=round)

    monkeypatch.setattr(verifier, "uniform", recorded)
    generate(verification, 40, 3, drafts_with_noise, seed=6)
    assert len(keys) > 40
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("verification", [Verification.GREEDY, Verification.COUPLED])
def test_text_is_that_without_speculation_for_every_possible_draft(verification):
    """Every draft of 1 to 3 tokens over a small vocabulary, at every point of the text: all that
    is committed continues the text without speculation. Hence so do any number of rounds."""
    vocab_size = 3

    def logits(context):
        return table_logits(context, vocab_size)

    def verify(context, drafts, seed):
        rows = torch.stack([logits((*context, *drafts[:j])) for j in range(len(drafts) + 1)])
        work = item(verification, drafts, output=context, seed=seed)
        (verdict,) = verify_step(rows, [work])
        accepted = drafts[: verdict.num_accepted_tokens]
        return [*accepted, verdict.next_token_id]

    for seed in (1, 2):
        plain = []
        for _ in range(7):
            plain += verify(plain, [], seed)
        for start, k in itertools.product(range(4), (1, 2, 3)):
            for drafts in itertools.product(range(vocab_size), repeat=k):
                committed = verify(plain[:start], list(drafts), seed)
                assert committed == plain[start : start + len(committed)]


@pytest.mark.parametrize("verification", [Verification.GREEDY, Verification.COUPLED])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"frequency_penalty": 2.0},
        {"frequency_penalty": -2.0, "presence_penalty": 1.0},
        {"repetition_penalty": 1.7, "min_tokens": 12, "logit_bias": {10: 4.0}},
        {"bad_words_token_ids": ((3, 4), (5,), (1, 2, 1))},
        {"allowed_token_ids": (1, 2, 3, 10), "min_tokens": 5},
        {"min_p": 0.2, "top_k": 6, "top_p": 0.9},
    ],
    ids=lambda params: "-".join(params) or "plain",
)
def test_parameters_see_the_history_of_their_position(verification, params):
    """Starred case 13: the text with speculation is the text without, at every K."""
    if verification is Verification.GREEDY:
        params = {**params, "temperature": 0.0}
    plain = generate(verification, 30, 0, drafts_with_noise, seed=4, **params)
    for k in range(1, 9):
        assert generate(verification, 30, k, drafts_with_noise, seed=4, **params) == plain


def test_rejected_draft_tokens_leave_no_trace():
    """Starred case 13: after a step whose drafts were all refused, the next one is as ever."""
    params = {"temperature": 0.0, "frequency_penalty": 2.0, "min_tokens": 20}
    plain = generate(Verification.GREEDY, 20, 0, drafts_with_noise, **params)

    def always_wrong(output, k, round):
        return [(plain[len(output)] + 1) % VOCAB_SIZE] * k

    assert generate(Verification.GREEDY, 20, 4, always_wrong, **params) == plain
    greedy = generate(Verification.GREEDY, 20, 0, drafts_with_noise, temperature=0.0)
    assert plain != greedy, "the penalty must matter for this test to say anything"


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("k", range(5))
def test_banned_token_never_appears(verification, k):
    """Starred case 14: bias -100 on the token that would otherwise be everywhere, and drafts
    that insist on it."""
    frequent = 6

    def run(bias):
        output, round = [], 0
        while len(output) < 12:
            drafts = [frequent] * k
            rows = [table_logits((*output, *drafts[:j])) for j in range(k + 1)]
            logits = torch.stack(rows)
            logits[:, frequent] += 8
            work = item(verification, drafts, output=output, round=round, logit_bias=bias)
            (verdict,) = verify_step(logits, [work])
            output += [*drafts[: verdict.num_accepted_tokens], verdict.next_token_id]
            round += 1
        return output

    assert run({}).count(frequent) >= 10
    assert frequent not in run({frequent: -100.0})


@pytest.mark.parametrize("verification", [*SAMPLED, Verification.COUPLED])
def test_min_p_holds_at_verified_and_bonus_positions(verification):
    """Starred case 14: no token below min_p times the likeliest, wherever it comes from."""
    seen_bonus = seen_accepted = seen_recovered = 0
    for seed in range(60):
        drafts = drafts_with_noise((seed,), 2, seed)
        rows = torch.stack([table_logits((seed, *drafts[:j])) for j in range(3)])
        work = item(verification, drafts, seed=seed, min_p=0.3)
        (verdict,) = verify_step(rows, [work])
        tokens = [*drafts[: verdict.num_accepted_tokens], verdict.next_token_id]
        for row, token_id in zip(torch.softmax(rows, -1), tokens, strict=False):
            assert row[token_id] >= 0.3 * row.max() - 1e-12
        seen_bonus += verdict.num_accepted_tokens == 2
        seen_accepted += verdict.num_accepted_tokens > 0
        seen_recovered += verdict.num_accepted_tokens < 2
    assert min(seen_bonus, seen_accepted, seen_recovered) > 3


@pytest.mark.parametrize("verification", list(Verification))
def test_log_probabilities_of_committed_tokens_are_the_targets_own(verification):
    """Starred case 15: row j of a pass belongs to its j-th committed token, whether accepted,
    recovered or bonus, and bias or penalties never reach the log-probabilities."""
    outcomes = set()
    for seed in range(20):
        drafts = drafts_with_noise((seed,), 3, seed, noise=seed % 2)
        rows = torch.stack([table_logits((seed, *drafts[:j])) for j in range(4)])
        params = {"logit_bias": {4: 2.0}, "frequency_penalty": 1.0}
        if verification is not Verification.GREEDY:
            params["temperature"] = 0.2
        work = item(verification, drafts, output=[seed], seed=seed, **params)
        (verdict,) = verify_step(rows, [work])
        num_accepted = verdict.num_accepted_tokens
        committed = [*drafts[:num_accepted], verdict.next_token_id]
        context = [seed]
        for result in token_logprobs(rows[: len(committed)], committed, 2):
            alone = token_logprobs(table_logits(context)[None], [result.token_id], 2)
            assert [result] == alone
            context.append(result.token_id)
        assert context[1:] == committed
        outcomes.add(num_accepted)
    assert {0, 3} <= outcomes


@pytest.mark.parametrize("verification", SAMPLED)
def test_token_outside_its_own_law_ends_the_proposal(verification):
    """A dishonest draft: from such a token on, the step is as if nothing had been proposed."""
    laws = [law(0.5, 0.5), law(1.0, 0.0), law(0.5, 0.5)]
    rows = torch.stack([table_logits((n,), 2) for n in range(4)])
    for seed in range(30):
        drafts = [seed % 2, 1, 0]
        honest = item(verification, drafts[:1], laws=laws[:1], seed=seed)
        dishonest = item(verification, drafts, laws=laws, seed=seed)
        assert verify_step(rows, [dishonest]) == verify_step(rows[:2], [honest])


def test_probabilities_of_narrow_logits_are_computed_in_float64():
    logits = torch.stack([table_logits((n,), 1000) for n in range(2)])
    for dtype in (torch.float32, torch.bfloat16):
        narrow = logits.to(dtype)
        result = probs(narrow, SamplingParams(temperature=0.7))
        assert result.dtype == torch.float64
        exact = [[math.exp(value / 0.7) for value in row] for row in narrow.double().tolist()]
        expected = tensor(*[[value / math.fsum(row) for value in row] for row in exact])
        assert float((result / expected - 1).abs().max()) < 1e-13
        assert float((result.sum(-1) - 1).abs().max()) < 1e-14


def test_adjustment_is_shared_by_all_modes():
    """What verify_step judges by is adjust_logits of the same rows, in every mode."""
    drafts = [2, 3]
    rows = torch.stack([table_logits((n,)) for n in range(3)])
    params = {"logit_bias": {2: 3.0}, "presence_penalty": 1.5}
    for verification in Verification:
        work = item(verification, drafts, output=[2, 5], **params)
        plain = item(verification, drafts, output=[2, 5])
        adjusted = adjust_logits(rows, [work.rows])
        assert verify_step(rows, [work]) == verify_step(adjusted, [plain])
