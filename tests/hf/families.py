# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of many families, with weights that are zero: what docs/models.md tests."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig

from flashsparse_plugin.modules import linear_modules, weight_of
from flashsparse_plugin.pruning import prune_weight
from flashsparse_plugin.roles import kept_dense

SPARSITY = 0.7
LEFT_OUT = object()

# The names that most families share; a family takes those that its configuration has.
_COMMON = dict(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    max_position_embeddings=64,
    initializer_range=0.2,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
_MOE = dict(
    num_local_experts=4,
    num_experts=4,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=48,
    shared_expert_intermediate_size=48,
)
_VISION = dict(
    hidden_size=128,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=2,
    image_size=16,
    patch_size=8,
    projection_dim=32,
)


def _text(model_type: str, **changes: Any) -> dict[str, Any]:
    settings = {**_COMMON, **changes}
    return dict(model_type=model_type, **{k: v for k, v in settings.items() if v is not LEFT_OUT})


def _nested(model_type: str, **parts: Any) -> dict[str, Any]:
    return dict(model_type=model_type, **parts)


# Architecture -> its configuration.
FAMILIES: dict[str, dict[str, Any]] = {
    # Decoders.
    "LlamaForCausalLM": _text("llama"),
    "MistralForCausalLM": _text("mistral", sliding_window=8),
    "Qwen2ForCausalLM": _text("qwen2", tie_word_embeddings=True),
    "Qwen3ForCausalLM": _text("qwen3"),
    "GemmaForCausalLM": _text("gemma"),
    "Gemma2ForCausalLM": _text("gemma2", query_pre_attn_scalar=64),
    "Gemma3ForCausalLM": _text("gemma3_text", query_pre_attn_scalar=64),
    "PhiForCausalLM": _text("phi"),
    "Phi3ForCausalLM": _text("phi3"),
    "OPTForCausalLM": _text("opt", ffn_dim=96, word_embed_proj_dim=128),
    "GPT2LMHeadModel": _text("gpt2", n_embd=128, n_layer=2, n_head=2, n_inner=96),
    "OpenAIGPTLMHeadModel": _text("openai-gpt", n_embd=128, n_layer=2, n_head=2),
    "GPTNeoForCausalLM": _text(
        "gpt_neo", num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]]
    ),
    "GPTJForCausalLM": _text("gptj", n_embd=128, n_layer=2, n_head=2, rotary_dim=8),
    "GPTNeoXForCausalLM": _text("gpt_neox"),
    "BloomForCausalLM": _text("bloom", n_layer=2, n_head=2),
    "FalconForCausalLM": _text("falcon", head_dim=LEFT_OUT),
    "MptForCausalLM": _text("mpt", d_model=128, n_heads=2, n_layers=2),
    "CodeGenForCausalLM": _text(
        "codegen", n_embd=128, n_layer=2, num_attention_heads=4, rotary_dim=8
    ),
    "XGLMForCausalLM": _text("xglm", d_model=128, ffn_dim=96, num_layers=2, attention_heads=2),
    "BioGptForCausalLM": _text("biogpt"),
    "StableLmForCausalLM": _text("stablelm"),
    "Starcoder2ForCausalLM": _text("starcoder2"),
    "CohereForCausalLM": _text("cohere"),
    "Olmo2ForCausalLM": _text("olmo2"),
    "Glm4ForCausalLM": _text("glm4"),
    "GraniteForCausalLM": _text("granite"),
    "NemotronForCausalLM": _text("nemotron"),
    # State spaces, recurrences, and mixtures of both.
    "MambaForCausalLM": _text("mamba", state_size=8),
    "Mamba2ForCausalLM": _text("mamba2", state_size=8, num_heads=8, head_dim=32, n_groups=1),
    "FalconMambaForCausalLM": _text("falcon_mamba", state_size=8),
    "RwkvForCausalLM": _text("rwkv", attention_hidden_size=128),
    "RecurrentGemmaForCausalLM": _text("recurrent_gemma", lru_width=128, num_hidden_layers=3),
    "Zamba2ForCausalLM": _text(
        "zamba2",
        num_hidden_layers=4,
        hybrid_layer_ids=[1, 3],
        layers_block_type=["mamba", "hybrid"] * 2,
        mamba_d_state=8,
        n_mamba_heads=8,
        mamba_headdim=32,
        num_mem_blocks=1,
        use_mem_rope=True,
        mamba_ngroups=1,
        adapter_rank=8,
        attention_head_dim=128,
    ),
    "JambaForCausalLM": _text(
        "jamba",
        num_experts=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=8,
        use_mamba_kernels=False,
    ),
    # Mixtures of experts.
    "MixtralForCausalLM": _text("mixtral", **_MOE),
    "Qwen3MoeForCausalLM": _text("qwen3_moe", **_MOE),
    "OlmoeForCausalLM": _text("olmoe", **_MOE),
    "GraniteMoeForCausalLM": _text("granitemoe", **_MOE),
    "GptOssForCausalLM": _text("gpt_oss", **_MOE),
    "DeepseekV3ForCausalLM": _text(
        "deepseek_v3",
        **_MOE,
        head_dim=LEFT_OUT,
        num_key_value_heads=2,
        n_group=1,
        topk_group=1,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=16,
        first_k_dense_replace=1,
    ),
    # Encoders.
    "BertModel": _text("bert"),
    "BertForMaskedLM": _text("bert"),
    "BertForSequenceClassification": _text("bert"),
    "DistilBertForMaskedLM": _text("distilbert", dim=128, hidden_dim=96, n_layers=2, n_heads=2),
    "RobertaForSequenceClassification": _text("roberta"),
    "ModernBertForMaskedLM": _text("modernbert", cls_token_id=1, sep_token_id=2),
    "ElectraForMaskedLM": _text("electra", embedding_size=128),
    "DebertaForMaskedLM": _text("deberta", pos_att_type=["c2p", "p2c"], relative_attention=True),
    "DebertaV2ForMaskedLM": _text(
        "deberta-v2", pos_att_type=["c2p", "p2c"], relative_attention=True
    ),
    # Encoder and decoder.
    "T5ForConditionalGeneration": _text(
        "t5", d_model=128, d_kv=64, d_ff=96, num_layers=2, num_heads=2
    ),
    "BartForConditionalGeneration": _text(
        "bart",
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
    ),
    "WhisperForConditionalGeneration": _text(
        "whisper",
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=32,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
    # Images.
    "ViTForImageClassification": _nested("vit", **_VISION),
    "Dinov2Model": _nested("dinov2", **_VISION),
    "Dinov2Model-swiglu": _nested("dinov2", **_VISION, use_swiglu_ffn=True),
    "CLIPModel": _nested(
        "clip", projection_dim=32, text_config=dict(_COMMON), vision_config=dict(_VISION)
    ),
    "SiglipModel": _nested("siglip", text_config=dict(_COMMON), vision_config=dict(_VISION)),
    "LlavaForConditionalGeneration": _nested(
        "llava",
        image_token_index=5,
        text_config=_text("llama"),
        vision_config=dict(model_type="clip_vision_model", **_VISION),
    ),
    "Qwen2_5_VLForConditionalGeneration": _nested(
        "qwen2_5_vl",
        image_token_id=5,
        video_token_id=6,
        vision_start_token_id=7,
        vision_end_token_id=8,
        text_config=_text(
            "qwen2_5_vl_text",
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [8, 12, 12],
            },
        ),
        vision_config=dict(
            depth=2,
            hidden_size=128,
            intermediate_size=96,
            num_heads=2,
            out_hidden_size=128,
            patch_size=8,
            fullatt_block_indexes=[1],
            window_size=16,
        ),
    ),
    "Gemma3ForConditionalGeneration": _nested(
        "gemma3",
        mm_tokens_per_image=4,
        image_token_index=5,
        boi_token_index=6,
        eoi_token_index=7,
        text_config=_text("gemma3_text", query_pre_attn_scalar=64),
        vision_config=dict(model_type="siglip_vision_model", **_VISION),
    ),
}


