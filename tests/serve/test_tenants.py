"""Nothing of one tenant's text reaches another: no cached prefix, no draft token.

The prompts are such that sharing would show. Greedy text after a prompt is the same for
everybody, so what is compared is what was cached and what was proposed, never the answer.
"""

from __future__ import annotations

import pytest

# Random-looking, and long enough for several blocks; its tail is its own first words.
SECRET = "zq7 vxk 93w jjd 5fp 88m tty 2hc qqa 1lo zq7 vxk"


@pytest.fixture
def tenants(service):
    with service.openai("key-a") as first, service.openai("key-b") as second:
        yield first, second


def ask(client, prompt, salt=None, **given):
    extra = {"return_token_ids": True, **given.pop("extra", {})}
    if salt is not None:
        extra["cache_salt"] = salt
    asked = {"max_tokens": 8, "temperature": 0, **given}
    return client.completions.create(model="tiny", prompt=prompt, extra_body=extra, **asked)


def cached_tokens(answer):
    return answer.usage.prompt_tokens_details.cached_tokens


def test_a_cached_prefix_is_its_tenants_own(tenants):
    first, second = tenants
    prompt = f"first {SECRET}"
    assert cached_tokens(ask(first, prompt)) == 0
    assert cached_tokens(ask(first, prompt)) > 0, "the cache works at all"
    assert cached_tokens(ask(second, prompt)) == 0
    assert cached_tokens(ask(second, prompt)) > 0, "and is the second tenant's own from then on"


def test_a_cache_salt_parts_one_tenants_texts(tenants):
    first, _ = tenants
    prompt = f"second {SECRET}"
    assert cached_tokens(ask(first, prompt)) == 0
    assert cached_tokens(ask(first, prompt, salt="s1")) == 0
    assert cached_tokens(ask(first, prompt, salt="s2")) == 0
    assert cached_tokens(ask(first, prompt, salt="s1")) > 0


def test_keys_and_salts_cannot_be_confused(tenants):
    """A salt that spells another tenant's name does not open its partition."""
    first, second = tenants
    prompt = f"third {SECRET}"
    ask(first, prompt)
    for salt in ("tenant-a", '["tenant-a", ""]', 'tenant-a", "', "key-a"):
        assert cached_tokens(ask(second, prompt, salt=salt)) == 0


@pytest.mark.parametrize("salt", ["", "shared-salt"])
def test_no_draft_token_comes_from_another_tenants_text(service, tiny_tokenizer, salt):
    """Every proposal to tenant b is the one that b's own text alone gives, found here by another
    road, while tenant a's text, which continues the same words otherwise, runs beside it."""
    wish = {"mode": "fixed", "k": 6, "drafter": "ngram"}
    asked = {
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": salt,
        "speculation": wish,
        # Of so few tokens every pair comes back soon.
        "allowed_token_ids": tiny_tokenizer.encode("wjd"),
    }
    theirs = "93w jjd 93w jjd"
    with service.client("key-a") as client_a, service.client("key-b") as client_b:
        stream_a = client_a.generate(SECRET, **asked)
        chunks_a = [next(stream_a)]
        chunks_b = list(client_b.generate(theirs, **asked))
        chunks_a += stream_a
    for text, chunks in ((SECRET, chunks_a), (theirs, chunks_b)):
        known = tiny_tokenizer.encode(text)
        drafted = 0
        for chunk in chunks:
            draft = list(chunk.draft_token_ids)
            assert draft == prompt_lookup(known, 6)[: len(draft)]
            drafted += len(draft)
            known += chunk.token_ids
        assert drafted > 0


def prompt_lookup(text, k):
    """What followed the latest earlier occurrence of the longest known end of `text`."""
    for n in (4, 3, 2):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[-n:]:
                copied = list(text)
                for position in range(start + n, start + n + k):
                    copied.append(copied[position])
                return copied[len(text) :]
    return []


def test_the_draft_model_sees_one_session_only(service, engine, tiny_tokenizer):
    """Proposals of the draft deployment do not depend on who else is being drafted for."""
    asked = {
        "max_tokens": 200,
        "temperature": 0,
        "ignore_eos": True,
        "speculation": {"mode": "fixed", "k": 4, "drafter": "draft"},
    }
    with service.client("key-a") as client_a, service.client("key-b") as client_b:
        alone = drafts_by_position(client_b.generate("93w jjd", **asked))
        stream_a = client_a.generate(SECRET, **asked)
        next(stream_a)
        beside = drafts_by_position(client_b.generate("93w jjd", **asked))
        list(stream_a)
    shared = alone.keys() & beside.keys()
    assert shared
    for key in shared:
        assert alone[key] == beside[key]


def drafts_by_position(stream):
    """{(position, index in its draft): token id}, so that two runs of other timing compare."""
    drafts, position = {}, 0
    for chunk in stream:
        for index, token_id in enumerate(chunk.draft_token_ids):
            drafts[position, index] = token_id
        position += len(chunk.token_ids)
    return drafts
