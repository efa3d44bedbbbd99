"""The playground in Chromium, against a running service: the text is the API's, and every token's
mark agrees with the response's statistics."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from playwright.sync_api import Response, expect

from tests.clients.page.visit import MAX_TOKENS, PROMPTS, Visit, complete, statistics


def open_playground(opened: Visit, **fields: str) -> None:
    opened.wait_for_numbers()
    opened.page.get_by_role("link", name="Playground").click()
    for label, value in {"Max tokens": str(MAX_TOKENS), **fields}.items():
        control = opened.page.get_by_label(label, exact=True)
        if control.evaluate("control => control.tagName") == "SELECT":
            control.select_option(label=value)
        else:
            control.fill(value)


def generate(opened: Visit, path: str = "v1/completions") -> list[dict[str, Any]]:
    """Click, wait for the end, and return the chunks that the page was sent."""
    with opened.page.expect_response(lambda r: r.url.endswith(path)) as caught:
        opened.page.get_by_role("button", name="Generate").click()
    expect(opened.page.locator("#outcome")).to_contain_text("Done")
    return chunks(caught.value)


def chunks(response: Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text().split("\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def shown_text(opened: Visit) -> str:
    tokens = opened.page.locator("#answer .token:not(.rejected)")
    return "".join(tokens.all_text_contents())


def shown_counts(opened: Visit) -> Counter[str]:
    tokens = opened.page.locator("#answer .token")
    return Counter(tokens.evaluate_all("tokens => tokens.map((t) => t.dataset.kind)"))


@pytest.mark.parametrize(
    ("size", "prompt", "fields"),
    [
        ("desktop", PROMPTS[0], {"Speculation": "Fixed K", "K": "4"}),
        ("phone", PROMPTS[1], {}),
        ("desktop", "Où est-ce ? 日本語 é", {"Speculation": "Fixed K", "K": "2"}),
    ],
)
def test_the_playground_shows_the_answer_and_where_each_token_came_from(
    visit, service, size, prompt, fields
):
    opened = visit(size)
    open_playground(opened, Prompt=prompt, **fields)
    sent = generate(opened)
    assert shown_text(opened) == complete(service, prompt)["choices"][0]["text"]

    counts, told = shown_counts(opened), statistics(sent[-1])
    num_tokens = sent[-1]["usage"]["completion_tokens"]
    assert counts.total() - counts["rejected"] == num_tokens
    assert counts["accepted"] == told["num_emitted_accepted_draft_tokens"]
    assert counts["rejected"] == told["num_draft_tokens"] - told["num_accepted_draft_tokens"]
    assert counts["recovered"] + counts["bonus"] == told["num_spec_steps"]
    pairs = list(zip(told["per_step_accepted"], told["per_step_drafted"], strict=True))
    assert counts["bonus"] == sum(accepted == drafted for accepted, drafted in pairs)

    legend = opened.text("#legend").split()
    assert {kind: int(n) for kind, n in zip(legend[::2], legend[1::2], strict=True)} == {
        kind: counts[kind] for kind in ("accepted", "recovered", "bonus", "rejected", "plain")
    }
    assert opened.page.locator("#steps .step").count() == told["num_decode_steps"] + 1
    opened.check_width()
    opened.screenshot(f"playground-{size}")
    opened.check_quiet()


def test_rejected_tokens_can_be_left_out(visit):
    opened = visit()
    open_playground(opened, Speculation="Fixed K", K="6", Drafter="ngram")
    generate(opened)
    rejected = opened.page.locator("#answer .rejected")
    if rejected.count() > 0:
        expect(rejected.first).to_be_visible()
        opened.page.get_by_label("rejected tokens").uncheck()
        expect(rejected.first).to_be_hidden()


def test_a_chat_answers(visit):
    opened = visit()
    open_playground(opened, Endpoint="Chat", Prompt="Name three colours.")
    sent = generate(opened, "v1/chat/completions")
    answer = "".join(
        chunk["choices"][0]["delta"].get("content", "") for chunk in sent if chunk["choices"]
    )
    assert shown_text(opened) == answer != ""


def test_the_text_is_compared_with_plain_decoding(visit):
    opened = visit()
    open_playground(opened, Temperature="0.8", Seed="7", Speculation="Fixed K", K="3")
    opened.page.get_by_role("button", name="Compare with off").click()
    outcome = opened.page.locator("#outcome")
    expect(outcome).to_contain_text("identical with speculation off")
    expect(outcome).to_contain_text("that of plain decoding")
    opened.check_quiet()


@pytest.mark.parametrize(
    ("label", "value", "field"),
    [("Max tokens", "0", "max_tokens"), ("Temperature", "9", "temperature"), ("Seed", "x", "seed")],
)
def test_a_refusal_names_its_field_and_leads_to_it(visit, label, value, field):
    opened = visit()
    open_playground(opened, **{label: value})
    opened.page.get_by_role("button", name="Generate").click()
    error = opened.page.get_by_role("alert")
    expect(error).to_be_visible()
    expect(error).to_contain_text(field)
    control = opened.page.get_by_label(label, exact=True)
    expect(control).to_be_focused()
    expect(control).to_have_attribute("aria-invalid", "true")


def test_a_key_is_asked_for_where_the_service_wants_one(visit):
    opened = visit()
    refusal = {"message": "an API key is required", "type": "AuthenticationError", "param": None}
    keys = []

    def refuse(route):
        keys.append(route.request.headers.get("authorization"))
        route.fulfill(status=401, json={"error": {**refusal, "code": 401}})

    opened.page.route("**/v1/completions", refuse)
    open_playground(opened)
    key = opened.page.get_by_label("API key")
    expect(key).to_be_hidden()
    opened.page.get_by_role("button", name="Generate").click()
    expect(key).to_be_focused()
    key.fill("secret")
    key.press("Enter")
    expect(opened.page.get_by_role("alert")).to_contain_text("an API key is required")
    assert keys == [None, "Bearer secret"]


def test_a_run_can_be_stopped(visit):
    opened = visit()
    open_playground(opened, **{"Max tokens": "2000"})
    opened.page.get_by_role("button", name="Generate").click()
    expect(opened.page.locator("#answer .token").first).to_be_visible()
    opened.page.get_by_role("button", name="Stop").click()
    expect(opened.page.locator("#outcome")).to_have_text("Stopped.")
    expect(opened.page.get_by_role("button", name="Generate")).to_be_enabled()


def test_every_control_has_a_name(visit):
    opened = visit()
    open_playground(opened)
    nameless = opened.page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea, button, [role=img], a")]
          .filter((e) => !(e.labels?.length || e.ariaLabel || e.innerText.trim()))
          .map((e) => e.outerHTML)"""
    )
    assert nameless == []
