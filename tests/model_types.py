"""What becomes of every causal language model type that transformers offers, as docs/models.md
tells it and `tests/integration/test_every_causal_lm.py` finds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """title: the heading in docs/models.md. reason: a pattern that the error must hold."""

    title: str
    reason: str
    names: frozenset[str]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SERVED = _names("""
    afmoe apertus apertus1p5_text arcee aria_text axk1 beam bert bert-generation biogpt bitnet
    codegen cohere cohere2 cohere2_moe cohere_compass_text ctrl cwm dbrx deepseek_v2
    deepseek_v3 dots1 electra emu3 ernie ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe
    flex_olmo fuyu gemma gemma2 gemma3 gemma3_text gemma3n_text gemma4 gemma4_text
    gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite got_ocr2 gpt-sw3 gpt2 gpt_bigcode
    gpt_neox gptj granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe
    hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe kolibri1 laguna llama longcat_flash
    mellum minicpm3 minimax_m2 ministral ministral3 mistral mixtral modernbert-decoder moshi
    moss_transcribe_diarize nanochat olmo olmo2 olmo3 olmoe opt persimmon phi phi3
    phi4_multimodal phimoe qwen2 qwen2_moe qwen3 qwen3_moe roc_bert sarvam_mla sarvam_moe
    seed_oss smollm3 solar_open starcoder2 vaultgemma youtu
""")

REFUSED = (
    Refusal(
        "Layers that keep a running state",
        r"it has .*(linear_attention|conv|hybrid).* layers, which cannot be paged"
        "|it keeps recurrent state, which cannot be rolled back",
        _names("""
            bailing_hybrid bamba falcon_h1 falcon_mamba granitemoehybrid inkling2_loop_text
            inkling2_text inkling_text jamba kimi_linear lara_mini lfm2 lfm2_moe lfm3 mamba mamba2
            minimax nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text
            qwen3_next qwen4_exp qwen4_exp_text recurrent_gemma rwkv xlstm zamba zamba2 zaya
        """),
    ),
    Refusal(
        "Layers that choose which keys they see",
        r"it has .*(indexed|sparse|chunked).* layers, which cannot be paged",
        _names("""
            axk2 deepseek_v32 deepseek_v4 dots3_note dots3_note_text glm_moe_dsa hy_v4 llama4
            llama4_text minimax_m3_vl_text
        """),
    ),
    Refusal(
        "Encoder-decoders",
        "it is an encoder-decoder; only decoders are supported",
        _names("""
            bart bigbird_pegasus blenderbot blenderbot-small marian mbart musicgen
            musicgen_melody mvp pegasus plbart prophetnet whisper
        """),
    ),
    Refusal(
        "Attention outside the interface",
        "its attention does not go through transformers' AttentionInterface",
        _names("""
            big_bird bloom cpmant falcon gpt_neo gpt_neox_japanese megatron-bert mpt openai-gpt
            reformer rembert roformer trocr xglm xlm xlnet
        """),
    ),
    Refusal(
        "Arguments that do not reach the attention",
        "does not pass keyword arguments on to its attention function; it cannot be paged",
        _names("nemotron stablelm"),
    ),
    Refusal(
        "Layers without paged attention",
        r"lets \d of 4 layers attend through paged attention; what the others keep",
        _names("git mllama"),
    ),
    Refusal(
        "Attention sinks",
        "uses attention sinks, which are not supported",
        _names("flint gpt_oss granite_swa granitemoe_swa mimo_v2_flash"),
    ),
    Refusal(
        "Masks of their own",
        "builds an attention mask of its own|its mask depends on more than positions",
        _names("doge gemma4_unified"),
    ),
    Refusal(
        "Positions of their own",
        "does not number its positions 0, 1, 2 and so on",
        _names("""
            camembert data2vec-text roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod
        """),
    ),
    Refusal(
        "Layers that attend twice",
        "attends twice per pass in layer 0",
        _names("diffllama dory hrm_text"),
    ),
    Refusal(
        "No stack of layers with logits of its own",
        "cannot return logits of selected rows|its configuration has no num_hidden_layers",
        _names("blt gemma4_assistant gemma4_unified_assistant"),
    ),
)

# Types of which no tiny model can be made here: the package that is missing.
NOT_BUILT = {"gemma3n": "timm"}
