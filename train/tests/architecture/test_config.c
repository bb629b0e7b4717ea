/* Tests how a Transformers config.json is read: for each architecture, which recipe keys get which values; and that
 * every setting that addend cannot compute is refused with a sentence that names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>
#include "architecture/config.h"
#include "architecture/folder.h"
#include "base/memory.h"
#include "files/file.h"
#include "says.h"

#define MODELS AD_TEST_SOURCE "/train/tests/architecture/models/"

/* ---- what each committed config.json gives ---- */

#define SIZES "model.layers=1 model.d_model=6 model.heads=3 model.vocabulary=256 model.tied=true model.kv_heads=1 "
#define EXPERTS "model.sigmoid=false model.score_before_experts=false model.shared_experts=0 "
#define PLAIN "model.rotary_base=10000 model.rotary_scaling=[] "
#define LLAMA3 "model.rotary_base=500000 model.rotary_scaling=[8, 1, 4, 32] "

static const struct {
  const char *folder, *architecture;
  int64_t positions;
  const char *values; /* each after its key, in any order */
} models[] = {
    {"llama", "LlamaForCausalLM", 2048,
     SIZES "model.head_dim=4 model.d_hidden=5 model.norm_epsilon=1e-06 model.qk_norm=false model.bias=all " PLAIN},
    {"llama3", "LlamaForCausalLM", 2048,
     SIZES "model.head_dim=4 model.d_hidden=5 model.norm_epsilon=1e-05 model.qk_norm=false model.bias=none " LLAMA3},
    {"llama_v4", "LlamaForCausalLM", 2048,
     SIZES "model.head_dim=4 model.d_hidden=5 model.norm_epsilon=1e-05 model.qk_norm=false model.bias=none " LLAMA3},
    {"qwen2", "Qwen2ForCausalLM", 32768,
     SIZES "model.head_dim=0 model.d_hidden=5 model.norm_epsilon=1e-06 model.qk_norm=false model.bias=qkv " PLAIN},
    {"qwen3", "Qwen3ForCausalLM", 32768,
     SIZES "model.head_dim=4 model.d_hidden=5 model.norm_epsilon=1e-06 model.qk_norm=true model.bias=none " PLAIN},
    {"mistral", "MistralForCausalLM", 131072,
     SIZES "model.head_dim=4 model.d_hidden=5 model.norm_epsilon=1e-06 model.qk_norm=false model.bias=none " PLAIN},
    {"mixtral", "MixtralForCausalLM", 131072,
     SIZES "model.head_dim=4 model.experts=3 model.top_k=2 model.expert_hidden=5 model.norm_epsilon=1e-05 "
           "model.qk_norm=false model.bias=none model.normalised_scores=true model.rotary_base=1000000 "
           "model.rotary_scaling=[] " EXPERTS},
    {"qwen3_moe", "Qwen3MoeForCausalLM", 32768,
     "model.layers=1 model.d_model=6 model.heads=3 model.vocabulary=256 model.tied=false model.kv_heads=1 "
     "model.head_dim=4 model.experts=3 model.top_k=2 model.expert_hidden=4 model.norm_epsilon=1e-06 "
     "model.qk_norm=true model.bias=none model.normalised_scores=true " PLAIN EXPERTS}};
enum { COUNT = sizeof models / sizeof *models };

static const char *path_of(const char *folder) {
  static char path[512];
  snprintf(path, sizeof path, MODELS "%s/config.json", folder);
  return path;
}

static size_t values_in(const char *text) {
  size_t count = 0;
  for (; (text = strstr(text, "model.")); text++) count++;
  return count;
}

static void each_architecture_gives_every_key_of_its_recipe(void **state) {
  for (int m = 0; m < COUNT; m++) {
    ad_config config = {0};
    char pair[128];
    assert_int_equal(ad_config_read(path_of(models[m].folder), &config), AD_OK);
    assert_string_equal(config.architecture->name, models[m].architecture);
    assert_int_equal(config.positions, models[m].positions);
    assert_int_equal(config.refused_count, 0);
    for (size_t i = 0; i < config.count; i++) {
      snprintf(pair, sizeof pair, "%s=%s ", config.values[i].key, config.values[i].text);
      if (!strstr(models[m].values, pair)) fail_msg("%s: %s", models[m].folder, pair);
    }
    assert_int_equal(config.count, values_in(models[m].values));
    ad_config_release(&config);
  }
}

