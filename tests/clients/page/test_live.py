"""The live view in Chromium, against a running service: what operators see is so.

Expected numbers come from the responses' own statistics. Screenshots are left in build/page.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
from playwright.sync_api import expect

from tests.clients.page.visit import PATIENCE_MS, PROMPTS, Visit, complete, statistics

CHARTS = ("throughput", "ttft", "k-by-class", "shadow-price")


def bars(opened: Visit, figure: str) -> dict[int, str]:
    """Label -> text of the bars that are shown."""
    rows = opened.page.locator(f"#{figure} .bars li:not(.empty)")
    pairs = rows.evaluate_all(
        "rows => rows.map(({ children }) => [children[0].innerText, children[2].innerText])"
    )
    return {int(label): text for label, text in pairs}


def steps_by_k(opened: Visit, num_steps: int) -> Counter[int]:
    """The bars, once they count so many steps."""
    deadline_s = time.monotonic() + PATIENCE_MS / 1000
    while True:
        shown = {k: int(text) for k, text in bars(opened, "steps-by-k").items()}
        if sum(shown.values()) >= num_steps or time.monotonic() > deadline_s:
            return +Counter(shown)
        opened.page.wait_for_timeout(200)


def percent(text: str) -> float:
    return float(text.removesuffix(" %"))


def has_line(opened: Visit, figure: str) -> bool:
    """Whether the canvas has pixels in the colour of its first line."""
    return opened.page.locator(f"#{figure} canvas").evaluate(
        """canvas => {
          const name = getComputedStyle(document.documentElement).getPropertyValue("--line-1");
          const [r, g, b] = name.trim().match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          for (let at = 0; at < data.length; at += 4) {
            const [x, y, z, alpha] = data.subarray(at, at + 4);
            const distance = Math.abs(x - r) + Math.abs(y - g) + Math.abs(z - b);
            if (alpha > 200 && distance < 30) return true;
          }
          return false;
        }"""
    )


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_the_live_view_shows_what_requests_did(visit, service, size):
    opened = visit(size)
    opened.wait_for_numbers()
    opened.page.get_by_label("15 min").check()
    # The controller's own choice, and one that drafts on however busy a machine.
    wishes = itertools.cycle([{}, {"speculation": {"mode": "fixed", "k": 3, "drafter": "ngram"}}])
    answers = [
        statistics(complete(service, prompt, **wish))
        for prompt, wish in zip(PROMPTS, wishes, strict=False)
    ]

    drafted = [k for each in answers for k in each["per_step_drafted"]]
    num_steps = sum(each["num_decode_steps"] for each in answers)
    by_k = Counter(drafted) + Counter({0: num_steps - len(drafted)})
    assert steps_by_k(opened, num_steps) == by_k

    accepted = [n for each in answers for n in each["per_step_accepted"]]
    acceptance = bars(opened, "acceptance")
    for position in range(max(accepted)):
        share = sum(n > position for n in accepted) / len(accepted)
        assert percent(acceptance[position + 1]) == pytest.approx(100 * share, abs=0.51)

    for figure in CHARTS:
        assert has_line(opened, figure), figure
    assert opened.page.locator("#targets tbody tr").count() == 1
    assert opened.page.locator("#drafts tbody tr").count() == 1
    opened.check_width()
    opened.screenshot(f"live-{size}")
    opened.check_quiet()


def test_numbers_change_without_moving_anything(visit, service):
    opened = visit()
    opened.wait_for_numbers()
    opened.page.wait_for_timeout(1500)
    opened.page.evaluate(
        """() => {
          globalThis.shifts = [];
          new PerformanceObserver((list) => shifts.push(...list.getEntries().map((e) => e.value)))
            .observe({ type: "layout-shift" });
        }"""
    )
    complete(service, PROMPTS[0])
    expect(opened.page.locator("#tiles")).not_to_contain_text("0.0")
    opened.page.wait_for_timeout(2500)
    assert sum(opened.page.evaluate("globalThis.shifts")) < 0.01


def test_dark_where_the_reader_wants_it_dark(visit):
    def brightness(scheme: str) -> float:
        colour = visit(scheme=scheme).page.evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))

    assert brightness("dark") < 200 < 600 < brightness("light")


def test_a_silent_gateway_is_told_and_asked_again(visit):
    opened = visit()
    opened.wait_for_numbers()
    head = opened.page.locator("#verdict-head")
    opened.page.route("**/live", lambda route: route.abort())
    expect(head).to_have_text("The gateway does not answer")
    opened.page.unroute("**/live")
    expect(head).not_to_have_text("The gateway does not answer")


def test_an_operators_key_is_asked_for_and_kept_for_the_tab(visit):
    opened = visit()
    opened.wait_for_numbers()

    def refuse(route):
        if route.request.headers.get("authorization") == "Bearer operators":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"message": "a key is required"}})

    opened.page.route("**/live", refuse)
    head = opened.page.locator("#verdict-head")
    expect(head).to_have_text("The live view needs the key of an operator")
    key = opened.page.get_by_label("Operator's key")
    key.fill("operators")
    key.press("Enter")
    expect(key).to_be_hidden()
    expect(head).not_to_have_text("The live view needs the key of an operator")
    opened.page.reload()
    opened.wait_for_numbers()
    expect(key).to_be_hidden()


def test_the_keyboard_reaches_everything(visit):
    opened = visit()
    opened.wait_for_numbers()
    names = []
    for _ in range(4):
        opened.page.keyboard.press("Tab")
        names.append(
            opened.page.evaluate("document.activeElement.innerText || document.activeElement.name")
        )
    assert names == ["Skip to content", "Live", "Playground", "window"]
