"""A real target and a real draft, joined by gRPC: the text is that of the target alone.

Tiny float64 models. The draft runs behind its server on threads of this process; it is stopped,
restarted and shared while requests run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from specdec.config import CacheConfig, DraftConfig, ModelConfig
from specdec.engine.draft_builder import token_strings
from specdec.engine.draft_thread import DraftThread, build_draft_thread
from specdec.model.tokenizer import load_tokenizer, tokenizer_hash
from specdec.rpc.draft_server import DraftServer
from specdec.rpc.remote_proposer import DraftMember, RemoteProposer
from specdec.rpc.transport import LoopThread
from specdec.sequence import SequenceOutput
from specdec.speculation.handshake import TargetIdentity
from tests.integration.rpc.servers import PATIENT, TOKENS
from tests.unit.engine.engine_harness import (
    BLOCK_SIZE,
    OFF,
    fixed,
    generate,
    make_engine,
    random_prompt,
    request,
    token_ids,
)
from tests.unit.rpc.scripted_draft import WAIT_S, wait_until

GREEDY = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
COUPLED = {"temperature": 0.9, "seed": 7, "max_tokens": 40, "ignore_eos": True}
BLOCK = {"temperature": 0.9, "max_tokens": 40, "ignore_eos": True}


class DraftReplica:
    """A draft engine behind its server."""

    def __init__(self, folder, port: int = 0, **scheduler) -> None:
        config = DraftConfig(
            draft=ModelConfig(model=str(folder), dtype="float64"),
            cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=256),
            scheduler=scheduler,
        )
        self.thread: DraftThread = build_draft_thread(config)
        self._loop = LoopThread("draft-server")
        self.port = port
        self._loop.run(self._start(), WAIT_S)

    async def _start(self) -> None:
        self.server = DraftServer(self.thread, tokens=TOKENS)
        self.port = await self.server.start(f"127.0.0.1:{self.port}")

    @property
    def member(self) -> DraftMember:
        return DraftMember(f"d{self.port}", f"127.0.0.1:{self.port}")

    def stop(self) -> None:
        self._loop.run(self.server.stop(0.1), WAIT_S)
        self._loop.stop()
        self.thread.stop()


@pytest.fixture
def draft(tiny_draft) -> Iterator[DraftReplica]:
    replica = DraftReplica(tiny_draft)
    yield replica
    replica.stop()


@pytest.fixture
def connect(tiny_llama) -> Iterator:
    """Engines that draft through gRPC."""
    engines = []
    tokenizer = load_tokenizer(ModelConfig(model=str(tiny_llama)))

    def start(*members: DraftMember, vocab_size: int = 288):
        identity = TargetIdentity(
            f"t{len(engines)}",
            1,
            "tiny",
            tokenizer_hash(tokenizer),
            vocab_size,
            token_strings(tokenizer),
        )
        proposer = RemoteProposer(identity, PATIENT)
        token = TOKENS.issue(identity.target_id)
        proposer.set_members([replace(member, token=token) for member in members])
        wait_until(lambda: all(m.info for m in list(proposer._pool.members.values())))
        engine = make_engine(tiny_llama, drafters=("draft",), draft_proposer=proposer)
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.shutdown()


@pytest.fixture(scope="module")
def plain(tiny_llama):
    return make_engine(tiny_llama)


def steps(engine, requests: list) -> Iterator[SequenceOutput]:
    """The engine's outputs; it pauses until the draft is ready for a request that has begun, so
    that a test on a busy machine does not end before its draft has read the prompt."""
    begun: set[int] = set()
    for output in engine.generate(requests):
        if output.seq_id not in begun:
            begun.add(output.seq_id)
            until_available(engine, output.seq_id)
        yield output


def until_available(engine, seq_id: int) -> None:
    wait_until(lambda: engine.drafters["draft"].available(seq_id))


def run(engine, requests: list) -> dict[str, list[SequenceOutput]]:
    outputs: dict[str, list[SequenceOutput]] = {r.request_id: [] for r in requests}
    for output in steps(engine, requests):
        outputs[output.request_id].append(output)
    return outputs


def num_accepted(outputs: list[SequenceOutput]) -> int:
    return sum(output.num_accepted_tokens for output in outputs)


@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_text_is_the_targets(plain, draft, connect, params, k) -> None:
    prompt = random_prompt(11, seed=5)
    expected = generate(plain, prompt, speculation=OFF, **params)
    outputs = run(connect(draft.member), [request(prompt, speculation=fixed(k), **params)])["r"]
    assert token_ids(outputs) == expected
    assert num_accepted(outputs) > 5


def test_block_mode_over_the_wire(draft, connect) -> None:
    """Laws travel and are believed: the draft is close to the target, so most tokens pass."""
    engine = connect(draft.member)
    outputs = run(engine, [request(random_prompt(9, 1), speculation=fixed(4), **BLOCK)])["r"]
    assert len(token_ids(outputs)) == 40
    assert num_accepted(outputs) > 10
    assert not engine.drafters["draft"].counters.faults


def test_the_controller_hears_what_draft_and_network_took(draft, connect) -> None:
    engine = connect(draft.member)
    run(engine, [request(random_prompt(9, 1), speculation=fixed(4), **GREEDY)])
    state = engine.controller.snapshot()
    assert 0 < state["network_p50_s_draft"] <= state["network_p95_s_draft"] < WAIT_S
    assert state["exposed_s_draft"] > 0
    assert state["capacity_price_draft"] == 0  # nobody else asks this draft


def test_two_targets_share_one_draft(plain, draft, connect) -> None:
    prompts = [random_prompt(7 + i, seed=i) for i in range(4)]
    expected = [generate(plain, p, speculation=OFF, **GREEDY) for p in prompts]
    engines = [connect(draft.member), connect(draft.member)]
    results: list[dict] = [{}, {}]

    def serve(index: int) -> None:
        requests = [
            request(p, name=str(i), speculation=fixed(3), **GREEDY) for i, p in enumerate(prompts)
        ]
        results[index] = run(engines[index], requests)

    threads = [threading.Thread(target=serve, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    for result in results:
        assert [token_ids(result[str(i)]) for i in range(4)] == expected
        assert sum(num_accepted(outputs) for outputs in result.values()) > 20


@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_a_draft_lost_on_the_way_and_back_again(plain, tiny_draft, connect, params) -> None:
    prompts = [random_prompt(11, seed=5), random_prompt(17, seed=6)]
    params = {**params, "max_tokens": 120}
    expected = [generate(plain, p, speculation=OFF, **params) for p in prompts]
    replica = DraftReplica(tiny_draft)
    engine = connect(replica.member)
    requests = [
        request(p, name=str(i), speculation=fixed(4), **params) for i, p in enumerate(prompts)
    ]
    outputs = steps(engine, requests)
    before, without = [], []
    while num_accepted(before) <= 5:
        before.append(next(outputs))
    replica.stop()
    while len(without) < 10:
        without.append(next(outputs))
    replica = DraftReplica(tiny_draft, port=replica.port)
    for seq_id in {output.seq_id for output in without}:
        until_available(engine, seq_id)
    after = list(outputs)
    replica.stop()
    texts: dict[str, list[int]] = {"0": [], "1": []}
    for output in before + without + after:
        texts[output.request_id] += output.token_ids
    assert [texts["0"], texts["1"]] == expected
    assert num_accepted(after) > 5


def test_a_draft_with_a_shorter_context(plain, tiny_draft, connect) -> None:
    prompt = random_prompt(20, seed=3)
    expected = generate(plain, prompt, speculation=OFF, **GREEDY)
    replica = DraftReplica(tiny_draft, max_model_len=40)
    engine = connect(replica.member)
    outputs = run(engine, [request(prompt, speculation=fixed(4), **GREEDY)])["r"]
    replica.stop()
    assert token_ids(outputs) == expected
    assert 0 < num_accepted(outputs) <= 20
    assert outputs[-1].metrics.disabled_reason == "draft_context_full"