/* ---- edited config.json files that are refused ---- */

/* An edit of one key. value: JSON, NULL: the key is removed; sentence: the expected message. */
typedef struct edit {
  const char *folder, *key, *value, *sentence;
} edit;

static void parse_edited(const edit *e, ad_status expected, ad_config *out) {
  json_t *config = json_load_file(path_of(e->folder), 0, NULL);
  assert_non_null(config);
  json_t *value = e->value ? json_loads(e->value, JSON_DECODE_ANY, NULL) : NULL;
  assert_true(e->value ? !json_object_set_new(config, e->key, value) : !json_object_del(config, e->key));
  char *text = json_dumps(config, 0);
  if (ad_config_parse(text, strlen(text), "config.json", out) != expected)
    fail_msg("%s: %s %s: %s", e->folder, e->key, e->value ? e->value : "removed", ad_last_error());
  free(text);
  json_decref(config);
}

#define NOTHING_ELSE ", which addend does not compute; choose another model"
#define UNKNOWN ", but addend does not know this key; remove the key if it changes no number of the model"
#define TYPE(of, is) \
  "config.json: `model_type` must be \"" of "\", because `architectures` is [\"LlamaForCausalLM\"], but is " is

static const edit refused[] = {
    {"llama", "hidden_act", "\"gelu\"", "hidden_act: must be \"silu\", but is \"gelu\"" NOTHING_ELSE},
    {"llama", "attention_dropout", "0.1", "attention_dropout: must be 0.0, but is 0.1" NOTHING_ELSE},
    {"llama", "pretraining_tp", "2", "pretraining_tp: must be 1, but is 2" NOTHING_ELSE},
    {"llama", "partial_rotary_factor", "0.5", "partial_rotary_factor: must be 1.0, but is 0.5" NOTHING_ELSE},
    {"llama", "attention_bias", "1", "attention_bias: must be true or false, but is 1" NOTHING_ELSE},
    {"llama", "mlp_bias", "\"yes\"", "mlp_bias: must be true or false, but is \"yes\"" NOTHING_ELSE},
    {"llama", "hidden_size", NULL, "hidden_size: is missing; add this key"},
    {"llama", "intermediate_size", "null", "intermediate_size: is missing; add this key"},
    {"llama", "vocab_size", "[2]", "vocab_size: must be a number, true or false, but is [2]"},
    {"llama", "num_attention_heads", "\"4\"", "num_attention_heads: must be a number, true or false, but is \"4\""},
    {"llama", "quantization_config", "{\"bits\": 4}", "quantization_config: is {\"bits\":4}" UNKNOWN},
    {"llama", "auto_map", "{\"AutoModel\": \"m.M\"}", "auto_map: is {\"AutoModel\":\"m.M\"}" UNKNOWN},
    {"llama", "logit_scale", "0.5", "logit_scale: is 0.5" UNKNOWN},
    {"llama", "rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 2}",
     "rope_parameters: rope_type must be \"default\" or \"llama3\", but is \"yarn\"" NOTHING_ELSE},
    {"llama", "rope_parameters", "{\"type\": \"linear\", \"factor\": 2}",
     "rope_parameters: rope_type must be \"default\" or \"llama3\", but is \"linear\"" NOTHING_ELSE},
    {"llama", "rope_parameters", "{\"rope_theta\": 1e4, \"factor\": 2}",
     "rope_parameters.factor: is 2, but addend does not compute this key with rope_type \"default\"; choose another "
     "model"},
    {"llama", "rope_parameters", "{\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.25}",
     "rope_parameters.partial_rotary_factor: is 0.25, but addend does not compute this key with rope_type \"default\"; "
     "choose another model"},
    {"llama", "rope_parameters", "{\"rope_theta\": \"far\"}", "rope_parameters.rope_theta: must be a number"},
    {"llama", "rope_parameters", "[1]", "rope_parameters: must be a JSON object {...}"},
    {"llama", "rope_theta", "500000", "rope_parameters: is given together with rope_theta; keep one of the two keys"},
    {"llama", "rope_scaling", "{}", "rope_parameters: is given together with rope_scaling; keep one of the two keys"},
    {"llama_v4", "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8}",
     "rope_scaling.low_freq_factor: must be a number"},
    {"llama_v4", "rope_scaling", "{\"rope_type\": \"dynamic\", \"factor\": 8}",
     "rope_scaling: rope_type must be \"default\" or \"llama3\", but is \"dynamic\"" NOTHING_ELSE},
    {"qwen2", "layer_types", "[\"sliding_attention\"]",
     "layer_types: every element must be \"full_attention\", since addend computes no other layers"},
    {"qwen2", "layer_types", "\"full_attention\"",
     "layer_types: every element must be \"full_attention\", since addend computes no other layers"},
    {"qwen2", "use_sliding_window", "1", "use_sliding_window: must be true or false, but is 1" NOTHING_ELSE},
    {"qwen2", "layer_types", "[\"sliding_attention\", \"full_attention\"]",
     "layer_types: every element must be \"full_attention\", since addend computes no other layers"},
    {"qwen2", "layer_types", "[\"full_attention\", 1]",
     "layer_types: every element must be \"full_attention\", since addend computes no other layers"},
    {"mistral", "sliding_window", "0", "sliding_window: must be null or a number of tokens of at least 1, but is 0"},
    {"mistral", "sliding_window", "\"wide\"",
     "sliding_window: must be null or a number of tokens of at least 1, but is \"wide\""},
    {"mistral", "sliding_window", "-1", "sliding_window: must be null or a number of tokens of at least 1, but is -1"},
    {"mistral", "sliding_window", "1.5",
     "sliding_window: must be null or a number of tokens of at least 1, but is 1.5"},
    {"qwen2", "layer_types", "{}",
     "layer_types: every element must be \"full_attention\", since addend computes no other layers"},
    {"llama_v4", "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1}",
     "rope_scaling.high_freq_factor: must be a number"},
    {"llama_v4", "rope_scaling",
     "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": \"4\"}",
     "rope_scaling.high_freq_factor: must be a number"},
    {"llama_v4", "rope_scaling",
     "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4}",
     "rope_scaling.original_max_position_embeddings: must be a number"},
    {"llama_v4", "rope_scaling", "{\"rope_type\": 3}",
     "rope_scaling: rope_type must be \"default\" or \"llama3\", but is \"a value that is not a text\"" NOTHING_ELSE},
    {"llama_v4", "rope_theta", "\"far\"", "rope_theta: must be a number"},
    {"mixtral", "layer_types", "[\"chunked_attention\"]",
     "layer_types: every element must be \"full_attention\", since addend computes no other layers"},
    {"llama", "loss_type", "\"ForMaskedLM\"", "loss_type: is \"ForMaskedLM\"" UNKNOWN},
    {"llama", "is_encoder_decoder", "true", "is_encoder_decoder: is true" UNKNOWN},
    {"llama", "per_layer_config", "{\"0\": {\"head_dim\": 8}}",
     "per_layer_config: is {\"0\":{\"head_dim\":8}}" UNKNOWN},
    {"llama", "logits_soft_cap", "30.0", "logits_soft_cap: is 30.0" UNKNOWN},
    {"llama", "neftune_noise_alpha", "5", "neftune_noise_alpha: is 5" UNKNOWN},
    {"qwen2", "num_key_value_heads", NULL, "num_key_value_heads: is missing; add this key"},
    {"qwen2", "attention_bias", "true", "attention_bias: is true" UNKNOWN},
    {"mixtral", "router_jitter_noise", "0.1", "router_jitter_noise: must be 0.0, but is 0.1" NOTHING_ELSE},
    {"mixtral", "output_router_logits", "true", "output_router_logits: must be false, but is true" NOTHING_ELSE},
    {"qwen3_moe", "decoder_sparse_step", "2", "decoder_sparse_step: must be 1, but is 2" NOTHING_ELSE},
    {"qwen3_moe", "mlp_only_layers", "[0]", "mlp_only_layers: must be [], but is [0]" NOTHING_ELSE},
    {"qwen3_moe", "num_local_experts", NULL, "num_experts: is missing; add this key"}};

