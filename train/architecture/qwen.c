/* The dense Qwen models. Qwen2 has biases on queries, keys and values; Qwen3 has norms on queries and keys. */
#include "architecture/architecture.h"

/* Keys of config.json that both Qwen2 and Qwen3 have. */
static const ad_config_row qwen[] = {{"use_sliding_window", AD_CONFIG_WINDOW, NULL, "false", NULL},
                                     {"max_window_layers", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                     {"num_key_value_heads", AD_CONFIG_GIVES, "model.kv_heads", NULL, NULL},
                                     {"intermediate_size", AD_CONFIG_GIVES, "model.d_hidden", NULL, NULL},
                                     {"rms_norm_eps", AD_CONFIG_GIVES, "model.norm_epsilon", NULL, "1e-6"},
                                     {0}};

static const ad_architecture_fact qwen2_facts[] = {{"model.qk_norm", "false"}, {"model.bias", "qkv"}, {0}};
static const ad_config_row qwen2[] = {{"head_dim", AD_CONFIG_GIVES, "model.head_dim", NULL, "0"}, {0}};

const ad_architecture ad_qwen2 = {.name = "Qwen2ForCausalLM",
                                  .model_type = "qwen2",
                                  .rotary_base = "10000.0",
                                  .window = 4096,
                                  .has_window_switch = 1,
                                  .facts = qwen2_facts,
                                  .config = {ad_config_of_decoders, qwen, qwen2, ad_config_passed},
                                  .tensors = {ad_tensors_of_decoders, ad_tensors_of_mlp}};

static const ad_architecture_fact qwen3_facts[] = {{"model.qk_norm", "true"}, {0}};
static const ad_config_row qwen3[] = {{"head_dim", AD_CONFIG_GIVES, "model.head_dim", NULL, "128"},
                                      {"attention_bias", AD_CONFIG_BIAS, NULL, NULL, NULL},
                                      {0}};

const ad_architecture ad_qwen3 = {.name = "Qwen3ForCausalLM",
                                  .model_type = "qwen3",
                                  .rotary_base = "10000.0",
                                  .window = 4096,
                                  .has_window_switch = 1,
                                  .has_attention_bias = 1,
                                  .facts = qwen3_facts,
                                  .config = {ad_config_of_decoders, qwen, qwen3, ad_config_passed},
                                  .tensors = {ad_tensors_of_decoders, ad_tensors_of_mlp}};
