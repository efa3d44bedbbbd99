"""Log-probabilities as messages of inference.proto, with the bytes that each token adds."""

from __future__ import annotations

from collections.abc import Iterable

from specdec.engine.request import GenerateRequest
from specdec.model.token_bytes import TokenBytes, TokenWalk
from specdec.sequence import TokenLogprobs
from specdec.v1 import inference_pb2 as pb


class PositionMessages:
    """Those of one request: its prompt once, and its output as it comes."""

    def __init__(self, vocabulary: TokenBytes, request: GenerateRequest) -> None:
        skip = request.params.skip_special_tokens
        self._prompt_token_ids = request.prompt_token_ids
        self._in_prompt = TokenWalk(vocabulary, (), skip)
        self._in_output = TokenWalk(vocabulary, request.prompt_token_ids, skip)

    def prompt(self, positions: Iterable[TokenLogprobs | None]) -> list[pb.PositionLogprobs]:
        """The first position has none: nothing predicts it."""
        messages = []
        for token_id, position in zip(self._prompt_token_ids, positions, strict=False):
            known = position is not None
            messages.append(_message(position, self._in_prompt) if known else pb.PositionLogprobs())
            self._in_prompt.step(token_id)
        return messages

    def output(self, positions: Iterable[TokenLogprobs]) -> list[pb.PositionLogprobs]:
        messages = []
        for position in positions:
            messages.append(_message(position, self._in_output))
            self._in_output.step(position.token_id)
        return messages


def _message(position: TokenLogprobs, walk: TokenWalk) -> pb.PositionLogprobs:
    def token(token_id: int, logprob: float) -> pb.TokenLogprob:
        added = walk.added_here(token_id)
        return pb.TokenLogprob(token_id=token_id, logprob=logprob, token_bytes=added)

    return pb.PositionLogprobs(
        token=token(position.token_id, position.logprob),
        rank=position.rank,
        top=[token(token_id, logprob) for token_id, logprob in position.top],
    )