static void what_is_not_computed_is_refused_by_its_name(void **state) {
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    ad_config config = {0};
    parse_edited(&refused[i], AD_OK, &config);
    if (config.refused_count != 1) fail_msg("%s: %zu refused", refused[i].key, config.refused_count);
    assert_string_equal(config.refused[0], refused[i].sentence);
    ad_config_release(&config);
  }
}

/* A window changes attention from so many tokens on; `value` as above. Transformers' Mistral has one of 4096 where its
 * config.json does not say, Qwen's models only where use_sliding_window is true. */
static const struct {
  edit edit;
  int64_t window;
} windows[] = {{{"mistral", "sliding_window", "null", NULL}, 0},
               {{"mistral", "sliding_window", "64", NULL}, 64},
               {{"mistral", "sliding_window", NULL, NULL}, 4096},
               {{"mistral", "use_sliding_window", "false", NULL}, 0},
               {{"mistral", "layer_types", "[\"full_attention\"]", NULL}, 0},
               {{"mixtral", "sliding_window", NULL, NULL}, 0},
               {{"mixtral", "sliding_window", "128", NULL}, 128},
               {{"llama", "sliding_window", "64", NULL}, 64},
               {{"llama", "use_sliding_window", "false", NULL}, 0},
               {{"llama", "layer_types", "[\"full_attention\"]", NULL}, 0},
               {{"qwen2", "sliding_window", "512", NULL}, 0},
               {{"qwen2", "use_sliding_window", "true", NULL}, 0}, /* its sliding_window is null */
               {{"qwen3", "use_sliding_window", NULL, NULL}, 0},
               {{"qwen3_moe", "sliding_window", "512", NULL}, 0}};

