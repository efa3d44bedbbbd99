"""Sampling and speculation parameters to and from protobuf, for both services.

Absent fields have the defaults of `specdec.params`; nothing is validated here.
"""

from __future__ import annotations

from collections.abc import Iterable

from specdec.params import SamplingParams, SpeculationParams
from specdec.sequence import Verification
from specdec.v1 import sampling_pb2

_VERIFICATION_TO_WIRE = {
    "auto": sampling_pb2.VERIFICATION_UNSPECIFIED,
    "greedy": sampling_pb2.VERIFICATION_GREEDY,
    "coupled": sampling_pb2.VERIFICATION_COUPLED,
    "rejection": sampling_pb2.VERIFICATION_REJECTION,
    "block": sampling_pb2.VERIFICATION_BLOCK,
    "typical": sampling_pb2.VERIFICATION_TYPICAL,
}
_VERIFICATION_FROM_WIRE = {wire: name for name, wire in _VERIFICATION_TO_WIRE.items()}
_MODE_TO_WIRE = {
    "auto": sampling_pb2.SPECULATION_MODE_AUTO,
    "off": sampling_pb2.SPECULATION_MODE_OFF,
    "fixed": sampling_pb2.SPECULATION_MODE_FIXED,
}
_MODE_FROM_WIRE = {wire: name for name, wire in _MODE_TO_WIRE.items()}

# Fields that have the same name, type and presence on both sides.
_PLAIN_FIELDS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "logprobs",
    "prompt_logprobs",
)
_PLAIN_SPECULATION_FIELDS = ("k", "max_k", "drafter", "epsilon", "delta")
_DEFAULTS = SamplingParams()


def params_to_wire(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """Everything but `speculation`; fields at their default stay absent."""
    wire = sampling_pb2.SamplingParams(
        logit_bias=params.logit_bias, stop=params.stop, stop_token_ids=params.stop_token_ids
    )
    for name in _PLAIN_FIELDS:
        value = getattr(params, name)
        if value != getattr(_DEFAULTS, name):
            setattr(wire, name, value)
    for word in params.bad_words_token_ids:
        wire.bad_words_token_ids.add(token_ids=word)
    if params.allowed_token_ids is not None:
        wire.allowed_token_ids.SetInParent()
        wire.allowed_token_ids.token_ids.extend(params.allowed_token_ids)
    return wire


def params_from_wire(
    wire: sampling_pb2.SamplingParams, speculation: SpeculationParams | None = None
) -> SamplingParams:
    """Not validated: the caller knows the vocabulary and who is to be told of a fault."""
    present = {name: getattr(wire, name) for name in _PLAIN_FIELDS if wire.HasField(name)}
    has_allowed = wire.HasField("allowed_token_ids")
    return SamplingParams(
        **present,
        logit_bias=dict(wire.logit_bias),
        bad_words_token_ids=tuple(tuple(word.token_ids) for word in wire.bad_words_token_ids),
        allowed_token_ids=_distinct(wire.allowed_token_ids.token_ids) if has_allowed else None,
        stop=tuple(wire.stop),
        stop_token_ids=_distinct(wire.stop_token_ids),
        speculation=speculation if speculation is not None else SpeculationParams(),
    )


def _distinct(token_ids: Iterable[int]) -> tuple[int, ...]:
    """A set of ids, however often the caller wrote one."""
    return tuple(sorted(set(token_ids)))


def speculation_to_wire(params: SpeculationParams) -> sampling_pb2.SpeculationParams:
    wire = sampling_pb2.SpeculationParams(
        mode=_MODE_TO_WIRE[params.mode],
        verification=_VERIFICATION_TO_WIRE[params.verification],
        explain=params.explain,
    )
    for name in _PLAIN_SPECULATION_FIELDS:
        if getattr(params, name) is not None:
            setattr(wire, name, getattr(params, name))
    return wire


def speculation_from_wire(wire: sampling_pb2.SpeculationParams) -> SpeculationParams:
    """An enum value from a newer client becomes a word that validation refuses by name."""
    present = {
        name: getattr(wire, name) for name in _PLAIN_SPECULATION_FIELDS if wire.HasField(name)
    }
    unspecified = sampling_pb2.SPECULATION_MODE_UNSPECIFIED
    mode = "auto" if wire.mode == unspecified else _MODE_FROM_WIRE.get(wire.mode, str(wire.mode))
    verification = _VERIFICATION_FROM_WIRE.get(wire.verification, str(wire.verification))
    return SpeculationParams(mode=mode, verification=verification, explain=wire.explain, **present)


def verification_to_wire(verification: Verification) -> sampling_pb2.Verification:
    return _VERIFICATION_TO_WIRE[verification.value]


def verification_from_wire(wire: sampling_pb2.Verification) -> Verification | None:
    """None for what is no rule of the protocol between target and draft."""
    name = _VERIFICATION_FROM_WIRE.get(wire)
    return Verification(name) if name is not None and name in set(Verification) else None
