"""The in-process draft as the engine sees it: a Proposer. With a real model, draft and target one
and the same, transformers' own text is what must be proposed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec.config import CacheConfig, DraftConfig, ModelConfig, SchedulerConfig
from specdec.engine.draft_builder import build_draft_engine, token_strings
from specdec.engine.local_draft import (
    FAILED,
    PROMPT_TOO_LONG,
    LocalDraftProposer,
    build_local_draft,
)
from specdec.errors import ConfigError
from specdec.params import SamplingParams, SpeculationParams
from specdec.sequence import Sequence, resolve_verification
from specdec.speculation.proposer import Committed
from specdec.speculation.verifier import VerifyItem, verify_step
from tests.logit_rows import logit_rows
from tests.unit.engine.draft_harness import (
    COUPLED,
    GREEDY,
    VOCAB_SIZE,
    Clock,
    PoolExecutor,
    check,
    make_engine,
    target_token,
)

WAIT_S = 60.0


def sequence(seq_id=1, prompt=(5, 6, 7, 8, 9, 10), params=COUPLED):
    return Sequence(
        seq_id,
        str(seq_id),
        list(prompt),
        len(prompt),
        params,
        seed=11,
        verification=resolve_verification(params),
        eos_token_ids=frozenset(),
        max_model_len=256,
    )


def tell(proposer, seq, token_ids, num_drafted=0, num_accepted=0):
    seq.token_ids.extend(token_ids)
    proposer.commit([Committed(seq.seq_id, list(token_ids), num_drafted, num_accepted)])


def future(seq, num_tokens):
    text = list(seq.token_ids)
    for _ in range(num_tokens):
        text.append(target_token(text, seq.num_prompt_tokens, seq.params, seq.seed))
    return text[seq.num_tokens :]


def local(clock=None, executor=None, **options):
    clock = clock or Clock()
    engine = make_engine(executor or PoolExecutor(), clock, **options)
    return LocalDraftProposer(engine, VOCAB_SIZE, clock)


# -- over the imitated pool ------------------------------------------------------------------------


def test_proposes_for_several_sequences_at_once():
    proposer = local()
    sequences = [sequence(1), sequence(2, (9, 8, 7)), sequence(3, (1,), GREEDY)]
    proposer.open(sequences)
    for seq in sequences:
        assert proposer.available(seq.seq_id)
        tell(proposer, seq, future(seq, 1))
    ks = {1: 3, 2: 1, 3: 5}
    for _ in range(4):
        drafts = proposer.propose(ks, WAIT_S)
        for seq in sequences:
            assert drafts[seq.seq_id].token_ids == future(seq, ks[seq.seq_id])
            tell(proposer, seq, future(seq, ks[seq.seq_id] + 1), ks[seq.seq_id], ks[seq.seq_id])
        check(proposer.engine)
    proposer.close([1, 2, 3])
    assert proposer.engine.memory.blocks.num_used_blocks == 0


def test_a_long_prompt_proceeds_over_several_waits_and_delays_nobody():
    clock = Clock()
    executor = PoolExecutor(num_blocks=128, clock=clock, pass_s=0.01, token_s=0.001)
    proposer = local(clock, executor, max_num_batched_tokens=16)
    insisting = replace(COUPLED, speculation=SpeculationParams(mode="fixed", k=2))
    short, long = sequence(1), sequence(2, [1 + i % 30 for i in range(150)], insisting)
    proposer.open([short])
    tell(proposer, short, future(short, 1))
    assert proposer.propose({1: 2}, WAIT_S)[1].token_ids == future(short, 2)
    proposer.open([long])
    for seq in (short, long):
        tell(proposer, seq, future(seq, 1))
    answered = 0
    for _ in range(30):
        before_s = clock.now_s
        drafts = proposer.propose({1: 2, 2: 2}, 0.2)
        assert clock.now_s - before_s <= 0.2
        assert drafts[1].token_ids == future(short, 2)
        if 2 in drafts:
            assert drafts[2].token_ids == future(long, 2)
            answered += 1
        for seq in (short, long):
            tell(proposer, seq, future(seq, 1), 2, 1)
    assert answered > 10


def test_alone_it_waits_for_its_own_prompt():
    proposer = local(max_num_batched_tokens=8)
    seq = sequence(1, [1 + i % 30 for i in range(50)])
    proposer.open([seq])
    tell(proposer, seq, future(seq, 1))
    assert proposer.propose({1: 4}, WAIT_S)[1].token_ids == future(seq, 4)


def test_a_lone_sequence_has_its_prompt_computed_before_it_is_asked():
    clock = Clock()
    executor = PoolExecutor(clock=clock, pass_s=0.01, token_s=0.001)
    proposer = local(clock, executor, max_num_batched_tokens=8)
    seq = sequence(1, [1 + i % 30 for i in range(50)])
    proposer.open([seq])
    tell(proposer, seq, future(seq, 1))
    assert proposer.disabled_reason(1) == "draft_prefilling"
    proposer.prepare([1])
    assert proposer.disabled_reason(1) is None
    before_s = clock.now_s
    assert proposer.propose({1: 4}, WAIT_S)[1].token_ids == future(seq, 4)
    assert clock.now_s - before_s < 0.05  # four passes over a token each


def test_among_others_a_prompt_is_not_computed_at_one_go():
    proposer = local(max_num_batched_tokens=8)
    proposer.open([sequence(1), sequence(2, [1 + i % 30 for i in range(50)])])
    proposer.prepare([1, 2])
    assert proposer.disabled_reason(2) == "draft_prefilling"


def test_a_prompt_that_costs_more_than_its_tokens_can_save_is_left_out():
    clock = Clock()
    executor = PoolExecutor(num_blocks=128, clock=clock, pass_s=0.01, token_s=0.001)
    proposer = local(clock, executor)
    proposer.warm_up()  # a pass takes about 10 ms, a token of a prompt about 1 ms
    prompt = [1 + i % 30 for i in range(100)]
    few, many = replace(COUPLED, max_tokens=8), replace(COUPLED, max_tokens=120)
    fixed = replace(few, speculation=SpeculationParams(mode="fixed", k=2))
    wanted = [sequence(i, prompt, params) for i, params in enumerate((few, many, fixed))]
    proposer.open(wanted)
    assert [proposer.available(i) for i in range(3)] == [False, True, True]
    assert proposer.disabled_reason(0) == PROMPT_TOO_LONG
    tell(proposer, wanted[0], future(wanted[0], 1))
    assert proposer.propose({0: 2}, WAIT_S) == {}
    proposer.close([0, 1, 2])
    assert proposer.engine.memory.blocks.num_used_blocks == 0


def test_no_time_no_tokens_and_no_harm():
    proposer = local()
    seq = sequence()
    proposer.open([seq])
    tell(proposer, seq, future(seq, 1))
    assert proposer.propose({1: 4}, 0.0) == {}
    assert proposer.propose({1: 4}, WAIT_S)[1].token_ids == future(seq, 4)


def test_an_error_ends_speculation_for_the_open_sequences_only():
    proposer = local()
    seq = sequence()
    proposer.open([seq])
    tell(proposer, seq, future(seq, 1))
    proposer.engine.executor.error = RuntimeError("no")
    assert proposer.propose({1: 4}, WAIT_S) == {}
    assert not proposer.available(1)
    assert proposer.disabled_reason(1) == FAILED
    tell(proposer, seq, future(seq, 1))
    assert proposer.propose({1: 4}, WAIT_S) == {}
    proposer.close([1])
    proposer.engine.executor.error = None
    fresh = sequence(2)
    proposer.open([fresh])
    tell(proposer, fresh, future(fresh, 1))
    assert proposer.propose({2: 4}, WAIT_S)[2].token_ids == future(fresh, 4)
    proposer.shutdown()
    assert proposer.engine.executor.is_shut_down


def test_a_text_beyond_the_drafts_context_says_so():
    proposer = local(executor=PoolExecutor(model_max_len=10))
    seq = sequence()
    proposer.open([seq, sequence(2, range(1, 12))])
    assert (proposer.available(2), proposer.disabled_reason(2)) == (False, "draft_context_full")
    tell(proposer, seq, future(seq, 1))
    assert proposer.propose({1: 8}, WAIT_S)[1].token_ids == future(seq, 3)
    tell(proposer, seq, future(seq, 4), 3, 3)
    assert proposer.propose({1: 8}, WAIT_S) == {}
    assert proposer.disabled_reason(1) == "draft_context_full"


def test_warm_up_leaves_no_trace():
    proposer = local(executor=PoolExecutor(num_blocks=16), max_num_batched_tokens=32)
    proposer.warm_up()
    assert proposer.engine.sessions.all() == []
    assert proposer.engine.memory.blocks.num_used_blocks == 0
    assert {plan.num_tokens for plan in proposer.engine.executor.plans} >= {1, 2, 16, 32}


# -- over a real model -----------------------------------------------------------------------------


def draft_config(folder) -> DraftConfig:
    return DraftConfig(
        draft=ModelConfig(model=str(folder), dtype="float64", device="cpu"),
        cache=CacheConfig(block_size=4, num_blocks=64),
        scheduler=SchedulerConfig(max_num_batched_tokens=16),
    )


@pytest.fixture(scope="module")
def real(tiny_llama):
    """The proposer, and the same model as transformers runs it."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    proposer = build_local_draft(draft_config(tiny_llama), tokenizer, len(tokenizer))
    yield proposer, AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float64)
    proposer.shutdown()