static void a_window_is_as_wide_as_transformers_has_it(void **state) {
  for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
    ad_config config = {0};
    parse_edited(&windows[i].edit, AD_OK, &config);
    if (config.refused_count) fail_msg("%s", config.refused[0]);
    if (config.window != windows[i].window) fail_msg("%s: %lld", windows[i].edit.folder, (long long)config.window);
    ad_config_release(&config);
  }
}

/* Beside a window, layers may have it, too. */
static void layers_of_another_kind_are_refused_beside_a_window(void **state) {
  ad_config config = {0};
  parse_edited(&(edit){"mistral", "layer_types", "[\"sliding_attention\", \"full_attention\"]", NULL}, AD_OK, &config);
  assert_int_equal(config.refused_count, 1);
  ad_config_release(&config);
  json_t *document = json_load_file(path_of("mistral"), 0, NULL);
  json_object_set_new(document, "sliding_window", json_integer(64));
  json_object_set_new(document, "layer_types", json_pack("[s, s]", "chunked_attention", "sliding_attention"));
  char *text = json_dumps(document, 0);
  assert_int_equal(ad_config_parse(text, strlen(text), "config.json", &config), AD_OK);
  assert_int_equal(config.refused_count, 1);
  assert_string_equal(config.refused[0],
                      "layer_types: every element must be \"full_attention\" or \"sliding_attention\", since addend "
                      "computes no other layers");
  ad_config_release(&config);
  free(text);
  json_decref(document);
}

/* Both keys of Qwen's models, of which each alone means nothing. */
static void a_window_that_is_switched_on_counts(void **state) {
  static const char *const folders[] = {"qwen2", "qwen3", "qwen3_moe"};
  for (size_t i = 0; i < 3; i++) {
    ad_config config = {0};
    json_t *document = json_load_file(path_of(folders[i]), 0, NULL);
    json_object_set_new(document, "use_sliding_window", json_true());
    json_object_set_new(document, "sliding_window", json_integer(512));
    json_object_set_new(document, "layer_types", json_pack("[s, s]", "full_attention", "sliding_attention"));
    char *text = json_dumps(document, 0);
    assert_int_equal(ad_config_parse(text, strlen(text), "config.json", &config), AD_OK);
    if (config.refused_count) fail_msg("%s", config.refused[0]);
    assert_int_equal(config.window, 512);
    ad_config_release(&config);
    free(text);
    json_decref(document);
  }
}

