"""The engine in the command's own process: opened with a spinner, closed whatever happens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec.cli.console import status
from specdec.cli.generation import Decode
from specdec.errors import InvalidRequestError
from specdec.model import catalog

if TYPE_CHECKING:
    from specdec.config import DraftConfig, EngineConfig
    from specdec.engine import Engine


@contextmanager
def open_engine(config: EngineConfig, draft: DraftConfig | None) -> Iterator[Engine]:
    """A loaded engine. Raises ConfigError where the models do not fit together."""
    models = [config.target.model] if draft is None else [config.target.model, draft.draft.model]
    with loading(models):
        from specdec.engine import build_engine

        engine = build_engine(config, draft)
    try:
        yield engine
    finally:
        engine.shutdown()


def loading(models: list[str]) -> AbstractContextManager[None]:
    """A spinner, and no bars beside it, unless something is to be downloaded: a download shows
    its own bars. Raises ConfigError for a catalog model that was not fetched."""
    if not all(Path(catalog.resolve(model)).is_dir() for model in models):
        return nullcontext()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return status(f"loading {', '.join(models)}")


def encode(tokenizer: Any, text: str, chat: bool = False) -> list[int]:
    """Token ids of a text, or of a user's message under the model's chat template.

    The template writes the special tokens itself.
    """
    if not chat:
        return list(tokenizer.encode(text))
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidRequestError("--chat: this model has no chat template", field="messages")
    formatted = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer.encode(formatted, add_special_tokens=False))


def decoder(tokenizer: Any) -> Decode:
    """Token ids to text, special tokens shown."""
    return lambda token_ids: str(tokenizer.decode(token_ids, skip_special_tokens=False))
