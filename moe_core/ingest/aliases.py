"""What each thing is called in configs: the first name is the commonest."""

from __future__ import annotations

# Sizes
NUM_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_routed_experts",
    "num_moe_experts",
    "n_experts",
    "ffn_config.moe_num_experts",
    "moe_config.num_experts",
)
TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
    "num_selected_experts",
    "moe_router_topk",
    "ffn_config.moe_top_k",
    "moe_config.num_experts_per_tok",
)
EXPERT_WIDTH = (
    "moe_intermediate_size",
    "expert_ffn_hidden_size",
    "moe_ffn_hidden_size",
    "expert_intermediate_size",
    "expert_intermediate_dim",
    "ffn_config.ffn_hidden_size",
    "moe_config.intermediate_size",
)
ANY_WIDTH = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
"""The width of the experts where no other key states it."""
HIDDEN = ("hidden_size", "d_model", "n_embd")
LATENT = ("moe_latent_size", "routed_expert_hidden_size", "moe_hidden_size")
"""Width of the experts' input and output where it is not the model's."""
ATTENTION_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
DTYPE = ("dtype", "torch_dtype")

# Which layers
LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
SWITCH = ("enable_moe_block", "is_moe", "use_moe", "moe_enabled")
"""Flags that turn the experts of every layer on or off."""
FIRST_DENSE = ("first_k_dense_replace", "num_dense_layers", "moe_layer_num_skipped", "dense_mlp_idx")
"""How many of the first layers are dense."""
DRAFT_LAYERS = (
    "num_nextn_predict_layers",
    "num_mtp_layers",
    "num_mtp_modules",
    "mtp_num_layers",
    "mtp_num_hidden_layers",
    "mtp_config.num_nextn_predict_layers",
)

# Routing
SCORING = (
    "scoring_func",
    "score_function",
    "score_func",
    "moe_score_func",
    "moe_router_score_function",
    "moe_router_activation_func",
    "moe_router_activation",
    "expert_selection_fn",
)
ROUTING_BIAS = (
    "use_routing_bias",
    "use_moe_router_bias",
    "use_expert_bias",
    "moe_router_enable_expert_bias",
    "moe_enable_router_expert_bias",
    "moe_use_aux_free",
)
"""Flags for a correction bias that takes part in the choice of experts only."""
RENORMALIZE = (
    "norm_topk_prob",
    "moe_renormalize",
    "route_norm",
    "norm_expert_weight",
    "ffn_config.moe_normalize_expert_weights",
    "moe_normalize_expert_weights",
)
ROUTED_SCALE = (
    "routed_scaling_factor",
    "route_scale",
    "router_scaling_factor",
    "moe_router_scaling_factor",
    "moe_routed_scaling_factor",
    "moe_router_topk_scaling_factor",
)
GROUPS = ("n_group", "num_expert_group", "moe_router_num_groups")
TOPK_GROUPS = ("topk_group", "moe_router_group_topk")
WEIGHT_ON_INPUT = ("moe_apply_router_weight_on_input", "apply_router_weight_on_input")

# Activation
ACTIVATION = (
    "mlp_hidden_act",
    "hidden_activation",
    "hidden_act",
    "activation_function",
    "ffn_config.ffn_act_fn.name",
)
"""In order of precedence: where a model has several, a former one is what its MLPs read."""
SWIGLU_ALPHA = ("swiglu_alpha",)
SWIGLU_BETA = ("swiglu_beta",)
SWIGLU_CLAMP = ("swiglu_limit",)
SWIGLU_CLAMPS_AFTER_SILU = ("swiglu_limits",)
SITU_GATE_CAP = ("activation_situ_beta", "mlp_gate_softcap")
SITU_LINEAR_CAP = ("activation_situ_linear_beta", "mlp_up_softcap")
EXPERT_BIAS = ("expert_bias", "mlp_bias", "use_bias")

# Shared experts
NUM_SHARED = (
    "n_shared_experts",
    "num_shared_experts",
    "moe_num_shared_experts",
    "num_shared_expert",
)
SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_experts_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
    "share_expert_dims",
    "shared_expert_intermediate_dim",
)

QUANTIZATION = ("quantization_config", "compression_config")
EXPERT_DTYPE = ("expert_dtype", "quantization_config.expert_dtype")