/* What generation, fine-tuners and other tasks leave in a config.json; null, false and empty values ask for nothing. */
static void keys_that_change_no_number_are_named_and_not_refused(void **state) {
  static const edit harmless[] = {{"llama", "temperature", "0.6", NULL},
                                  {"llama", "top_p", "0.95", NULL},
                                  {"llama", "num_beams", "4", NULL},
                                  {"llama", "loss_type", "\"ForCausalLM\"", NULL},
                                  {"qwen2", "unsloth_fixed", "true", NULL},
                                  {"qwen2", "unsloth_version", "\"2025.9\"", NULL},
                                  {"mistral", "chunk_size_feed_forward", "0", NULL},
                                  {"mistral", "task_specific_params", "{\"a\": {\"max_length\": 5}}", NULL},
                                  {"qwen3_moe", "output_hidden_states", "true", NULL}};
  for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
    ad_config config = {0};
    parse_edited(&harmless[i], AD_OK, &config);
    if (config.refused_count) fail_msg("%s", config.refused[0]);
    assert_int_equal(config.unread_count, 1);
    assert_string_equal(config.unread[0], harmless[i].key);
    ad_config_release(&config);
  }
  ad_config config = {0};
  parse_edited(&(edit){"llama", "do_sample", "false", NULL}, AD_OK, &config);
  assert_int_equal(config.unread_count, 0);
  ad_config_release(&config);
}

static const edit unusable[] = {
    {"llama", "architectures", "[\"GPT2LMHeadModel\"]",
     "config.json: `architectures` must be a list of one name, LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
     "MistralForCausalLM, MixtralForCausalLM or Qwen3MoeForCausalLM, but is [\"GPT2LMHeadModel\"]"},
    {"llama", "architectures", NULL,
     "config.json: `architectures` must be a list of one name, LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
     "MistralForCausalLM, MixtralForCausalLM or Qwen3MoeForCausalLM, but is nothing"},
    {"llama", "model_type", "\"mistral\"", TYPE("llama", "\"mistral\"")},
    {"llama", "model_type", "3", TYPE("llama", "3")}};

static void another_architecture_is_refused_at_once(void **state) {
  for (size_t i = 0; i < sizeof unusable / sizeof *unusable; i++) {
    ad_config config = {0};
    parse_edited(&unusable[i], AD_INVALID, &config);
    assert_string_equal(ad_last_error(), unusable[i].sentence);
    assert_null(config.architecture);
  }
}

