"""Where an output ends, and the text of it: cuts each accepted block at its first stop.

Knows one sequence's limits and stop conditions. It never changes the sequence: the engine appends
the token ids that `append` kept, and cuts log-probabilities to the same number.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from specdec.engine.detokenizer import IncrementalDetokenizer
from specdec.errors import InvalidRequestError
from specdec.model.token_bytes import TokenBytes
from specdec.sequence import Sequence


@dataclass(slots=True)
class Emitted:
    """What one block added to the output.

    token_ids: the tokens kept, a prefix of the block; the EOS or stop token, and the token that
        completed a stop string, are the last of them and count in usage.
    text: new text that no later token can change.
    token_texts: the same text, by the token that set it free: a character of several tokens comes
        with the last of them, and what may begin a stop string when it is known that it does not.
    finish_reason: None while the output goes on, else "stop" or "length".
    stop_reason: the stop string or the stop token's id; None for EOS and for "length".
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_texts: list[str] = field(default_factory=list, compare=False)


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string at text[start:end]."""

    start: int
    end: int
    stop: str


class _StopString:
    """Finds one stop string in a text that comes in pieces, reading each character once (Knuth,
    Morris and Pratt, 1977)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        # Entry i: the longest beginning of the stop string, shorter than i, that its first i
        # characters end with. Grown as far as the text has ever matched.
        self._fallbacks = [0, 0]

    def ends(self, delta: str) -> Iterator[int]:
        """Where in `delta` an occurrence ends; afterwards `num_matched` is the longest proper
        beginning of the stop string that the text ends with."""
        at = 0
        while at < len(delta):
            if self.num_matched == 0:
                at = delta.find(self.stop[0], at)
                if at < 0:
                    return
            self._take(delta[at])
            at += 1
            if self.num_matched == len(self.stop):
                self.num_matched = self._fallback(len(self.stop))
                yield at

    def _take(self, character: str) -> None:
        while self.stop[self.num_matched] != character:
            if self.num_matched == 0:
                return
            self.num_matched = self._fallback(self.num_matched)
        self.num_matched += 1

    def _fallback(self, length: int) -> int:
        while len(self._fallbacks) <= length:
            character, shorter = self.stop[len(self._fallbacks) - 1], self._fallbacks[-1]
            while shorter and self.stop[shorter] != character:
                shorter = self._fallbacks[shorter]
            self._fallbacks.append(shorter + (self.stop[shorter] == character))
        return self._fallbacks[length]


class StopStrings:
    """Holds text back while it may be the beginning of a stop string."""

    def __init__(self, stops: SequenceOf[str]) -> None:
        self._stops = [_StopString(stop) for stop in stops]
        self._held = ""

    def push(self, delta: str, honoured: bool) -> tuple[str, StopMatch | None]:
        """Add text; returns (text free to go, None), or (all text not yet gone, the match).

        The match is the stop string that is complete first, character by character, so that the
        result depends on the text alone and not on how it was split into tokens. A stop string
        completed while not `honoured` is ordinary text for good. Each character is read once.
        """
        if not self._stops:
            return delta, None
        text = self._held + delta
        matches = [match for stop in self._stops if (match := self._find(stop, delta, honoured))]
        if matches:
            self._held = ""
            return text, min(matches, key=lambda match: (match.end, match.start))
        free = len(text) - max(stop.num_matched for stop in self._stops)
        self._held = text[free:]
        return text[:free], None

    def _find(self, stop: _StopString, delta: str, honoured: bool) -> StopMatch | None:
        """The first end in `delta`, where it is honoured; in the text that is held back too."""
        for end in stop.ends(delta):
            if honoured:
                end += len(self._held)
                return StopMatch(end - len(stop.stop), end, stop.stop)
        return None

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class OutputState:
    """The output side of one sequence, from its first token to its finish.

    Without a vocabulary there are token ids only, and stop strings are refused.
    """

    def __init__(self, sequence: Sequence, vocabulary: TokenBytes | None) -> None:
        params = sequence.params
        if vocabulary is None and params.stop:
            raise InvalidRequestError("stop: strings need a tokenizer", field="stop")
        self._eos = frozenset() if params.ignore_eos else sequence.eos_token_ids
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._min_tokens = params.min_tokens
        room = sequence.max_model_len - sequence.num_prompt_tokens
        self._budget = min(params.max_tokens, room)
        self._include_stop = params.include_stop_str_in_output
        self._detokenizer = vocabulary and IncrementalDetokenizer(
            vocabulary, sequence.prompt_token_ids, params.skip_special_tokens
        )
        self._stop_strings = StopStrings(params.stop)
        self.num_tokens = 0
        self.finished = False

    def append(self, token_ids: SequenceOf[int]) -> Emitted:
        """Take the tokens of one step, in order, up to the first stop or the budget's end.

        A stop at the last token that the budget allows is a "stop"; one beyond it is never seen.
        Without a budget nothing is taken: the prompt was computed, and that was all.
        """
        assert not self.finished, "the output has already ended"
        emitted = Emitted()
        if self._budget == 0:
            self._finish(emitted, "length", None)
            return emitted
        for token_id in token_ids:
            emitted.token_ids.append(token_id)
            self.num_tokens += 1
            num_characters = len(emitted.text)
            self._take(token_id, emitted)
            emitted.token_texts.append(emitted.text[num_characters:])
            if self.finished:
                break
        return emitted

    def flush(self) -> str:
        """The text still held back, for an output that ends from outside (an abort)."""
        self.finished = True
        rest = self._detokenizer.flush() if self._detokenizer else ""
        return self._stop_strings.flush() + rest

    @property
    def _stops_honoured(self) -> bool:
        return self.num_tokens > self._min_tokens

    def _take(self, token_id: int, emitted: Emitted) -> None:
        if self._is_stop_token(token_id):
            if self._include_stop:
                self._push_text(token_id, emitted)
            stop_reason = None if token_id in self._eos else token_id
            self._finish(emitted, "stop", stop_reason)
            return
        self._push_text(token_id, emitted)
        if not self.finished and self.num_tokens >= self._budget:
            self._finish(emitted, "length", None)

    def _is_stop_token(self, token_id: int) -> bool:
        is_stop = token_id in self._eos or token_id in self._stop_token_ids
        return is_stop and self._stops_honoured

    def _push_text(self, token_id: int, emitted: Emitted) -> None:
        if self._detokenizer:
            self._match(self._detokenizer.push(token_id), emitted)

    def _match(self, delta: str, emitted: Emitted) -> None:
        """Append `delta` to the emitted text, and finish if it completes a stop string."""
        text, match = self._stop_strings.push(delta, self._stops_honoured)
        if match:
            text = text[: match.end if self._include_stop else match.start]
            self.finished = True
            emitted.finish_reason, emitted.stop_reason = "stop", match.stop
        emitted.text += text

    def _finish(self, emitted: Emitted, reason: str, stop_reason: int | None) -> None:
        """End the output here, unless its last characters complete a stop string after all."""
        if self._detokenizer and not self.finished:
            self._match(self._detokenizer.flush(), emitted)
        if self.finished:
            return
        self.finished = True
        emitted.text += self._stop_strings.flush()
        emitted.finish_reason, emitted.stop_reason = reason, stop_reason