def build(architecture: str) -> nn.Module:
    """A random pruned model in bfloat16."""
    settings = dict(FAMILIES[architecture])
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    model = getattr(transformers, architecture.partition("-")[0])(config)
    tied = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    kept = kept_dense(model, ["lm_head"])
    with torch.no_grad():
        for name, module in linear_modules(model).items():
            if name not in kept and id(module.weight) not in tied:
                weight_of(module).copy_(prune_weight(weight_of(module), SPARSITY))
    return model.to(torch.bfloat16).eval()


def inputs(model: nn.Module) -> dict[str, torch.Tensor]:
    """What the model's forward takes: tokens, an image, sounds, or several of them."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(10, 256, (2, 9), generator=generator)
    given = {}
    if model.main_input_name == "input_features":
        given["input_features"] = torch.randn(2, 8, 32, generator=generator)
    elif model.main_input_name == "input_ids":
        given["input_ids"] = ids
    if model.main_input_name == "pixel_values" or isinstance(
        model, (transformers.CLIPModel, transformers.SiglipModel)
    ):
        given["pixel_values"] = torch.randn(2, 3, 16, 16, generator=generator)
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids[:, :5]
    return given


@torch.no_grad()
def answer(model: nn.Module) -> torch.Tensor:
    """The first of what the forward returns, in float64."""
    return model(**inputs(model), return_dict=False)[0].double()