/* Edits that are accepted; `sentence` is the recipe key that the edit gives, and `value` its value. */
static const struct {
  edit edit;
  const char *value;
} given[] = {
    {{"llama", "head_dim", NULL, "model.head_dim"}, "0"},
    {{"llama", "num_key_value_heads", "null", "model.kv_heads"}, "0"},
    {{"llama", "rms_norm_eps", NULL, "model.norm_epsilon"}, "1e-6"},
    {{"llama", "tie_word_embeddings", NULL, "model.tied"}, "false"},
    {{"llama", "mlp_bias", "false", "model.bias"}, "attention"},
    {{"llama", "attention_bias", NULL, "model.bias"}, "mlp"},
    {{"llama", "rope_parameters", "{\"rope_theta\": 123.25, \"partial_rotary_factor\": 1.0}", "model.rotary_base"},
     "123.25"},
    {{"llama", "rope_parameters", NULL, "model.rotary_base"}, "10000.0"},
    {{"llama", "rope_parameters", NULL, "model.rotary_scaling"}, "[]"},
    {{"qwen2", "rms_norm_eps", NULL, "model.norm_epsilon"}, "1e-6"},
    {{"qwen3", "rms_norm_eps", NULL, "model.norm_epsilon"}, "1e-6"},
    {{"mistral", "rms_norm_eps", NULL, "model.norm_epsilon"}, "1e-6"},
    {{"mixtral", "rms_norm_eps", NULL, "model.norm_epsilon"}, "1e-5"},
    {{"qwen3_moe", "rms_norm_eps", NULL, "model.norm_epsilon"}, "1e-6"},
    {{"mistral", "head_dim", NULL, "model.head_dim"}, "0"},
    {{"mixtral", "head_dim", NULL, "model.head_dim"}, "0"},
    {{"qwen3_moe", "head_dim", NULL, "model.head_dim"}, "0"},
    {{"llama", "num_key_value_heads", NULL, "model.kv_heads"}, "0"},
    {{"mixtral", "num_local_experts", NULL, "model.experts"}, "8"},
    {{"mixtral", "num_experts_per_tok", NULL, "model.top_k"}, "2"},
    {{"qwen3_moe", "num_experts_per_tok", NULL, "model.top_k"}, "8"},
    {{"qwen2", "rope_parameters", NULL, "model.rotary_base"}, "10000.0"},
    {{"qwen3", "rope_parameters", NULL, "model.rotary_base"}, "10000.0"},
    {{"mistral", "rope_parameters", NULL, "model.rotary_base"}, "10000.0"},
    {{"qwen3_moe", "rope_parameters", NULL, "model.rotary_base"}, "10000.0"},
    {{"llama_v4", "rope_scaling", "null", "model.rotary_scaling"}, "[]"},
    {{"llama_v4", "rope_theta", NULL, "model.rotary_base"}, "10000.0"},
    {{"mixtral", "rope_parameters", NULL, "model.rotary_base"}, "1000000.0"},
    {{"qwen3", "head_dim", NULL, "model.head_dim"}, "128"},
    {{"qwen3", "attention_bias", "true", "model.bias"}, "attention"},
    {{"qwen3_moe", "norm_topk_prob", NULL, "model.normalised_scores"}, "false"},
    {{"qwen3_moe", "num_experts", "3", "model.experts"}, "3"},
    {{"qwen2", "sliding_window", "512", "model.layers"}, "1"},
    {{"llama", "_flash_attn_2_enabled", "false", "model.layers"}, "1"},
    {{"llama", "pruned_heads", "{}", "model.layers"}, "1"}};

static void what_is_left_out_is_as_transformers_has_it(void **state) {
  for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
    ad_config config = {0};
    size_t at = 0;
    parse_edited(&given[i].edit, AD_OK, &config);
    if (config.refused_count) fail_msg("%s: %s", given[i].edit.key, config.refused[0]);
    while (at < config.count && strcmp(config.values[at].key, given[i].edit.sentence) != 0) at++;
    assert_true(at < config.count);
    assert_string_equal(config.values[at].text, given[i].value);
    ad_config_release(&config);
  }
}

/* The key of config.json behind each value, which messages name; of facts, the architecture. */
static void a_value_names_the_key_that_it_comes_from(void **state) {
  static const char *const of[][3] = {{"llama", "model.rotary_base", "rope_parameters.rope_theta"},
                                      {"llama", "model.rotary_scaling", "rope_parameters"},
                                      {"llama", "model.d_model", "hidden_size"},
                                      {"llama", "model.qk_norm", "LlamaForCausalLM"},
                                      {"llama_v4", "model.rotary_base", "rope_theta"},
                                      {"llama_v4", "model.rotary_scaling", "rope_scaling"},
                                      {"qwen3_moe", "model.experts", "num_experts|num_local_experts"},
                                      {"qwen2", "model.bias", "Qwen2ForCausalLM"}};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    ad_config config = {0};
    size_t at = 0;
    assert_int_equal(ad_config_read(path_of(of[i][0]), &config), AD_OK);
    while (at < config.count && strcmp(config.values[at].key, of[i][1]) != 0) at++;
    assert_true(at < config.count);
    assert_string_equal(config.values[at].from, of[i][2]);
    ad_config_release(&config);
  }
  static const edit biases[] = {{"llama", "mlp_bias", "true", "attention_bias"},
                                {"llama", "mlp_bias", "false", "attention_bias"},
                                {"llama", "attention_bias", "false", "mlp_bias"}};
  for (size_t i = 0; i < 3; i++) {
    ad_config config = {0};
    size_t at = 0;
    parse_edited(&biases[i], AD_OK, &config);
    while (at < config.count && strcmp(config.values[at].key, "model.bias") != 0) at++;
    assert_string_equal(config.values[at].from, biases[i].sentence);
    ad_config_release(&config);
  }
}

