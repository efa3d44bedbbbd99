"""`specdec generate`: continue one prompt, in this process or on a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.cli.console import messages, output, print_json
from specdec.cli.explanation_table import print_explanations
from specdec.cli.generation import (
    Decode,
    Outcome,
    SpeculationSummary,
    Step,
    generate_local,
    generate_remote,
)
from specdec.cli.local_engine import decoder, encode, open_engine
from specdec.cli.options import (
    API_KEY_VARIABLE,
    DEMO_MODEL,
    MAX_TIMEOUT_S,
    AsJson,
    Chat,
    Draft,
    Drafter,
    DraftQuantization,
    Dtype,
    DtypeOption,
    Explain,
    FixedK,
    IgnoreEos,
    MaxK,
    MaxTokens,
    MinP,
    Quantization,
    Seed,
    SelfCheck,
    Speculation,
    SpeculationMode,
    Stop,
    Target,
    TargetQuantization,
    Temperature,
    Threads,
    TopK,
    TopP,
    VerificationRule,
    check_drafter,
    engine_configs,
    speculation_params,
)
from specdec.cli.show import TokenPrinter, legend
from specdec.params import SamplingParams

if TYPE_CHECKING:
    from specdec.config import DraftConfig, EngineConfig

EXAMPLES = """Examples:

    specdec generate "Once upon a time" --max-tokens 64

    specdec generate "def add(a, b):" --draft smollm2 --draft-quantization int8 --show

    specdec generate --file prompt.txt --chat --temperature 0.8 --seed 7 --json

    specdec generate "Once upon a time" --address localhost:9000 --speculation fixed --k 4

    specdec generate "Once upon a time" --draft smollm2 --draft-quantization int8 --explain

Exit status: 0 done, 1 failed, 2 bad input, 3 server unavailable or too slow."""


Prompt = Annotated[str | None, typer.Argument(help="The text to continue.")]
PromptFile = Annotated[
    Path | None, typer.Option(help="Read the prompt from a file; - is standard input.")
]
Show = Annotated[bool, typer.Option(help="Colour the draft tokens: accepted, rejected, bonus.")]
Address = Annotated[str | None, typer.Option(help="host:port of a server; without it, run here.")]
ApiKey = Annotated[str | None, typer.Option(envvar=API_KEY_VARIABLE, help="API key for --address.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.001, max=MAX_TIMEOUT_S, help="Give up after this many seconds."
    ),
]


def generate(
    prompt: Prompt = None,
    file: PromptFile = None,
    chat: Chat = False,
    show: Show = False,
    as_json: AsJson = False,
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    ignore_eos: IgnoreEos = False,
    speculation: Speculation = SpeculationMode.AUTO,
    k: FixedK = None,
    drafter: Drafter = None,
    verification: VerificationRule = "auto",
    explain: Explain = False,
    address: Address = None,
    api_key: ApiKey = None,
    timeout_s: Timeout = 600.0,
    target: Target = DEMO_MODEL,
    target_quantization: TargetQuantization = Quantization.NONE,
    draft: Draft = None,
    draft_quantization: DraftQuantization = Quantization.NONE,
    dtype: DtypeOption = Dtype.AUTO,
    threads: Threads = None,
    max_num_speculative_tokens: MaxK = 8,
    self_check: SelfCheck = True,
) -> None:
    """Continue a prompt, with speculation, and print the text as it comes."""
    text = read_prompt(prompt, file)
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        speculation=speculation_params(speculation, k, drafter, verification, explain),
    )
    view = View.JSON if as_json else View.SHOW if show else View.TEXT
    if address is not None:
        outcome = _on_server(address, api_key, text, chat, params, timeout_s, view)
    else:
        check_drafter(drafter, draft, target)
        config, drafting = engine_configs(
            target,
            target_quantization,
            draft,
            draft_quantization,
            dtype,
            threads,
            max_num_speculative_tokens,
            self_check,
        )
        outcome = _in_process(config, drafting, text, chat, params, timeout_s, view)
    _finish(outcome, view)


SPECULATION_NAMES = ("mode", "k", "drafter", "verification", "explain")


class View(Enum):
    """How a generation is shown."""

    TEXT = "text"
    SHOW = "show"
    JSON = "json"


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt, from exactly one of the argument and the file (- is standard input)."""
    if (prompt is None) == (file is None):
        raise typer.BadParameter("give either a prompt or --file")
    if file is None:
        assert prompt is not None
        return prompt
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {file}: {error}") from None


