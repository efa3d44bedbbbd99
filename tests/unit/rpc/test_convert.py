"""Every message survives the wire, and bytes that make no sense survive the conversion."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.params import SamplingParams, SpeculationParams
from specdec.rpc import convert
from specdec.rpc.convert_params import (
    params_from_wire,
    params_to_wire,
    speculation_from_wire,
    speculation_to_wire,
)
from specdec.rpc.draft_connection import OpenAssembly
from specdec.sampling.law import SparseLaw
from specdec.sequence import Verification
from specdec.speculation.messages import (
    Close,
    Commit,
    DraftInfo,
    Heartbeat,
    Hello,
    Open,
    Proposal,
    Resync,
)
from specdec.v1 import draft_pb2, sampling_pb2

FULL = SamplingParams(
    max_tokens=7,
    temperature=0.5,
    top_k=-1,
    top_p=0.9,
    min_p=0.1,
    seed=-(2**63),
    logit_bias={0: -100.0, 5: 1.5},
    repetition_penalty=1.1,
    presence_penalty=-0.5,
    frequency_penalty=2.0,
    min_tokens=2,
    bad_words_token_ids=((1,), (2, 3)),
    allowed_token_ids=(1, 2, 3),
    stop=("a", "ü"),
    stop_token_ids=(9,),
    ignore_eos=True,
    include_stop_str_in_output=True,
    skip_special_tokens=False,
    logprobs=0,
    prompt_logprobs=3,
)


def over_the_wire(message, kind):
    return kind.FromString(message.SerializeToString())


@pytest.mark.parametrize(
    "params",
    [
        FULL,
        SamplingParams(),
        SamplingParams(temperature=0.0, top_k=0, seed=0),
        SamplingParams(max_tokens=1, seed=2**63 - 1),
        SamplingParams(allowed_token_ids=()),
    ],
)
def test_sampling_params(params) -> None:
    wire = over_the_wire(params_to_wire(params), sampling_pb2.SamplingParams)
    assert params_from_wire(wire) == params


def test_ids_that_are_given_twice_arrive_once() -> None:
    wire = sampling_pb2.SamplingParams(stop_token_ids=[5, 1, 5])
    wire.allowed_token_ids.token_ids.extend([3, 2, 3, 3])
    params = params_from_wire(wire)
    assert params.stop_token_ids == (1, 5)
    assert params.allowed_token_ids == (2, 3)


def test_absent_is_the_default_and_zero_is_zero() -> None:
    assert params_from_wire(sampling_pb2.SamplingParams()) == SamplingParams()
    zeros = sampling_pb2.SamplingParams(temperature=0, max_tokens=0, logprobs=0, seed=0)
    params = params_from_wire(zeros)
    assert (params.temperature, params.max_tokens, params.logprobs, params.seed) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "params",
    [
        SpeculationParams(),
        SpeculationParams(mode="off"),
        SpeculationParams(explain=True),
        SpeculationParams(mode="fixed", k=0, verification="block"),
        SpeculationParams(max_k=3, drafter="ngram", verification="typical", epsilon=0.1, delta=0.3),
    ],
)
def test_speculation_params(params) -> None:
    wire = over_the_wire(speculation_to_wire(params), sampling_pb2.SpeculationParams)
    assert speculation_from_wire(wire) == params


def test_an_unknown_enum_value_is_left_for_validation_to_refuse() -> None:
    params = speculation_from_wire(sampling_pb2.SpeculationParams(mode=99, verification=99))
    assert (params.mode, params.verification) == ("99", "99")


def test_identities() -> None:
    info = DraftInfo("m", "h", 128256, 8192, "model", 1, 2**64 - 1, 8)
    wire = over_the_wire(convert.info_to_wire(info), draft_pb2.InfoResponse)
    assert convert.info_from_wire(wire) == info
    hello = Hello("t", 2**64 - 1, 3, 1, "m", 49152)
    wire = over_the_wire(convert.hello_to_wire(hello), draft_pb2.Hello)
    assert convert.hello_from_wire(wire) == hello


def test_a_step() -> None:
    commits = [Commit(2**64 - 1, 3, 10, 4, [1, 2**32 - 1], 5, 2.5), Commit(2, 1, 0, 1, [], 0, 0.0)]
    close, beat = Close(3, 1), Heartbeat(5, 2**63)
    (wire,) = convert.steps_to_wire([commits[0], close, beat, commits[1]])
    wire = over_the_wire(wire, draft_pb2.SpeculateRequest)
    assert convert.step_from_wire(wire) == [*commits, close]
    assert convert.heartbeat_from_wire(wire.heartbeat) == beat


def test_what_is_ready() -> None:
    law = SparseLaw(np.array([3, 2**32 - 1], np.uint32), np.array([65534, 1], np.uint16))
    proposals = [
        Proposal(1, 2, 3, 4, [3, 70000], laws=[law, law], draft_ms=1.5),
        Proposal(2, 1, 0, 0, [], reason="prefilling"),
    ]
    resync, beat = Resync(9, 1, "gap"), Heartbeat(1, 2, 3, 0.5, 1.25, True, 4)
    wire = convert.ready_to_wire([*proposals, resync, beat])
    wire = over_the_wire(wire, draft_pb2.SpeculateResponse)
    first, second, third = convert.ready_from_wire(wire)
    assert (first.token_ids, first.draft_ms, second, third) == (
        [3, 70000],
        1.5,
        proposals[1],
        resync,
    )
    for got in first.laws:
        assert got.ids.tolist() == law.ids.tolist()
        assert got.weights.tolist() == law.weights.tolist()
        assert (got.ids.dtype, got.weights.dtype) == (np.uint32, np.uint16)
    assert convert.heartbeat_from_wire(wire.heartbeat) == beat


def test_laws_are_little_endian_and_packed() -> None:
    law = SparseLaw(np.array([1, 258], np.uint32), np.array([3, 65532], np.uint16))
    wire = convert.ready_to_wire([Proposal(1, 1, 0, 1, [1], laws=[law])]).proposals[0].laws[0]
    assert wire.token_ids == bytes([1, 0, 0, 0, 2, 1, 0, 0])
    assert wire.weights == bytes([3, 0, 252, 255])


@pytest.mark.parametrize("sizes", [(3, 2), (4, 1), (4, 4), (0, 2), (0, 0)])
def test_broken_law_bytes_become_a_law_that_no_check_passes(sizes) -> None:
    law = draft_pb2.SparseLaw(token_ids=b"\1" * sizes[0], weights=b"\1" * sizes[1])
    proposal = draft_pb2.Proposal(session_id=1, token_ids=[1], laws=[law])
    (got,) = convert.ready_from_wire(draft_pb2.SpeculateResponse(proposals=[proposal]))
    assert got.laws[0].validate(100) is not None


def opened(num_prompt: int, num_output: int) -> Open:
    return Open(
        session_id=5,
        epoch=2,
        prompt_token_ids=list(range(num_prompt)),
        output_token_ids=list(range(num_output)),
        params=FULL,
        seed=2**64 - 1,
        verification=Verification.BLOCK,
    )


@pytest.mark.parametrize("sizes", [(1, 0), (3, 2), (convert.TOKENS_PER_CHUNK, 0), (450_000, 7)])
def test_an_open_in_pieces_below_the_limit(sizes) -> None:
    message = opened(*sizes)
    pieces = [over_the_wire(p, draft_pb2.SyncRequest) for p in convert.open_to_wire(message)]
    assert len(pieces) == -(-sum(sizes) // convert.TOKENS_PER_CHUNK)
    assert all(piece.ByteSize() <= 2**20 for piece in pieces)
    got: list[Open] = []
    declined: list = []
    assembly = OpenAssembly(got.append, 2**31, declined.append)
    assembly.start(pieces[0].open)
    for piece in pieces[1:]:
        assert got == []
        assembly.more(piece.open_tokens)
    assert got == [message]


def test_the_largest_token_ids_stay_below_the_limit() -> None:
    message = opened(1, 0)
    message.prompt_token_ids = [2**32 - 1] * convert.TOKENS_PER_CHUNK
    assert all(piece.ByteSize() <= 2**20 for piece in convert.open_to_wire(message))


def test_an_interrupted_or_absurd_open_is_dropped() -> None:
    got: list[Open] = []
    declined: list = []
    assembly = OpenAssembly(got.append, 2**31, declined.append)
    first, second = convert.open_to_wire(opened(convert.TOKENS_PER_CHUNK + 5, 0))
    assembly.more(second.open_tokens)  # of nothing
    assembly.start(first.open)
    stranger = draft_pb2.OpenTokens(session_id=6, epoch=2, token_ids=[1] * 5)
    assembly.more(stranger)
    (whole,) = convert.open_to_wire(opened(3, 0))
    assembly.start(whole.open)
    assembly.more(second.open_tokens)  # of the one that was interrupted
    assert [m.prompt_token_ids for m in got] == [[0, 1, 2]]

    got.clear()
    too_many = draft_pb2.Open(num_prompt_tokens=1, token_ids=[1, 2], verification=1)
    assembly.start(too_many)
    empty = draft_pb2.Open(num_prompt_tokens=0, verification=1)
    assembly.start(empty)
    unknown_rule = draft_pb2.Open(num_prompt_tokens=1, token_ids=[1], verification=99)
    assembly.start(unknown_rule)
    huge = draft_pb2.Open(num_prompt_tokens=2**32 - 1, token_ids=[1], verification=1)
    assembly.start(huge)
    assembly.more(draft_pb2.OpenTokens(token_ids=[1]))
    assert got == []
    assert [message.reason for (message,) in declined] == ["context_full"]


def test_a_step_of_many_records_goes_in_several_messages_that_no_draft_refuses() -> None:
    closes = [Close(i, 1) for i in range(2 * convert.MAX_RECORDS + 3)]
    long = [Commit(1, 1, 0, i, [7] * (convert.MAX_TOKENS // 2), 0, 0.0) for i in range(3)]
    wires = list(convert.steps_to_wire([*long, *closes]))
    assert all(convert.step_fault(wire) is None for wire in wires)
    assert [m for wire in wires for m in convert.step_from_wire(wire)] == [*long, *closes]
    assert len(wires) == 4


def test_more_than_a_step_holds_is_a_fault_both_ways() -> None:
    many = draft_pb2.SpeculateRequest(commits=[draft_pb2.Commit()] * (convert.MAX_RECORDS + 1))
    assert convert.step_fault(many) is not None
    long = [0] * (convert.MAX_TOKENS // 2 + 1)
    assert convert.step_fault(
        draft_pb2.SpeculateRequest(commits=[draft_pb2.Commit(token_ids=long)] * 2)
    )
    proposals = [draft_pb2.Proposal()] * (convert.MAX_RECORDS + 1)
    assert convert.ready_fault(draft_pb2.SpeculateResponse(proposals=proposals)) is not None
    endless = draft_pb2.Proposal(token_ids=[1] * 1000, laws=[draft_pb2.SparseLaw()] * 1000)
    (read,) = convert.ready_from_wire(draft_pb2.SpeculateResponse(proposals=[endless]))
    assert len(read.token_ids) == len(read.laws) == convert.MAX_PROPOSAL_TOKENS


def test_an_open_does_not_travel_on_the_step_stream() -> None:
    with pytest.raises(AssertionError):
        list(convert.steps_to_wire([opened(1, 0)]))
