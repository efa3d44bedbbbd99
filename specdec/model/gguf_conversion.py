"""GGUF to a plain safetensors folder that `from_pretrained` reads without the gguf package.

Knows what transformers' GGUF reader leaves to be mended. Knows nothing of where the file came
from or where the result is kept: that is the catalog's.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel


def convert_gguf(gguf_file: Path, out_dir: Path, *, splits_digits: bool) -> None:
    """Write weights (dequantised to float32), config, tokenizer and chat template to `out_dir`.

    `splits_digits`: the model's tokenizer cuts every digit off before byte-level splitting
    (GGUF pre-tokenizers `smollm`, `starcoder` and alike).
    """
    model = _load_dequantised(gguf_file)
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    if splits_digits:
        _split_digits(tokenizer.backend_tokenizer)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    _share_weights(out_dir)


def _load_dequantised(gguf_file: Path) -> PreTrainedModel:
    """The model as an ordinary one: transformers marks what it read as GGUF-quantised, and a
    model so marked refuses to be saved, and its folder to be loaded."""
    marked = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    )
    config = marked.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model: PreTrainedModel = type(marked)(config)
    model.load_state_dict(marked.state_dict())
    return model


def _split_digits(tokenizer: Tokenizer) -> None:
    """Restore the digit splitter: the GGUF reader installs GPT-2's pre-tokenizer for all models.

    Without it the white space before a number stays with the number, so that "\\n\\n1." or two
    spaces before a digit become tokens that the model never saw in training.
    """
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, tokenizer.pre_tokenizer])


def _share_weights(folder: Path) -> None:
    """Give the weights the mode of the other files: safetensors lets only their owner read them,
    and a copy baked into a container image is read by another user."""
    mode = (folder / "config.json").stat().st_mode
    for weights in folder.glob("*.safetensors"):
        weights.chmod(mode)
