"""models.py - the config.json of each tiny model, as the family's models on the hub have it.

D is 96, so that no matrix is square by chance; 4 heads of 32 (head_dim given) or 6 of 16 (it is not); 2 KV heads;
windows of 8 tokens; 8 experts.  `gguf` is the architecture's name in a GGUF; None: no GGUF has this model.
"""


def base(cls, kind, **more):
    c = {"architectures": [cls], "model_type": kind, "vocab_size": 112, "hidden_size": 96, "intermediate_size": 160,
         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
         "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
    c |= more
    return {k: v for k, v in c.items() if v is not ...}


def narrow(cls, kind, **more):
    """Families whose heads are hidden_size / num_attention_heads wide."""
    return base(cls, kind, **{"head_dim": ..., "num_attention_heads": 6, **more})


def every(n, layers, last="full_attention", other="sliding_attention"):
    return [last if (l + 1) % n == 0 else other for l in range(layers)]


MODELS = {}


def add(name, gguf, config, **more):
    MODELS[name] = {"gguf": gguf, "config": config, **more}


# ---- the plain ones -------------------------------------------------------------------------------

add("llama", "llama", base("LlamaForCausalLM", "llama"))
add("llama3", "llama", base("LlamaForCausalLM", "llama", rope_theta=500000.0, max_position_embeddings=131072,
    tie_word_embeddings=True, rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}))
add("mistral", "llama", base("MistralForCausalLM", "mistral", sliding_window=None))
add("mistral-window", None, base("MistralForCausalLM", "mistral", sliding_window=8))
add("qwen2", "qwen2", narrow("Qwen2ForCausalLM", "qwen2", use_sliding_window=False, sliding_window=8,
    max_window_layers=4))
add("qwen3", "qwen3", base("Qwen3ForCausalLM", "qwen3", attention_bias=False, use_sliding_window=False,
    sliding_window=None, max_window_layers=4, tie_word_embeddings=True))
add("seed-oss", "seed_oss", base("SeedOssForCausalLM", "seed_oss", attention_bias=True, attention_out_bias=False,
    mlp_bias=False))
