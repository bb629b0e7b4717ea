/* Qwen3 with a mixture of experts in the place of each MLP. */
#include "architecture/architecture.h"

static const ad_architecture_fact facts[] = {{"model.qk_norm", "true"},
                                             {"model.sigmoid", "false"},
                                             {"model.score_before_experts", "false"},
                                             {"model.shared_experts", "0"},
                                             {0}};

/* intermediate_size is ignored, because it is the width of layers without experts and Qwen3-MoE has none here. */
static const ad_config_row qwen3_moe[] = {
    {"num_key_value_heads", AD_CONFIG_GIVES, "model.kv_heads", NULL, NULL},
    {"head_dim", AD_CONFIG_GIVES, "model.head_dim", NULL, "0"},
    {"rms_norm_eps", AD_CONFIG_GIVES, "model.norm_epsilon", NULL, "1e-6"},
    {"attention_bias", AD_CONFIG_BIAS, NULL, NULL, NULL},
    {"num_experts|num_local_experts", AD_CONFIG_GIVES, "model.experts", NULL, NULL},
    {"num_experts_per_tok", AD_CONFIG_GIVES, "model.top_k", NULL, "8"},
    {"moe_intermediate_size", AD_CONFIG_GIVES, "model.expert_hidden", NULL, NULL},
    {"norm_topk_prob", AD_CONFIG_GIVES, "model.normalised_scores", NULL, "false"},
    {"intermediate_size", AD_CONFIG_PASSED, NULL, NULL, NULL},
    {"decoder_sparse_step", AD_CONFIG_MUST, NULL, "1", NULL},
    {"mlp_only_layers", AD_CONFIG_MUST, NULL, "[]", NULL},
    {"use_sliding_window", AD_CONFIG_WINDOW, NULL, "false", NULL},
    {"max_window_layers", AD_CONFIG_PASSED, NULL, NULL, NULL},
    {"output_router_logits", AD_CONFIG_MUST, NULL, "false", NULL},
    {"router_aux_loss_coef", AD_CONFIG_PASSED, NULL, NULL, NULL},
    {0}};

static const ad_tensor_row tensors[] = {{"blocks.#.moe.router", "model.layers.#.mlp.gate.weight", 1},
                                        {"blocks.#.moe.gate", "model.layers.#.mlp.experts.@.gate_proj.weight", 1},
                                        {"blocks.#.moe.up", "model.layers.#.mlp.experts.@.up_proj.weight", 1},
                                        {"blocks.#.moe.down", "model.layers.#.mlp.experts.@.down_proj.weight", 1},
                                        {0}};

const ad_architecture ad_qwen3_moe = {.name = "Qwen3MoeForCausalLM",
                                      .model_type = "qwen3_moe",
                                      .rotary_base = "10000.0",
                                      .window = 4096,
                                      .has_window_switch = 1,
                                      .has_attention_bias = 1,
                                      .facts = facts,
                                      .config = {ad_config_of_decoders, qwen3_moe, ad_config_passed},
                                      .tensors = {ad_tensors_of_decoders, tensors}};
