"""Tiny configurations of the decoder families of transformers, each in two sizes with odd widths, for check_hf.py."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import dataclasses


@dataclasses.dataclass(frozen=True)
class Size:
    hidden: int
    heads: int
    kv: int
    ffn: int
    head: int  # where a family has heads of any width; else they have hidden / heads
    expert: int  # ffn of an expert
    experts: int
    top: int  # experts of a token
    window: int
    vocab: int


# Heads that are half as wide are even, because families turn half of a head.
SIZES = (Size(hidden=24, heads=2, kv=1, ffn=33, head=8, expert=9, experts=5, top=2, window=7, vocab=256),
         Size(hidden=32, heads=4, kv=2, ffn=43, head=12, expert=11, experts=6, top=3, window=5, vocab=211))
LAYERS, POSITIONS = 4, 64
NO_TOKENS = dict(pad_token_id=None, bos_token_id=None, eos_token_id=None)
HALF = dict(partial_rotary_factor=0.5)
LLAMA3 = dict(rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                   high_freq_factor=4.0, original_max_position_embeddings=16))
def yarn(mscale, mscale_all_dim):
    return dict(rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=4.0, mscale=mscale,
                                     mscale_all_dim=mscale_all_dim, original_max_position_embeddings=16))

def growing(beta):
    fields = yarn(1.0, 1.0)["rope_parameters"]
    return dict(rope_parameters=fields | dict(llama_4_scaling_beta=beta, original_max_position_embeddings=6))


# What the second size has beside other widths.
SECOND = {
    "ministral3": dict(sliding_window=5, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="default", rope_theta=500.0, llama_4_scaling_beta=0.3, original_max_position_embeddings=4)),
    "lfm2_moe": dict(use_expert_bias=False, routed_scaling_factor=2.5, tie_word_embeddings=False, conv_bias=True,
                     pad_token_id=101),
    "llama4_text": dict(attention_chunk_size=None, floor_scale=5, attn_scale=0.3,
                        num_experts_per_tok=2, use_qk_norm=False, attention_bias=True,
                        **LLAMA3),
    "llama": dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, pad_token_id=101),
    "qwen2": dict(tie_word_embeddings=True),
    "qwen3": dict(attention_bias=True, tie_word_embeddings=True),
    "qwen3_moe": dict(norm_topk_prob=True, attention_bias=True),
    "gemma": dict(tie_word_embeddings=False, attention_bias=True),
    "gemma2": dict(attention_bias=True),
    "gemma3_text": dict(tie_word_embeddings=False),
    "olmo2": dict(attention_bias=True),
    "olmoe": dict(norm_topk_prob=True),
    "gpt2": dict(tie_word_embeddings=False, n_inner=43, activation_function="silu"),
    "gpt_neox": dict(use_parallel_residual=False, tie_word_embeddings=True, hidden_act="relu"),
    "glm4_moe": dict(attention_bias=True, use_qk_norm=True),
    "phi": dict(tie_word_embeddings=True),
    "granite": dict(attention_bias=True, tie_word_embeddings=True),
    "stablelm": dict(use_qkv_bias=True),
    "starcoder2": dict(use_bias=False),
    "cohere": dict(attention_bias=True),
    "olmo": dict(clip_qkv=0.5),
    "seed_oss": dict(attention_bias=False),
    "falcon": dict(new_decoder_architecture=True, num_kv_heads=2, bias=True),
    "gpt_bigcode": dict(multi_query=False),
    "hunyuan_v1_moe": dict(attention_bias=True),
    "arcee": dict(attention_bias=True, mlp_bias=True),
    "qwen2_moe": dict(norm_topk_prob=True, tie_word_embeddings=True),
    "deepseek_v2": dict(q_lora_rank=None, mlp_bias=True, v_head_dim=10, first_k_dense_replace=2,
                        topk_method="group_limited_greedy", n_group=3, topk_group=2, **yarn(0.7, 0.7)),
    "phimoe": dict(attention_bias=True, lm_head_bias=True, router_jitter_noise=0.3, sliding_window=7),
    "longcat_flash": dict(attention_bias=True, tie_word_embeddings=True, zero_expert_num=5, moe_topk=7, v_head_dim=10,
                          **yarn(0.7, 1.1)),
    "kimi_linear": dict(q_lora_rank=12, num_expert_group=1, num_shared_experts=2, moe_renormalize=False,
                        linear_attn_config={}, linear_head_dim=6, linear_num_heads=3, linear_conv_kernel_dim=3,
                        layer_types=[f"{kind}_attention" for kind in ("full", "linear", "linear", "linear")],
                        mlp_layer_types=["sparse", "dense", "sparse", "sparse"]),
    "deepseek_v3": dict(q_lora_rank=None, num_attention_heads=3, num_key_value_heads=3, rope_interleave=False,
                        attention_bias=True, norm_topk_prob=False, **yarn(0.6, 1.1)),
    "glm4_moe_lite": dict(v_head_dim=15, mlp_layer_types=["dense", "sparse", "dense", "sparse"], n_group=1,
                          tie_word_embeddings=True, **yarn(0.0, 0.8)),
    "minicpm3": dict(v_head_dim=None, attention_bias=True, mlp_bias=True, scale_emb=1.5, scale_depth=0.9,
                     dim_model_base=24, tie_word_embeddings=False, **yarn(1.0, 0.5)),
    "ernie4_5_moe": dict(use_bias=True, tie_word_embeddings=False, moe_layer_interval=2, moe_layer_start_index=0),
    "gpt_oss": dict(attention_bias=False, swiglu_limit=0.3, swiglu_alpha=1.3, tie_word_embeddings=True,
                    rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=4.0, truncate=False,
                                         original_max_position_embeddings=16)),
    "qwen3_next": dict(mlp_only_layers=[0, 3], tie_word_embeddings=True),
    "olmo_hybrid": dict(linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=6,
                        linear_value_head_dim=6, linear_allow_neg_eigval=False, attention_bias=True, pad_token_id=101,
                        rope_parameters=dict(rope_type="default", rope_theta=None)),
    "nemotron_h": dict(layers_block_type=["moe", "mamba", "attention", "mlp"], hybrid_override_pattern=None,
                       n_groups=2,
                       mlp_bias=True, use_bias=True, use_conv_bias=False, n_group=2, topk_group=1, norm_topk_prob=False,
                       routed_scaling_factor=2.5, time_step_min=0.4, n_routed_experts=8, num_experts_per_tok=3,
                       moe_latent_size=12),
    "zamba2": dict(num_key_value_heads=2, layers_block_type=["hybrid", "linear_attention", "hybrid", "hybrid"],
                   use_shared_attention_adapter=False, use_mem_rope=True, add_bias_linear=True, time_step_min=0.4,
                   mamba_ngroups=2, pad_token_id=101, num_mem_blocks=2),
    "minimax": dict(block_size=5, sliding_window=7, tie_word_embeddings=True, linear_attn_alpha_factor=1.5,
                    linear_attn_beta_factor=0.7, full_attn_alpha_factor=1.3, full_attn_beta_factor=0.8,
                    mlp_alpha_factor=0.9, mlp_beta_factor=1.2, layer_types=None),
    "internlm3": dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, pad_token_id=101),
    "iquestcoder": dict(attention_bias=True, pad_token_id=101, head_dim=None),
    "jais2": dict(attention_bias=False, mlp_bias=False, hidden_act="gelu", tie_word_embeddings=True),
    "hyperclovax": dict(use_post_norm=False, attention_bias=True, mlp_bias=True, attention_multiplier=None,
                        tie_word_embeddings=True),
    "youtu": dict(q_lora_rank=None, rope_interleave=False, attention_bias=True, v_head_dim=15,
                  tie_word_embeddings=False, **yarn(0.6, 1.1)),
    "sarvam_mla": dict(q_lora_rank=None, v_head_dim=10, norm_topk_prob=False, n_group=1, topk_group=1,
                       tie_word_embeddings=True),
    "exaone_moe": dict(sliding_window_pattern=2, first_k_dense_replace=0, num_shared_experts=2, n_group=3, topk_group=2,
                       norm_topk_prob=False, tie_word_embeddings=True,
                       mlp_layer_types=["sparse", "dense", "sparse", "sparse"]),
    "mellum": dict(attention_bias=True, norm_topk_prob=False, mlp_layer_types=["sparse", "dense", "sparse", "sparse"],
                   rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=300.0),
                                        sliding_attention=dict(rope_type="default", rope_theta=70.0))),
    "flint": dict(attention_bias=True, norm_topk_prob=False, mlp_only_layers=[3], tie_word_embeddings=True,
                  layer_types=["sliding_attention", "full_attention"] * 2),
    "bitnet": dict(attention_bias=True, tie_word_embeddings=True),
    "mimo_v2_flash": dict(v_head_dim=17, attention_bias=True, attention_value_scale=None, routed_scaling_factor=2.5,
                          layer_types=["sliding_attention", "full_attention"] * 2, norm_topk_prob=False,
                          mlp_layer_types=["sparse", "dense", "sparse", "sparse"], n_group=3, topk_group=2,
                          num_key_value_heads=1, tie_word_embeddings=True,
                          rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=300.0),
                                               sliding_attention=dict(rope_type="default", rope_theta=70.0,
                                                                      partial_rotary_factor=0.7))),
    "granitemoe": dict(attention_bias=True, tie_word_embeddings=True),
    "granitemoeshared": dict(residual_multiplier=0.22, attention_multiplier=0.1, logits_scaling=8.0),
}

WIDTHS = {"hidden_size", "n_embd", "intermediate_size", "n_inner", "ffn_dim", "num_attention_heads", "n_head",
          "num_heads", "num_key_value_heads", "num_kv_heads", "moe_intermediate_size",
          "shared_expert_intermediate_size", "shared_intermediate_size", "word_embed_proj_dim", "dim_model_base",
          "q_lora_rank", "kv_lora_rank", "intermediate_size_mlp", "moe_shared_expert_intermediate_size",
          "mamba_n_heads", "mamba_d_ssm", "ffn_hidden_size", "expert_ffn_hidden_size", "linear_num_heads",
          "linear_num_key_heads", "linear_num_value_heads"}


def grown(fields, wider, deeper=1, vocabulary=None):
    """The fields of a model with so many times the widths, heads and layers; heads keep their width."""
    larger = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            value = grown(value, wider, deeper, vocabulary)
        elif isinstance(value, list) and len(value) == LAYERS:
            value = value * deeper
        elif isinstance(value, int) and name in ("num_hidden_layers", "n_layer", "num_layers"):
            value = value * deeper
        elif isinstance(value, int) and name in WIDTHS:
            value = value * wider
        larger[name] = vocabulary if name == "vocab_size" and vocabulary else value
    return larger


def families(s):
    """name -> (model_type, fields) of one size."""
    def like_llama(without=(), **more):
        fields = dict(vocab_size=s.vocab, hidden_size=s.hidden, intermediate_size=s.ffn, num_hidden_layers=LAYERS,
                      num_attention_heads=s.heads, num_key_value_heads=s.kv, max_position_embeddings=POSITIONS)
        return {name: value for name, value in (fields | NO_TOKENS | more).items() if name not in without}

    def like_gpt2(**more):
        return dict(vocab_size=s.vocab, n_embd=s.hidden, n_head=s.heads, n_layer=LAYERS, n_positions=POSITIONS,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None) | more

    wide = dict(head_dim=s.head)
    local = dict(num_local_experts=s.experts, num_experts_per_tok=s.top)
    mixed = dict(num_experts=s.experts, num_experts_per_tok=s.top)
    routed = dict(n_routed_experts=2 * s.top, num_experts_per_tok=s.top)
    small = dict(moe_intermediate_size=s.expert)
    shared = dict(shared_expert_intermediate_size=s.expert + 4)
    window = dict(sliding_window=s.window)
    scores = dict(query_pre_attn_scalar=s.head + 2)
    images = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                  patch_size=14)
    vision = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=s.hidden, patch_size=4,
                  num_position_embeddings=16)
    widths = dict(qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=s.head)
    latent = dict(num_key_value_heads=s.heads, q_lora_rank=12, kv_lora_rank=16, **widths)
    deepseek = latent | small | dict(n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
                                     n_group=2, topk_group=1)
    first = dict(first_k_dense_replace=1)
    longcat = latent | dict(n_routed_experts=6, num_layers=2, ffn_hidden_size=s.ffn, expert_ffn_hidden_size=s.expert,
                            zero_expert_num=2, moe_topk=2, head_dim=4)
    kimi = latent | small | dict(q_lora_rank=None, num_experts=6, num_experts_per_token=2, num_shared_experts=1,
                                 num_expert_group=2, topk_group=1, linear_attn_config=dict(
                                     head_dim=8, num_heads=4, short_conv_kernel_size=4, full_attn_layers=[2, 4],
                                     kda_layers=[1, 3]))
    indexed = dict(index_n_heads=2, index_head_dim=8, index_topk=8)
    delta = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
    multipliers = dict(embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.1,
                       logits_scaling=8.0)
    mamba = dict(mamba_n_heads=8, mamba_d_head=s.hidden // 4, mamba_expand=2, mamba_d_state=8, mamba_n_groups=1,
                 mamba_chunk_size=8)
    turns = lambda *kinds: dict(layer_types=[f"{kind}_attention" for kind in kinds])
    short = ["conv", "conv", "full_attention", "conv"]
    per_layer = dict(vocab_size_per_layer_input=s.vocab, hidden_size_per_layer_input=8, num_kv_shared_layers=0)
    return {
        "llama": ("llama", like_llama()),
        "llama3.1": ("llama", like_llama(**LLAMA3)),
        "llama4_text": ("llama4_text", like_llama(
            **wide, intermediate_size_mlp=s.ffn, num_local_experts=4, num_experts_per_tok=1,
            interleave_moe_layer_step=2, attention_chunk_size=64, no_rope_layers=[1, 1, 1, 0])),
        "llama4": ("llama4", dict(
            text_config=dict(model_type="llama4_text", **like_llama(
                **wide, intermediate_size_mlp=s.ffn, num_local_experts=4, num_experts_per_tok=1,
                interleave_moe_layer_step=2, attention_chunk_size=64, no_rope_layers=[1, 1, 1, 0])),
            vision_config=dict(hidden_size=16, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                               image_size=28, patch_size=14, vision_output_dim=16, projector_input_dim=16,
                               projector_output_dim=16))),
        "mistral": ("mistral", like_llama(**window)),
        "ministral": ("ministral", like_llama(**wide, **window)),
        "ministral3": ("ministral3", like_llama(**wide, **growing(0.1))),
        "internlm3": ("internlm3", like_llama(**wide)),
        "iquestcoder": ("iquestcoder", like_llama(**wide)),
        "jais2": ("jais2", like_llama(**wide)),
        "hyperclovax": ("hyperclovax", like_llama(**wide, **multipliers)),
        "youtu": ("youtu", like_llama(**latent)),
        "sarvam_mla": ("sarvam_mla", like_llama(**deepseek, **first)),
        "exaone_moe": ("exaone_moe", like_llama(**wide, **small, **mixed, **window)),
        "mellum": ("mellum", like_llama(**wide, **small, **mixed, **window,
                                        **turns("sliding", "full", "sliding", "sliding"))),
        "flint": ("flint", like_llama(**wide, **small, **shared, **mixed, **window)),
        "mixtral": ("mixtral", like_llama(**local)),
        "qwen2": ("qwen2", like_llama()),
        "qwen2_moe": ("qwen2_moe", like_llama(**small, **shared, **mixed)),
        "qwen3": ("qwen3", like_llama(**wide)),
        "qwen3_moe": ("qwen3_moe", like_llama(**wide, **small, **mixed)),
        "qwen3_next": ("qwen3_next", like_llama(
            **wide, **small, **shared, **mixed, **delta, full_attention_interval=4)),
        "qwen3_5_text": ("qwen3_5_text", like_llama(**wide, **delta)),
        "qwen3_5_moe_text": ("qwen3_5_moe_text", like_llama(**wide, **small, **shared, **mixed, **delta)),
        "qwen3_5": ("qwen3_5", dict(
            text_config=dict(model_type="qwen3_5_text", **like_llama(**wide, **delta)), vision_config=vision)),
        "qwen3_5_moe": ("qwen3_5_moe", dict(
            text_config=dict(model_type="qwen3_5_moe_text", **like_llama(**wide, **small, **shared, **mixed, **delta)),
            vision_config=vision)),
        "gemma": ("gemma", like_llama(**wide)),
        "gemma2": ("gemma2", like_llama(**wide, **window, **scores)),
        "gemma3_text": ("gemma3_text", like_llama(**wide, **window, **scores)),
        "gemma3": ("gemma3", dict(
            text_config=dict(model_type="gemma3_text", **like_llama(**wide, **window, **scores)),
            vision_config=dict(model_type="siglip_vision_model", **images), mm_tokens_per_image=1)),
        "mistral3": ("mistral3", dict(
            text_config=dict(model_type="mistral", **like_llama(**wide, sliding_window=s.window)),
            vision_config=dict(model_type="pixtral", **images))),
        "mistral3.ministral3": ("mistral3", dict(
            text_config=dict(model_type="ministral3", **like_llama(**wide, **growing(0.1))),
            vision_config=dict(model_type="pixtral", **images))),
        "gemma3n_text": ("gemma3n_text", like_llama(
            **wide, **window, **per_layer, laurel_rank=4, altup_num_inputs=2, altup_active_idx=0,
            intermediate_size=[48] * 4, activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
            **turns("sliding", "full", "sliding", "full"))),
        "gemma4_text": ("gemma4_text", like_llama(**wide, **window, **per_layer, global_head_dim=8)),
        "vaultgemma": ("vaultgemma", like_llama(**wide, **window, **scores)),
        "phi": ("phi", like_llama(num_key_value_heads=s.heads, **HALF)),
        "phi3": ("phi3", like_llama(**window)),
        "phimoe": ("phimoe", like_llama(num_local_experts=4, num_experts_per_tok=2)),
        "gpt2": ("gpt2", like_gpt2()),
        "gpt_bigcode": ("gpt_bigcode", like_gpt2()),
        "gptj": ("gptj", like_gpt2(rotary_dim=4)),
        "gpt_neo": ("gpt_neo", dict(
            vocab_size=s.vocab, hidden_size=s.hidden, num_heads=s.heads, num_layers=LAYERS, window_size=s.window,
            attention_types=[[["global", "local"], 2]], max_position_embeddings=POSITIONS, resid_dropout=0.0,
            embed_dropout=0.0, attention_dropout=0.0, bos_token_id=None, eos_token_id=None)),
        "gpt_neox": ("gpt_neox", like_llama(["num_key_value_heads"])),
        "gpt_oss": ("gpt_oss", like_llama(**wide, **local, **window)),
        "olmo": ("olmo", like_llama()),
        "olmo2": ("olmo2", like_llama()),
        "olmo3": ("olmo3", like_llama(**window)),
        "olmoe": ("olmoe", like_llama(**mixed)),
        "flex_olmo": ("flex_olmo", like_llama(**mixed)),
        # transformers saves the convolution in three equal parts, which are those of q, k and v where these are equal.
        "olmo_hybrid": ("olmo_hybrid", like_llama(**(delta | dict(linear_value_head_dim=4)))),
        "falcon": ("falcon", dict(
            vocab_size=s.vocab, hidden_size=s.hidden, num_hidden_layers=LAYERS, num_attention_heads=s.heads,
            multi_query=True, new_decoder_architecture=False, parallel_attn=True, bias=False, alibi=False,
            max_position_embeddings=POSITIONS, bos_token_id=None, eos_token_id=None)),
        "falcon_h1": ("falcon_h1", like_llama(
            **wide, **(mamba | dict(mamba_n_heads=4, mamba_d_head=8)), mamba_d_ssm=32, mamba_d_conv=4)),
        "mamba": ("mamba", dict(vocab_size=s.vocab, hidden_size=32, state_size=8, num_hidden_layers=4, **NO_TOKENS)),
        "mamba2": ("mamba2", dict(vocab_size=s.vocab, hidden_size=32, state_size=8, num_hidden_layers=4, num_heads=8,
                                  head_dim=8, n_groups=1, expand=2, chunk_size=8, **NO_TOKENS)),
        "bloom": ("bloom", dict(vocab_size=s.vocab, hidden_size=s.hidden, n_head=s.heads, n_layer=LAYERS, **NO_TOKENS)),
        "mpt": ("mpt", dict(vocab_size=s.vocab, d_model=s.hidden, n_heads=s.heads, n_layers=LAYERS,
                            max_seq_len=POSITIONS, expansion_ratio=2)),
        "opt": ("opt", dict(
            vocab_size=s.vocab, hidden_size=s.hidden, word_embed_proj_dim=s.hidden, ffn_dim=s.ffn,
            num_hidden_layers=LAYERS, num_attention_heads=s.heads, max_position_embeddings=POSITIONS, dropout=0.0,
            pad_token_id=1, bos_token_id=None, eos_token_id=None)),
        "stablelm": ("stablelm", like_llama(**HALF)),
        "starcoder2": ("starcoder2", like_llama()),
        "granite": ("granite", like_llama(**multipliers)),
        "granitemoe": ("granitemoe", like_llama(**local, **multipliers)),
        "granitemoeshared": ("granitemoeshared", like_llama(**local, shared_intermediate_size=s.expert)),
        "granitemoehybrid": ("granitemoehybrid", like_llama(
            **local, **mamba, shared_intermediate_size=s.expert, layer_types=["mamba", "mamba", "attention", "mamba"])),
        "cohere": ("cohere", like_llama(logit_scale=0.0625)),
        "cohere2": ("cohere2", like_llama(logit_scale=0.0625, **window)),
        "deepseek_v2": ("deepseek_v2", like_llama(**deepseek, **first, topk_method="greedy")),
        "deepseek_v3": ("deepseek_v3", like_llama(**deepseek, **first)),
        "deepseek_v32": ("deepseek_v32", like_llama(**deepseek, **first, **indexed)),
        "deepseek_v4": ("deepseek_v4", like_llama()),
        "kimi_linear": ("kimi_linear", like_llama(**kimi)),
        "minicpm3": ("minicpm3", like_llama(**latent)),
        "glm": ("glm", like_llama(**wide, **HALF)),
        "glm4": ("glm4", like_llama(**wide, **HALF)),
        "glm4_moe": ("glm4_moe", like_llama(**wide, **small, **routed, **HALF)),
        "glm4_moe_lite": ("glm4_moe_lite", like_llama(**deepseek)),
        "glm_moe_dsa": ("glm_moe_dsa", like_llama(**deepseek, **first, **indexed)),
        "minimax": ("minimax", like_llama(**wide, **local, block_size=8, **turns("linear", "full", "linear", "full"))),
        "minimax_m2": ("minimax_m2", like_llama(**wide, **local, rotary_dim=4)),
        "mimo_v2_flash": ("mimo_v2_flash", like_llama(**wide, **routed, **small, **window, v_head_dim=s.head - 3)),
        "exaone4": ("exaone4", like_llama(**window, sliding_window_pattern=4)),
        "smollm3": ("smollm3", like_llama()),
        "seed_oss": ("seed_oss", like_llama(**wide, attention_dropout=0.0, residual_dropout=0.0)),
        "nemotron": ("nemotron", like_llama(**HALF)),
        "nemotron_h": ("nemotron_h", like_llama(
            **wide, **small, **routed, hybrid_override_pattern="M*-E", mamba_num_heads=8, mamba_head_dim=8,
            ssm_state_size=8, n_groups=1, chunk_size=8, moe_shared_expert_intermediate_size=s.expert + 4)),
        "jamba": ("jamba", like_llama(
            **mixed, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
            mamba_d_state=8, use_mamba_kernels=False)),
        "bamba": ("bamba", like_llama(**mamba, attn_layer_indices=[1])),
        "zamba2": ("zamba2", like_llama(
            num_key_value_heads=s.heads, layers_block_type=["mamba", "hybrid"] * 2, mamba_d_state=8, n_mamba_heads=8,
            mamba_ngroups=1, chunk_size=8, num_mem_blocks=1, adapter_rank=5, use_shared_attention_adapter=True)),
        "lfm2": ("lfm2", like_llama(layer_types=short, block_auto_adjust_ff_dim=False)),
        "lfm2_moe": ("lfm2_moe", like_llama(layer_types=short, **small, **mixed, num_dense_layers=1)),
        "ernie4_5": ("ernie4_5", like_llama(**wide)),
        "ernie4_5_moe": ("ernie4_5_moe", like_llama(
            **small, moe_num_experts=s.experts, moe_k=s.top, moe_num_shared_experts=1, moe_layer_start_index=1,
            moe_layer_end_index=3)),
        "hunyuan_v1_dense": ("hunyuan_v1_dense", like_llama(**wide)),
        "hunyuan_v1_moe": ("hunyuan_v1_moe", like_llama(**wide, num_experts=s.experts, moe_topk=s.top)),
        "dots1": ("dots1", like_llama(**wide, **small, **routed, n_shared_experts=1, n_group=1, topk_group=1,
                                      first_k_dense_replace=1, norm_topk_prob=True)),
        "solar_open": ("solar_open", like_llama(**wide, **small, **routed)),
        "arcee": ("arcee", like_llama()),
        "apertus": ("apertus", like_llama(**LLAMA3)),
        "helium": ("helium", like_llama(head_dim=s.hidden // s.heads)),
        "longcat_flash": ("longcat_flash", like_llama(["intermediate_size", "num_hidden_layers"], **longcat)),
        "afmoe": ("afmoe", like_llama(**wide, **small, **mixed, **window, num_dense_layers=1)),
        "persimmon": ("persimmon", like_llama(["num_key_value_heads"])),
        "recurrent_gemma": ("recurrent_gemma", like_llama()),
        "rwkv": ("rwkv", dict(vocab_size=s.vocab, hidden_size=32, attention_hidden_size=32, intermediate_size=48,
                              num_hidden_layers=4, context_length=64)),
        "xlstm": ("xlstm", like_llama()),
        "cwm": ("cwm", like_llama(**wide, **window, **LLAMA3, pad_token_id=0, bos_token_id=1, eos_token_id=2)),
        "nanochat": ("nanochat", like_llama()),
        "bitnet": ("bitnet", like_llama()),
    }


def sizes(name):
    """(model_type, fields) of each size of one of these models."""
    (kind, first), (_, second) = (families(size)[name] for size in SIZES)
    return [(kind, first), (kind, second | SECOND.get(name, {}))]


NAMES = list(families(SIZES[0]))