add("ernie4.5", "ernie4_5", base("Ernie4_5ForCausalLM", "ernie4_5", use_bias=False, tie_word_embeddings=True))
add("hunyuan", "hunyuan-dense", base("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", attention_bias=False,
    max_position_embeddings=32768, use_qk_norm=True, tie_word_embeddings=True, rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0,
    "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.0}))

# ---- kinds of attention and norms -------------------------------------------------------------------

add("gemma", "gemma", base("GemmaForCausalLM", "gemma", num_key_value_heads=1, hidden_act="gelu",
    hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True))
add("gemma2", "gemma2", base("Gemma2ForCausalLM", "gemma2", hidden_act="gelu_pytorch_tanh",
    hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=32, sliding_window=8, attn_logit_softcapping=50.0,
    final_logit_softcapping=30.0, tie_word_embeddings=True))
add("gemma3", "gemma3", base("Gemma3ForCausalLM", "gemma3_text", num_hidden_layers=7, hidden_act=...,
    hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=32, sliding_window=8, sliding_window_pattern=6,
    rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling={"factor": 8.0, "rope_type": "linear"},
    attn_logit_softcapping=None, final_logit_softcapping=None, tie_word_embeddings=True))
add("phi3", "phi3", narrow("Phi3ForCausalLM", "phi3", sliding_window=8, rope_scaling=None,
    original_max_position_embeddings=256, pad_token_id=0))
add("phi3-long", "phi3", narrow("Phi3ForCausalLM", "phi3", sliding_window=None, max_position_embeddings=4096,
    original_max_position_embeddings=16, partial_rotary_factor=0.75, tie_word_embeddings=True, pad_token_id=0,
    rope_scaling={"type": "longrope", "long_factor": [1.0, 1.1, 1.4, 2.5, 5.0, 9.0],
                  "short_factor": [1.0, 1.05, 1.1, 1.3, 1.7, 2.2]}), by_length=True)
add("smollm3", "smollm3", narrow("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=5, rope_theta=5000000.0,
    no_rope_layers=[1, 1, 1, 0, 1], no_rope_layer_interval=4, use_sliding_window=False, sliding_window=None,
    attention_bias=False, mlp_bias=False, tie_word_embeddings=True, pad_token_id=0))
add("olmo2", "olmo2", narrow("Olmo2ForCausalLM", "olmo2", rope_theta=500000.0, attention_bias=False, pad_token_id=0))
add("olmo3", "olmo2", narrow("Olmo3ForCausalLM", "olmo3", num_hidden_layers=5, rope_theta=500000.0, sliding_window=8,
    attention_bias=False, layer_types=every(4, 5), max_position_embeddings=1024, pad_token_id=0,
    rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "beta_fast": 32.0,
                  "beta_slow": 1.0, "attention_factor": 1.2079441541679836}))
add("granite", "granite", narrow("GraniteForCausalLM", "granite", attention_bias=False, mlp_bias=False,
    attention_multiplier=0.2, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
    tie_word_embeddings=True, pad_token_id=0))
add("ministral3", "mistral3", base("Ministral3ForCausalLM", "ministral3", rope_theta=..., sliding_window=None,
    max_position_embeddings=256, tie_word_embeddings=True, rope_parameters={"rope_type": "yarn", "type": "yarn",
    "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}))
add("exaone4", "exaone4", base("Exaone4ForCausalLM", "exaone4", num_hidden_layers=5, rope_theta=1000000.0,
    sliding_window=8, sliding_window_pattern="LLLG", layer_types=every(4, 5), pad_token_id=0))
add("cohere2", "cohere2", narrow("Cohere2ForCausalLM", "cohere2", rms_norm_eps=..., layer_norm_eps=1e-5,
    num_hidden_layers=5, logit_scale=0.25, sliding_window=8, sliding_window_pattern=4, layer_types=every(4, 5),
    attention_bias=False, use_gated_activation=True, use_parallel_block=True, use_parallel_embedding=True,
    use_qk_norm=False, position_embedding_type="rope_gptj", rotary_pct=1.0, order_of_interleaved_layers="local_attn_first",
    rope_scaling=None, tie_word_embeddings=..., pad_token_id=0))
add("nemotron", "nemotron", narrow("NemotronForCausalLM", "nemotron", rms_norm_eps=..., norm_eps=1e-5,
    hidden_act="relu2", partial_rotary_factor=0.5, attention_bias=False, mlp_bias=False))
add("glm4", "glm4", base("Glm4ForCausalLM", "glm4", attention_bias=True, partial_rotary_factor=0.5, pad_token_id=0))

# ---- experts ----------------------------------------------------------------------------------------

add("qwen3-moe", "qwen3moe", base("Qwen3MoeForCausalLM", "qwen3_moe", attention_bias=False, decoder_sparse_step=1,
    mlp_only_layers=[], moe_intermediate_size=64, norm_topk_prob=True, num_experts=8, num_experts_per_tok=2,
    use_sliding_window=False, sliding_window=None, max_window_layers=4, router_aux_loss_coef=0.001,
    output_router_logits=False))
add("mixtral", "llama", narrow("MixtralForCausalLM", "mixtral", num_local_experts=8, num_experts_per_tok=2,
    sliding_window=None, router_aux_loss_coef=0.02, output_router_logits=False),
    scaled={"block_sparse_moe.gate": 4})        # else bf16 chooses another expert somewhere
add("qwen2-moe", "qwen2moe", narrow("Qwen2MoeForCausalLM", "qwen2_moe", decoder_sparse_step=1, mlp_only_layers=[],
    moe_intermediate_size=64, shared_expert_intermediate_size=128, norm_topk_prob=False, num_experts=8,
    num_experts_per_tok=2, use_sliding_window=False, sliding_window=8, max_window_layers=4))
add("olmoe", "olmoe", narrow("OlmoeForCausalLM", "olmoe", rms_norm_eps=1e-5, intermediate_size=64, num_experts=8,
    num_experts_per_tok=2, norm_topk_prob=False, clip_qkv=None, attention_bias=False, pad_token_id=0))
add("gpt-oss", "gpt-oss", base("GptOssForCausalLM", "gpt_oss", intermediate_size=64, num_local_experts=8,
    num_experts_per_tok=2, experts_per_token=2, attention_bias=True, rms_norm_eps=1e-5, sliding_window=8,
    initial_context_length=64, max_position_embeddings=2048, rope_theta=150000.0, swiglu_limit=7.0,
    layer_types=["sliding_attention", "full_attention"] * 2, rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0,
    "factor": 32.0, "original_max_position_embeddings": 64, "rope_type": "yarn", "truncate": False}, pad_token_id=0),
    many="transposed")
add("gpt-oss-mxfp4", "gpt-oss", MODELS["gpt-oss"]["config"] | {"quantization_config": {"quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                               "lm_head"]}}, many="transposed", mxfp4=True, bound=0.06)
add("glm4-moe", "glm4moe", base("Glm4MoeForCausalLM", "glm4_moe", attention_bias=True, partial_rotary_factor=0.5,
    first_k_dense_replace=1, moe_intermediate_size=64, n_group=1, topk_group=1, n_routed_experts=8,
    n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=2, routed_scaling_factor=2.5, use_qk_norm=True,
    num_nextn_predict_layers=0, pad_token_id=0))
add("glm4-moe-drafts", "glm4moe", MODELS["glm4-moe"]["config"] | {"num_nextn_predict_layers": 1}, drafts=True)
add("minimax-m2", "minimax-m2", base("MiniMaxM2ForCausalLM", "minimax_m2", intermediate_size=64, num_local_experts=8,
    num_experts_per_tok=2, rotary_dim=16, scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True,
    qk_norm_type="per_layer", rope_theta=5000000.0))
add("granite-moe", "granitemoe", narrow("GraniteMoeForCausalLM", "granitemoe", intermediate_size=64,
    attention_bias=False, attention_multiplier=0.2, embedding_multiplier=12.0, residual_multiplier=0.22,
    logits_scaling=6.0, num_local_experts=8, num_experts_per_tok=2, tie_word_embeddings=True, pad_token_id=0))
add("ernie4.5-moe", "ernie4_5-moe", base("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", use_bias=False,
    moe_intermediate_size=64, moe_k=2, moe_num_experts=8, moe_num_shared_experts=2, moe_layer_start_index=1,
    moe_layer_end_index=3, moe_layer_interval=1, moe_capacity=[64, 64, 64], moe_gate="topk", moe_use_aux_free=True,
    tie_word_embeddings=True, pad_token_id=0))
add("llama4", "llama4", base("Llama4ForCausalLM", "llama4_text", num_hidden_layers=5, intermediate_size=64,
    intermediate_size_mlp=160, num_local_experts=8, num_experts_per_tok=1, interleave_moe_layer_step=2,
    attention_chunk_size=8192, attn_temperature_tuning=True, floor_scale=8192, attn_scale=0.1, use_qk_norm=True,
    no_rope_layers=[1, 1, 1, 0, 1], no_rope_layer_interval=4, attention_bias=False, rope_theta=500000.0,
    rope_scaling=None, pad_token_id=0), many="transposed")
add("llama4-chunks", None, MODELS["llama4"]["config"] | {"attention_chunk_size": 8, "floor_scale": 16,
    "use_qk_norm": False}, many="transposed")        # a GGUF has no keys for these

# ---- a recurrent state ------------------------------------------------------------------------------

STATE = dict(linear_conv_kernel_dim=4, linear_key_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
    linear_value_head_dim=32, partial_rotary_factor=0.25, full_attention_interval=4, rope_theta=10000000.0)
add("qwen3-next", "qwen3next", base("Qwen3NextForCausalLM", "qwen3_next", attention_bias=False, decoder_sparse_step=1,
    mlp_only_layers=[], moe_intermediate_size=64, shared_expert_intermediate_size=64, norm_topk_prob=True,
    num_experts=8, num_experts_per_tok=2, **STATE))
add("qwen3.5", "qwen35", base("Qwen3_5ForCausalLM", "qwen3_5_text", attention_bias=False, attn_output_gate=True,
    layer_types=every(4, 4, other="linear_attention"), **STATE))
add("qwen3.5-moe", "qwen35moe", base("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", attention_bias=False,
    attn_output_gate=True, layer_types=every(4, 4, other="linear_attention"), moe_intermediate_size=64,
    shared_expert_intermediate_size=64, num_experts=8, num_experts_per_tok=2, intermediate_size=..., **STATE))

# ---- latent KV ---------------------------------------------------------------------------------------

LATENT = dict(num_key_value_heads=4, kv_lora_rank=64, q_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16,
    v_head_dim=32, head_dim=..., first_k_dense_replace=1, moe_intermediate_size=64, n_routed_experts=8,
    n_shared_experts=1, num_experts_per_tok=2, attention_bias=False, pad_token_id=0)
YARN = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0}
add("deepseek-v2", "deepseek2", base("DeepseekV2ForCausalLM", "deepseek_v2", **LATENT,
    topk_method="greedy", scoring_func="softmax", norm_topk_prob=False, routed_scaling_factor=1.0, n_group=1,
    topk_group=1, max_position_embeddings=512, rope_scaling={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}))
add("deepseek-v3", "deepseek2", base("DeepseekV3ForCausalLM", "deepseek_v3", **LATENT, topk_method="noaux_tc",
    scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5, n_group=4, topk_group=2,
    max_position_embeddings=512, rope_scaling=YARN))
add("glm4-moe-lite", "deepseek2", base("Glm4MoeLiteForCausalLM", "glm4_moe_lite", **LATENT, topk_method="noaux_tc",
    norm_topk_prob=True, routed_scaling_factor=1.8, n_group=1, topk_group=1, partial_rotary_factor=1.0,
    rope_theta=1000000.0))

add("deepseek-v2-lite", "deepseek2", base("DeepseekV2ForCausalLM", "deepseek_v2", **LATENT | {"q_lora_rank": None},
    topk_method="group_limited_greedy", scoring_func="softmax", norm_topk_prob=False, routed_scaling_factor=16.0,
    n_group=4, topk_group=2, rope_scaling=None))
add("mistral4", None, base("Mistral4ForCausalLM", "mistral4", **LATENT, rope_theta=..., norm_topk_prob=True,
    routed_scaling_factor=1.0, n_group=4, topk_group=2, rope_parameters={"rope_type": "yarn", "type": "yarn",
    "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 16, "max_position_embeddings": 256,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}))

# ---- Gemma 4 -------------------------------------------------------------------------------------------

GEMMA4 = dict(num_hidden_layers=6, hidden_act=..., hidden_activation="gelu_pytorch_tanh", rope_theta=...,
    global_head_dim=64, num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=8,
    layer_types=every(3, 6), final_logit_softcapping=30.0, hidden_size_per_layer_input=0, num_kv_shared_layers=0,
    use_double_wide_mlp=False, vocab_size_per_layer_input=112, attention_bias=False, tie_word_embeddings=True,
    pad_token_id=0, rope_parameters={
        "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
add("gemma4", "gemma4", base("Gemma4ForCausalLM", "gemma4_text", enable_moe_block=False, **GEMMA4),
    scaled={"q_norm": 0.125})
add("gemma4-moe", "gemma4", base("Gemma4ForCausalLM", "gemma4_text", enable_moe_block=True, num_experts=8,
    top_k_experts=2, moe_intermediate_size=64, **GEMMA4), scaled={"q_norm": 0.125})

add("gemma4-e", "gemma4", base("Gemma4ForCausalLM", "gemma4_text", enable_moe_block=False, **GEMMA4 | {
    "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
    "attention_k_eq_v": False, "num_global_key_value_heads": None}), scaled={"q_norm": 0.125})

# ---- text parts of models with towers --------------------------------------------------------------------


def tower(cls, kind, of, vision, **more):
    """The text model `of` below text_config, as vision-language models have it."""
    text = {k: v for k, v in MODELS[of]["config"].items() if k not in ("architectures", "bos_token_id", "eos_token_id")}
    return {"architectures": [cls], "model_type": kind, "bos_token_id": 1, "eos_token_id": 2,
            "text_config": text, "vision_config": vision, **more}


SMALL = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28,
    patch_size=14)
add("gemma3-vision", "gemma3", tower("Gemma3ForConditionalGeneration", "gemma3", "gemma3",
    {"model_type": "siglip_vision_model", **SMALL}, mm_tokens_per_image=4, image_token_index=100, boi_token_index=101,
    eoi_token_index=102, tie_word_embeddings=True))
add("mistral3-vision", "llama", tower("Mistral3ForConditionalGeneration", "mistral3", "mistral",
    {"model_type": "pixtral", "head_dim": 16, **SMALL}, image_token_index=10, projector_hidden_act="gelu",
    multimodal_projector_bias=False, spatial_merge_size=2, vision_feature_layer=-1, tie_word_embeddings=False))
add("ministral3-vision", "mistral3", tower("Mistral3ForConditionalGeneration", "mistral3", "ministral3",
    {"model_type": "pixtral", "head_dim": 16, **SMALL}, image_token_index=10, projector_hidden_act="gelu",
    multimodal_projector_bias=False, spatial_merge_size=2, vision_feature_layer=-1, tie_word_embeddings=True))
add("qwen3.5-vision", "qwen35", tower("Qwen3_5ForConditionalGeneration", "qwen3_5", "qwen3.5",
    {"model_type": "qwen3_5", "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
     "out_hidden_size": 96, "patch_size": 14, "num_position_embeddings": 16}, image_token_id=100, video_token_id=101,
    vision_start_token_id=102, vision_end_token_id=103, tie_word_embeddings=False))
# llama.cpp's converter leaves out the warmth of queries
MODELS["mistral4-cool"] = {"config": MODELS["mistral4"]["config"] | {"rope_parameters":
    MODELS["mistral4"]["config"]["rope_parameters"] | {"llama_4_scaling_beta": 0.0}}}
add("mistral4-vision", "mistral4", tower("Mistral3ForConditionalGeneration", "mistral3", "mistral4-cool",
    {"model_type": "pixtral", "head_dim": 16, **SMALL}, image_token_index=10, projector_hidden_act="gelu",
    multimodal_projector_bias=False, spatial_merge_size=2, vision_feature_layer=-1, tie_word_embeddings=False))
del MODELS["mistral4-cool"]