def _in_process(
    config: EngineConfig,
    drafting: DraftConfig | None,
    text: str,
    chat: bool,
    params: SamplingParams,
    timeout_s: float,
    view: View,
) -> Outcome:
    from specdec.engine import GenerateRequest

    with open_engine(config, drafting) as engine:
        prompt_token_ids = encode(engine.tokenizer, text, chat)
        request = GenerateRequest("cli", prompt_token_ids, params, timeout_s=timeout_s)
        on_step = _printer(view, decoder(engine.tokenizer), prompt_token_ids)
        return generate_local(engine, request, config.target.model, on_step)


def _on_server(
    address: str,
    api_key: str | None,
    text: str,
    chat: bool,
    params: SamplingParams,
    timeout_s: float,
    view: View,
) -> Outcome:
    from specdec.client import Client

    with Client(address, api_key=api_key) as client:
        prompt = [{"role": "user", "content": text}] if chat else text
        context = client.tokenize(prompt) if view is View.SHOW else []
        on_step = _printer(view, client.detokenize, context)
        return generate_remote(client, prompt, client_options(params), timeout_s, on_step)


def client_options(params: SamplingParams) -> dict[str, Any]:
    """Sampling parameters as the client's keywords. Each is sent, since the command line has
    defaults of its own."""
    wish = params.speculation
    speculation = {name: getattr(wish, name) for name in SPECULATION_NAMES}
    return {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "seed": params.seed,
        "stop": params.stop,
        "ignore_eos": params.ignore_eos,
        "speculation": {name: value for name, value in speculation.items() if value is not None},
    }


def _printer(view: View, decode: Decode, prompt_token_ids: list[int]) -> Callable[[Step], None]:
    if view is View.JSON:
        return lambda step: None
    if view is View.SHOW:
        messages().print(legend())
        return TokenPrinter(output(), decode, prompt_token_ids)
    return lambda step: typer.echo(step.text, nl=False)


def _finish(outcome: Outcome, view: View) -> None:
    if view is View.JSON:
        print_json(outcome.to_json())
    else:
        typer.echo()
        if outcome.speculation.explanations:
            print_explanations(messages(), outcome.speculation.explanations)
        messages().print(summary(outcome), style="dim")


def summary(outcome: Outcome) -> str:
    """One line: how much, how fast, and how speculation went."""
    num_tokens = len(outcome.token_ids)
    parts = [f"{num_tokens} tokens, {outcome.finish_reason}"]
    if outcome.tokens_per_s is not None:
        parts.append(f"{outcome.tokens_per_s:.1f} tokens/s")
    if outcome.time_to_first_token_s is not None:
        parts.append(f"first after {outcome.time_to_first_token_s * 1000:.0f} ms")
    return "; ".join([*parts, _speculation_summary(outcome.speculation)])


def _speculation_summary(speculation: SpeculationSummary) -> str:
    rate = speculation.acceptance_rate
    if rate is None:
        why = f" ({speculation.disabled_reason})" if speculation.disabled_reason else ""
        return f"nothing drafted{why}"
    clipped = f"; k clipped to {speculation.clipped_k}" if speculation.clipped_k is not None else ""
    return (
        f"{speculation.num_draft_tokens} drafted by {speculation.drafter}, "
        f"{speculation.num_accepted_tokens} accepted ({rate:.0%}), "
        f"mean acceptance length {speculation.mean_acceptance_length:.2f}{clipped}"
    )
