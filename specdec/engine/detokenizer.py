"""Token ids to text, one token at a time, never half a character.

Knows the bytes of each token and UTF-8. Stop strings and finish reasons are `engine/output.py`'s
business.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence as SequenceOf

from specdec.model.token_bytes import TokenBytes, TokenWalk

_Decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Decodes a growing output: the concatenation of what `push` and `flush` return is the text.

    prompt + output reads as one text, but for a character that the prompt ends within: its bytes
    are not the output's to complete. Text once returned is never taken back; at most the three
    bytes of an unfinished character are held, so that a token costs the same wherever it comes.

    The text is that of the tokenizer's own `decode` of the whole, with one exception. Bytes that
    are no UTF-8 become U+FFFD as soon as that is certain, one for each longest beginning of a
    character, while SentencePiece vocabularies (byte fallback) decode a run of byte tokens as a
    whole: there, one wrong byte makes each byte of the run a U+FFFD, also its whole characters.
    """

    def __init__(
        self,
        vocabulary: TokenBytes,
        prompt_token_ids: SequenceOf[int],
        skip_special_tokens: bool,
    ) -> None:
        self._walk = TokenWalk(vocabulary, prompt_token_ids, skip_special_tokens)
        self._decoder = _Decoder("replace")

    def push(self, token_id: int) -> str:
        """Add one token; the text that is certain now, often empty inside a character."""
        return self._decoder.decode(self._walk.step(token_id))

    def flush(self) -> str:
        """What was held back for want of the rest of a character, as U+FFFD. Call once, last."""
        return self._decoder.decode(b"", final=True)
