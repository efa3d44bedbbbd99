"""A page that is open in a browser, and requests beside it whose answers tell what it must show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Page, expect

SCREENSHOTS = Path(__file__).resolve().parents[3] / "build" / "page"
# The machine may be busy with other work.
PATIENCE_MS = 120_000
PROMPTS = ("The capital of France is", "Once upon a time", "One, two, three, four,")
MAX_TOKENS = 24


@dataclass
class Visit:
    """A page that is open, and everything that it asked for and complained of."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self) -> None:
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"{self.url}/")

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def check_quiet(self) -> None:
        """No complaint, and no request to anybody else."""
        assert self.complaints == []
        ours = urlsplit(self.url).netloc
        assert {urlsplit(url).netloc for url in self.requests} == {ours}

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def check_width(self) -> None:
        """Nothing reaches over the right edge."""
        width = self.page.viewport_size["width"]
        assert self.page.evaluate("document.documentElement.scrollWidth") <= width

    def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.evaluate("scrollTo(0, 0)")
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def wait_for_numbers(self) -> None:
        """Until the first reading of the service is drawn."""
        expect(self.page.locator("#version")).to_contain_text("specdec")


def complete(service, prompt: str, **more: Any) -> dict[str, Any]:
    """The whole answer to a greedy request."""
    body = {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, **more}
    answer = httpx.post(f"{service.http_url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def statistics(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["metrics"]["speculative_decoding"]