static void what_is_no_object_is_refused(void **state) {
  static const char *const texts[][2] = {{"[]", "config.json: the file is not a JSON object"},
                                         {"{", "config.json:1: this is not valid JSON ("},
                                         {"{\"a\": 1, \"a\": 2}", "config.json:1: this is not valid JSON (duplicate"}};
  for (int i = 0; i < 3; i++) {
    ad_config config = {0};
    assert_int_equal(ad_config_parse(texts[i][0], strlen(texts[i][0]), "config.json", &config), AD_INVALID);
    assert_memory_equal(ad_last_error(), texts[i][1], strlen(texts[i][1]));
  }
}

/* ---- folders that cannot be read ---- */

static char folder[64];

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-pretrained-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) { return ad_folder_remove(folder) != AD_OK; }

static void touch(const char *name) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fclose(file);
}

static void config_says(ad_status status, const char *const *facts) {
  ad_config config = {0};
  char *path = NULL;
  assert_int_equal(ad_pretrained_config(folder, &path, &config), status);
  assert_says_all(facts);
  ad_release(path);
}

static void weights_report(ad_status status, const char *const *facts) {
  ad_weights *weights;
  assert_int_equal(ad_pretrained_weights(folder, &weights), status);
  assert_says_all(facts);
}

static void other_files_are_refused_with_what_to_do(void **state) {
  config_says(AD_IO, SAYS_FACTS("config.json", "Transformers"));
  weights_report(AD_IO, SAYS_FACTS("model.safetensors", "model.safetensors.index.json"));
  static const char *const pickled[] = {"a.bin", "a.pt", "a.pth", "pytorch_model.bin.index.json"},
                           *const others[] = {"consolidated.json", "bin", "a.pty", "index.json"};
  for (int i = 0; i < 4; i++) touch(others[i]);
  config_says(AD_IO, SAYS_FACTS("config.json", "Transformers"));
  weights_report(AD_IO, SAYS_FACTS("model.safetensors", "model.safetensors.index.json"));
  for (int i = 0; i < 4; i++) {
    char path[256];
    touch(pickled[i]);
    weights_report(AD_INVALID, SAYS_FACTS(pickled[i]));
    config_says(AD_IO, SAYS_FACTS("config.json", "Transformers")); /* a.pth is not Meta's */
    snprintf(path, sizeof path, "%s/%s", folder, pickled[i]);
    remove(path);
  }
  touch("params.json");
  config_says(AD_INVALID, SAYS_FACTS("Meta's", "params.json"));
  touch("consolidated.00.pth");
  config_says(AD_INVALID, SAYS_FACTS("Meta's", "consolidated.00.pth"));
  snprintf(folder + strlen(folder), 5, "/no");
  config_says(AD_IO, SAYS_FACTS(folder));
  folder[strlen(folder) - 3] = 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_architecture_gives_every_key_of_its_recipe),
      cmocka_unit_test(what_is_not_computed_is_refused_by_its_name),
      cmocka_unit_test(a_window_is_as_wide_as_transformers_has_it),
      cmocka_unit_test(layers_of_another_kind_are_refused_beside_a_window),
      cmocka_unit_test(a_window_that_is_switched_on_counts),
      cmocka_unit_test(a_value_names_the_key_that_it_comes_from),
      cmocka_unit_test(keys_that_change_no_number_are_named_and_not_refused),
      cmocka_unit_test(another_architecture_is_refused_at_once),
      cmocka_unit_test(what_is_left_out_is_as_transformers_has_it),
      cmocka_unit_test(what_is_no_object_is_refused),
      cmocka_unit_test_setup_teardown(other_files_are_refused_with_what_to_do, make_folder, remove_folder)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
