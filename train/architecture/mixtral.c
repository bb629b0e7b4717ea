/* Mixtral: a mixture of experts in the place of each MLP; the scores of the chosen experts are normalised. */
#include "architecture/architecture.h"

static const ad_architecture_fact facts[] = {{"model.qk_norm", "false"},
                                             {"model.bias", "none"},
                                             {"model.normalised_scores", "true"},
                                             {"model.sigmoid", "false"},
                                             {"model.score_before_experts", "false"},
                                             {"model.shared_experts", "0"},
                                             {0}};

static const ad_config_row mixtral[] = {{"num_key_value_heads", AD_CONFIG_GIVES, "model.kv_heads", NULL, NULL},
                                        {"head_dim", AD_CONFIG_GIVES, "model.head_dim", NULL, "0"},
                                        {"rms_norm_eps", AD_CONFIG_GIVES, "model.norm_epsilon", NULL, "1e-5"},
                                        {"num_local_experts", AD_CONFIG_GIVES, "model.experts", NULL, "8"},
                                        {"num_experts_per_tok", AD_CONFIG_GIVES, "model.top_k", NULL, "2"},
                                        {"intermediate_size", AD_CONFIG_GIVES, "model.expert_hidden", NULL, NULL},
                                        {"sliding_window", AD_CONFIG_WINDOW, NULL, "null", NULL},
                                        {"router_jitter_noise", AD_CONFIG_MUST, NULL, "0.0", NULL},
                                        {"output_router_logits", AD_CONFIG_MUST, NULL, "false", NULL},
                                        {"router_aux_loss_coef", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                        {0}};

static const ad_tensor_row tensors[] = {{"blocks.#.moe.router", "model.layers.#.block_sparse_moe.gate.weight", 1},
                                        {"blocks.#.moe.gate", "model.layers.#.block_sparse_moe.experts.@.w1.weight", 1},
                                        {"blocks.#.moe.up", "model.layers.#.block_sparse_moe.experts.@.w3.weight", 1},
                                        {"blocks.#.moe.down", "model.layers.#.block_sparse_moe.experts.@.w2.weight", 1},
                                        {0}};

const ad_architecture ad_mixtral = {.name = "MixtralForCausalLM",
                                    .model_type = "mixtral",
                                    .rotary_base = "1000000.0",
                                    .facts = facts,
                                    .config = {ad_config_of_decoders, mixtral, ad_config_passed},
                                    .tensors = {ad_tensors_of_decoders, tensors}};
