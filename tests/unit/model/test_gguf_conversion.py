"""GGUF conversion: a tiny file written by the gguf package against the model it was made from."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from specdec.model.gguf_conversion import convert_gguf

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ċ Ċ", "Ġ Ġ"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĊĊ", "ĠĠ"]
HEADS, KV_HEADS = 4, 2


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    torch.manual_seed(5)
    return LlamaForCausalLM(config).eval()


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF keeps the two rotary halves of a head interleaved."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def _gguf_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in names.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                weight = _interleaved(weight, HEADS if theirs == "attn_q" else KV_HEADS)
            tensors[f"blk.{layer}.{theirs}.weight"] = weight
    return tensors


@pytest.fixture(scope="module")
def converted(llama, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    writer = gguf.GGUFWriter(folder / "tiny.gguf", "llama")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(llama.config.rms_norm_eps)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, tensor in _gguf_tensors(llama).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert_gguf(folder / "tiny.gguf", folder / "out", splits_digits=True)
    return folder / "out"


def test_converted_model_is_the_original(converted, llama):
    model = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    token_ids = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(model(token_ids).logits, llama(token_ids).logits)


def test_converted_model_is_not_marked_quantised(converted):
    config = json.loads((converted / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["max_position_embeddings"], config["eos_token_id"]) == (256, 2)


def test_weights_are_as_readable_as_the_config(converted):
    assert (converted / "model.safetensors").stat().st_mode == (
        converted / "config.json"
    ).stat().st_mode


def test_special_tokens_are_single_ids_and_nothing_is_prepended(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    text = "<|im_start|>a<|im_end|><|endoftext|>"
    assert tokenizer.encode(text) == [1, TOKENS.index("a"), 2, 0]
    assert tokenizer.eos_token_id == 2
    assert tokenizer.model_max_length == 256
    assert tokenizer.chat_template == "{{ messages[0]['content'] }}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n\n12", ["ĊĊ", "1", "2"]),
        ("a  2", ["a", "ĠĠ", "2"]),
        ("a 2\n", ["a", "Ġ", "2", "Ċ"]),
    ],
)
def test_digits_are_cut_off_before_white_space_is(converted, text, expected):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    token_ids = tokenizer.encode(text)
    assert tokenizer.convert_ids_to_tokens(token_ids) == expected
    assert tokenizer.decode(token_ids) == text
