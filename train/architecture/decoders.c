/* Keys of config.json and tensors that several decoder architectures have. */
#include "architecture/architecture.h"

/* Keys of config.json that all decoder architectures have. */
const ad_config_row ad_config_of_decoders[] = {{"num_hidden_layers", AD_CONFIG_GIVES, "model.layers", NULL, NULL},
                                               {"hidden_size", AD_CONFIG_GIVES, "model.d_model", NULL, NULL},
                                               {"num_attention_heads", AD_CONFIG_GIVES, "model.heads", NULL, NULL},
                                               {"vocab_size", AD_CONFIG_GIVES, "model.vocabulary", NULL, NULL},
                                               {"tie_word_embeddings", AD_CONFIG_GIVES, "model.tied", NULL, "false"},
                                               {"rope_theta", AD_CONFIG_ROTARY, NULL, NULL, NULL},
                                               {"rope_scaling", AD_CONFIG_ROTARY, NULL, NULL, NULL},
                                               {"rope_parameters", AD_CONFIG_ROTARY, NULL, NULL, NULL},
                                               {"partial_rotary_factor", AD_CONFIG_MUST, NULL, "1.0", NULL},
                                               {"sliding_window", AD_CONFIG_WINDOW, NULL, NULL, NULL},
                                               {"use_sliding_window", AD_CONFIG_WINDOW, NULL, NULL, NULL},
                                               {"layer_types", AD_CONFIG_WINDOW, NULL, NULL, NULL},
                                               {"hidden_act", AD_CONFIG_MUST, NULL, "\"silu\"", NULL},
                                               {"attention_dropout", AD_CONFIG_MUST, NULL, "0.0", NULL},
                                               {0}};

/* Keys that change none of the numbers that addend computes: names, ids of the tokens at the beginning and end of
 * texts, how weights were initialised, how texts are generated, the largest position in training, and the weights of
 * auxiliary losses (which a recipe sets by keys of its own). */
const ad_config_row ad_config_passed[] = {{"architectures", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"model_type", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"torch_dtype", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"dtype", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"transformers_version", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"_name_or_path", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"_attn_implementation", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"_attn_implementation_autoset", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"tokenizer_class", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"initializer_range", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"use_cache", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"return_dict", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"bos_token_id", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"eos_token_id", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"pad_token_id", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"max_position_embeddings", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"is_llama_config", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"transformers.js_config", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"id2label", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {"label2id", AD_CONFIG_PASSED, NULL, NULL, NULL},
                                          {0}};

/* Tensors that all decoder architectures have. */
const ad_tensor_row ad_tensors_of_decoders[] = {
    {"embedding.weight", "model.embed_tokens.weight", 0},
    {"blocks.#.norm.attn", "model.layers.#.input_layernorm.weight", 0},
    {"blocks.#.norm.mlp", "model.layers.#.post_attention_layernorm.weight", 0},
    {"blocks.#.attn.wq", "model.layers.#.self_attn.q_proj.weight", 1},
    {"blocks.#.attn.wk", "model.layers.#.self_attn.k_proj.weight", 1},
    {"blocks.#.attn.wv", "model.layers.#.self_attn.v_proj.weight", 1},
    {"blocks.#.attn.wo", "model.layers.#.self_attn.o_proj.weight", 1},
    {"blocks.#.attn.wq_bias", "model.layers.#.self_attn.q_proj.bias", 0},
    {"blocks.#.attn.wk_bias", "model.layers.#.self_attn.k_proj.bias", 0},
    {"blocks.#.attn.wv_bias", "model.layers.#.self_attn.v_proj.bias", 0},
    {"blocks.#.attn.wo_bias", "model.layers.#.self_attn.o_proj.bias", 0},
    {"blocks.#.attn.q_norm", "model.layers.#.self_attn.q_norm.weight", 0},
    {"blocks.#.attn.k_norm", "model.layers.#.self_attn.k_norm.weight", 0},
    {"final.norm.weight", "model.norm.weight", 0},
    {"head.weight", "lm_head.weight", 1},
    {0}};

/* Tensors of a dense MLP, as opposed to a mixture of experts. */
const ad_tensor_row ad_tensors_of_mlp[] = {{"blocks.#.mlp.gate", "model.layers.#.mlp.gate_proj.weight", 1},
                                           {"blocks.#.mlp.up", "model.layers.#.mlp.up_proj.weight", 1},
                                           {"blocks.#.mlp.down", "model.layers.#.mlp.down_proj.weight", 1},
                                           {"blocks.#.mlp.gate_bias", "model.layers.#.mlp.gate_proj.bias", 0},
                                           {"blocks.#.mlp.up_bias", "model.layers.#.mlp.up_proj.bias", 0},
                                           {"blocks.#.mlp.down_bias", "model.layers.#.mlp.down_proj.bias", 0},
                                           {0}};
