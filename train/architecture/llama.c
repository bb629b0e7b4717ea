/* Llama, and Mistral. */
#include "architecture/architecture.h"

static const ad_architecture_fact facts[] = {{"model.qk_norm", "false"}, {0}};

static const ad_config_row llama[] = {{"num_key_value_heads", AD_CONFIG_GIVES, "model.kv_heads", NULL, "0"},
                                      {"head_dim", AD_CONFIG_GIVES, "model.head_dim", NULL, "0"},
                                      {"intermediate_size", AD_CONFIG_GIVES, "model.d_hidden", NULL, NULL},
                                      {"rms_norm_eps", AD_CONFIG_GIVES, "model.norm_epsilon", NULL, "1e-6"},
                                      {"attention_bias", AD_CONFIG_BIAS, NULL, NULL, NULL},
                                      {"mlp_bias", AD_CONFIG_BIAS, NULL, NULL, NULL},
                                      {"pretraining_tp", AD_CONFIG_MUST, NULL, "1", NULL},
                                      {0}};

const ad_architecture ad_llama = {.name = "LlamaForCausalLM",
                                  .model_type = "llama",
                                  .rotary_base = "10000.0",
                                  .has_attention_bias = 1,
                                  .has_mlp_bias = 1,
                                  .facts = facts,
                                  .config = {ad_config_of_decoders, llama, ad_config_passed},
                                  .tensors = {ad_tensors_of_decoders, ad_tensors_of_mlp}};

static const ad_architecture_fact mistral_facts[] = {{"model.qk_norm", "false"}, {"model.bias", "none"}, {0}};

static const ad_config_row mistral[] = {{"num_key_value_heads", AD_CONFIG_GIVES, "model.kv_heads", NULL, NULL},
                                        {"head_dim", AD_CONFIG_GIVES, "model.head_dim", NULL, "0"},
                                        {"intermediate_size", AD_CONFIG_GIVES, "model.d_hidden", NULL, NULL},
                                        {"rms_norm_eps", AD_CONFIG_GIVES, "model.norm_epsilon", NULL, "1e-6"},
                                        {"sliding_window", AD_CONFIG_WINDOW, NULL, "null", NULL},
                                        {0}};

const ad_architecture ad_mistral = {.name = "MistralForCausalLM",
                                    .model_type = "mistral",
                                    .rotary_base = "10000.0",
                                    .window = 4096,
                                    .facts = mistral_facts,
                                    .config = {ad_config_of_decoders, mistral, ad_config_passed},
                                    .tensors = {ad_tensors_of_decoders, ad_tensors_of_mlp}};
