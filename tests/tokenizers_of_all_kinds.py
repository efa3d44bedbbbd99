"""One small tokenizer of each kind: how pieces become text differs, and so does the first one."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPACE = "\u2581"


def byte_level() -> Tokenizer:
    """Byte-level BPE without merges: id of a byte = its rank in the sorted alphabet; 256 is special
    and 257 and 258 are added words, one of them with characters that also stand for bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens(["G\u00e9", "\uff5cadded word\uff5c"])
    return tokenizer


def sentencepiece(strips: bool = True) -> Tokenizer:
    """Llama-2 style (Gemma's without `strips`): word pieces with a space mark, and single bytes;
    the id of byte b is b + 1."""
    vocab = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    vocab += [SPACE, f"{SPACE}the", f"{SPACE}cat", "s", ".", SPACE * 2]
    tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(vocab)}, merges=[]))
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def _words(vocab: list[str], decoder: decoders.Decoder | None) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocab)}, unk_token="[UNK]"))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("[SEP]", special=True)])
    return tokenizer


def metaspace(prepend_scheme: str) -> Tokenizer:
    vocab = ["[UNK]", SPACE, f"{SPACE}the", f"{SPACE}\u00fcber", f"{SPACE}a{SPACE}b", "s", "\u732b"]
    return _words(vocab, decoders.Metaspace(prepend_scheme=prepend_scheme))


def word_piece(cleanup: bool) -> Tokenizer:
    vocab = [
        "[UNK]",
        "the",
        "cat",
        "##s",
        "##\u732b",
        ".",
        "?",
        "'",
        "'s",
        "n't",
        "##n't",
        "do not",
    ]
    return _words(vocab, decoders.WordPiece(cleanup=cleanup))


def suffixed() -> Tokenizer:
    vocab = ["[UNK]", "the</w>", "ca", "ts</w>", "\u732b</w>", ".</w>", "s"]
    return _words(vocab, decoders.BPEDecoder())


def bare_words() -> Tokenizer:
    return _words(["[UNK]", "the", "cat", "\u732b"], None)


def unknown_rules() -> Tokenizer:
    """CTC drops pieces by their neighbours: bytes are found by decoding in context."""
    return _words(["[UNK]", "a", "b", "|", "\u732b"], decoders.CTC())


KINDS = {
    "byte-level": byte_level(),
    "sentencepiece": sentencepiece(),
    "sentencepiece without strip": sentencepiece(strips=False),
    "metaspace always": metaspace("always"),
    "metaspace first": metaspace("first"),
    "metaspace never": metaspace("never"),
    "word-piece": word_piece(cleanup=False),
    "word-piece with clean-up": word_piece(cleanup=True),
    "suffixed": suffixed(),
    "bare words": bare_words(),
}
