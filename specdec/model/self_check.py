"""The check at start: the engine's whole path against the model's own forward.

The model's own logits come first, from its own modules and transformers' own attention; only the
rows that will be compared are kept, with what each decoder layer made of them. Once modules are
replaced and the pool is there, the same texts go through step plans: in chunks, over several
sequences, as rows of draft tokens, across block ends. What differs is refused, by layer.

How far a text goes is bounded by work. Lengths beyond are visited by short texts whose positions
begin there; only keys far behind are missing then, and which of those a query sees is settled
for every length by `mask_rule.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from specdec.model.attention_probe import GeometryProbe, attention_implementation
from specdec.model.check_texts import CheckText, check_texts, checked_steps, num_blocks
from specdec.model.difference import row_errors
from specdec.model.loader import LoadedModel, failure_as_refusal, refusal
from specdec.model.named_lengths import named_lengths
from specdec.step_plan import StepPlan

logger = logging.getLogger(__name__)

# How far a row may be off, relative to its spread. Transformers' eager attention and some routers
# compute in float32 whatever the model is in; half precision leaves per cents after many layers,
# and an expert chosen otherwise at a tie spoils a whole row: there three rows of four must agree.
_TOLERANCES = {torch.float64: 2e-5, torch.float32: 2e-3}
_HALF_TOLERANCE = 0.3
_HALF_QUANTILE = 0.75


@dataclass(slots=True)
class _Errors:
    """One layer's errors in one text, by position."""

    values: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def worst(self, quantile: float) -> tuple[float, int]:
        """The error at that quantile of all, and where it is."""
        order = sorted(range(len(self.values)), key=self.values.__getitem__)
        index = order[round(quantile * (len(order) - 1))]
        return self.values[index], self.positions[index]


class SelfCheck:
    """The model's own results, taken before anything of it is replaced, and the comparison.

    num_blocks: what the pool of the comparison needs.
    """

    def __init__(self, loaded: LoadedModel, probe: GeometryProbe, block_size: int) -> None:
        started = time.monotonic()
        self._loaded = loaded
        self._block_size = block_size
        self._blocks = _decoder_layers(loaded.model, probe.modules)
        layers = [probe.layers[index] for index in sorted(probe.layers)]
        lengths = named_lengths(loaded.config, layers, loaded.max_len)
        self._texts = check_texts(loaded, lengths, layers[0].num_heads, block_size)
        self.num_blocks = num_blocks(self._texts, block_size)
        with failure_as_refusal(loaded):
            self._expected = [self._own_results(text) for text in self._texts]
        self._seconds = time.monotonic() - started

    @torch.inference_mode()
    def _own_results(self, text: CheckText) -> dict[int, torch.Tensor]:
        """By layer index, [rows, width]; the logits stand behind the last layer."""
        model, device = self._loaded.model, self._loaded.device
        rows = torch.tensor(text.rows, device=device)
        # From the start on the model numbers positions itself: ours may not be its own.
        given = {}
        if text.first > 0:
            last = text.first + len(text.token_ids)
            given["position_ids"] = torch.arange(text.first, last, device=device)[None]
        with attention_implementation(model, "eager"), self._recorded(rows) as results:
            output = model(
                input_ids=torch.tensor([text.token_ids], device=device),
                logits_to_keep=rows,
                use_cache=False,
                **given,
            )
        results[self._logits_key] = output.logits[0]
        return results

    def compare(self, run: Callable[[StepPlan], torch.Tensor]) -> None:
        """Run the texts through the engine's path. Raises ConfigError, naming the first layer
        that differs, by how much and where; `run` is given a pool of `num_blocks`."""
        started = time.monotonic()
        errors: dict[int, list[_Errors]] = {}
        with failure_as_refusal(self._loaded):
            for plan, places in checked_steps(self._texts, self._block_size):
                rows = torch.tensor(plan.logit_rows, device=self._loaded.device)
                with self._recorded(rows) as results:
                    results[self._logits_key] = run(plan)
                self._collect(results, places, errors)
        for layer in sorted(errors):
            for found in errors[layer]:
                self._judge(layer, found)
        self._report(time.monotonic() - started)

    @property
    def _logits_key(self) -> int:
        return int(self._loaded.config.num_hidden_layers)

    def _collect(
        self,
        results: dict[int, torch.Tensor],
        places: list[tuple[int, int]],
        errors: dict[int, list[_Errors]],
    ) -> None:
        """places: for each row of the results, its text and its index among that text's rows."""
        for layer, actual in results.items():
            if layer not in self._expected[0]:
                continue
            expected = torch.stack([self._expected[text][layer][row] for text, row in places])
            usable = expected.isfinite().all(dim=1).tolist()
            if layer == self._logits_key:
                middle = expected.mean(dim=1, keepdim=True)
                actual, expected = actual - middle, expected - middle
            found = errors.setdefault(layer, [_Errors() for _ in self._texts])
            measured = row_errors(actual, expected)
            if len(measured) != len(places):
                measured = measured.expand(len(places))
            for (text, row), error, is_usable in zip(
                places, measured.tolist(), usable, strict=True
            ):
                if is_usable:
                    found[text].values.append(error)
                    found[text].positions.append(self._texts[text].position(row))

    def _judge(self, layer: int, errors: _Errors) -> None:
        if not errors.values:
            return
        dtype = self._loaded.dtype
        tolerance = _TOLERANCES.get(dtype, _HALF_TOLERANCE)
        error, position = errors.worst(1.0 if dtype in _TOLERANCES else _HALF_QUANTILE)
        if error <= tolerance:
            return
        where = "its logits differ" if layer == self._logits_key else f"layer {layer} differs"
        raise refusal(
            self._loaded.model.config.model_type,
            f"self-check at start: {where} from the model's own forward by {error:.2g} of its "
            f"size at position {position} (allowed {tolerance:.2g})",
        )

    def _report(self, seconds: float) -> None:
        whole = len(self._texts[0].token_ids)
        beyond = [text.length for text in self._texts[1:]]
        logger.info(
            "self-check passed in %.1f s: whole texts up to %d tokens%s",
            self._seconds + seconds,
            whole,
            f"; positions alone around {beyond}" if beyond else "",
        )

    @contextmanager
    def _recorded(self, rows: torch.Tensor) -> Iterator[dict[int, torch.Tensor]]:
        """What every decoder layer returns for the given rows, while the context lasts."""
        results: dict[int, torch.Tensor] = {}

        def keep(layer: int, output: object) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            if isinstance(hidden, torch.Tensor) and hidden.ndim == 3 and len(hidden) == 1:
                results[layer] = hidden[0].index_select(0, rows)

        hooks = [
            block.register_forward_hook(lambda _m, _a, output, layer=layer: keep(layer, output))
            for layer, block in self._blocks.items()
        ]
        try:
            yield results
        finally:
            for hook in hooks:
                hook.remove()


def _decoder_layers(model: nn.Module, attentions: dict[int, nn.Module]) -> dict[int, nn.Module]:
    """The modules that hold the attention modules, where each is held by one of its own."""
    names = {id(module): name for name, module in model.named_modules()}
    holders = {
        layer: model.get_submodule(names[id(module)].rpartition(".")[0])
        for layer, module in attentions.items()
        if id(module) in names
    }
    return holders if len({id(block) for block in holders.values()}) == len(attentions) else {}