def model_future(model, seq, num_tokens):
    """The target's next tokens by whole forward passes, without a cache."""
    text = list(seq.token_ids)
    for _ in range(num_tokens):
        with torch.no_grad():
            logits = model(torch.tensor([text])).logits[0, -1:]
        rows = logit_rows(seq.params, seq.prompt_token_ids, text[seq.num_prompt_tokens :])
        item = VerifyItem(rows, seq.verification, seq.seed, len(text), round=0)
        text.append(verify_step(logits, [item])[0].next_token_id)
    return text[seq.num_tokens :]


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(GREEDY, id="greedy"),
        pytest.param(COUPLED, id="coupled"),
        pytest.param(
            SamplingParams(temperature=0.7, seed=4, top_p=0.9, frequency_penalty=1.0), id="filtered"
        ),
    ],
)
def test_a_real_draft_proposes_the_text_of_transformers(real, params):
    proposer, model = real
    seq = sequence(hash(params.temperature) % 1000, range(3, 25), params)
    proposer.open([seq])
    truth = model_future(model, seq, 40)
    tell(proposer, seq, truth[:1])
    for k, num_accepted in ((3, 3), (8, 2), (1, 0), (5, 5), (4, 1)):
        drafts = proposer.propose({seq.seq_id: k}, WAIT_S)[seq.seq_id].token_ids
        start = seq.num_output_tokens
        assert drafts == truth[start : start + k]
        tell(proposer, seq, truth[start : start + num_accepted + 1], k, num_accepted)
        check(proposer.engine)
    tell(proposer, seq, [(truth[seq.num_output_tokens] + 1) % 288], 1, 0)
    drafts = proposer.propose({seq.seq_id: 4}, WAIT_S)[seq.seq_id].token_ids
    assert drafts == model_future(model, seq, 4)
    proposer.close([seq.seq_id])
    assert proposer.engine.memory.blocks.num_used_blocks == 0


def test_another_tokenizer_is_refused_by_name(tiny_llama):
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    tokenizer.add_tokens(["<extra>"])
    with pytest.raises(ConfigError, match=r"token 288 .*'<extra>'"):
        build_local_draft(draft_config(tiny_llama), tokenizer, 289)


def test_a_longer_context_than_the_models_is_refused(tiny_llama):
    config = draft_config(tiny_llama)
    config = config.model_copy(update={"scheduler": SchedulerConfig(max_model_len=100_000)})
    with pytest.raises(ConfigError, match="exceeds the draft's 512"):
        build_draft_engine(config)


def test_what_the_draft_says_of_itself(tiny_llama, tiny_tokenizer):
    engine, tokenizer = build_draft_engine(draft_config(tiny_llama))
    info = engine.info
    assert (info.vocab_size, info.max_model_len, info.drafter_kind) == (288, 512, "draft_model")
    assert info.max_num_speculative_tokens == 8
    strings = token_strings(tokenizer)
    assert strings == tiny_tokenizer.convert_ids_to_tokens(range(288))
    engine.executor.shutdown()
