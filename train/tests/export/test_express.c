/* Tests which architecture computes what a recipe's keys say, and the config.json that is written of them: every number
 * under its key, with the sizes that 0 and missing keys mean. That Transformers computes the same is tested in
 * python/tests/torch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/recipe.h"
#include "export/express.h"
#include "says.h"

static ad_recipe *recipe_of(const char *model) {
  char text[1024];
  ad_recipe *recipe;
  snprintf(text, sizeof text,
           "name: tiny\nmodel: {%s}\ndata: {text: [/usr/share/common-licenses], seq: 9}\nmesh: dp=1\n"
           "%strain: {global_batch: 4, steps: 3, lr: 1}\n",
           model, strstr(model, "kind: moe") ? "views: {sparse: \"efsdp=1 ep=1 etp=1\"}\n" : "");
  if (ad_recipe_parse(text, "tiny.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}

/* The document has all members of this JSON text; null also means one that is missing. */
static void has(const char *model, const json_t *document, const char *expected) {
  json_t *wanted = json_loads(expected, 0, NULL), *value;
  const char *key;
  assert_non_null(wanted);
  json_object_foreach(wanted, key, value) {
    json_t *found = json_object_get(document, key);
    if (json_is_null(value) ? !found || json_is_null(found) : json_equal(found, value)) continue;
    char *text = json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT);
    fail_msg("{%s}: %s is %s, not as in %s", model, key, text ? text : "missing", expected);
  }
  json_decref(wanted);
}

#define GPT "kind: gpt, layers: 3, d_model: 12, heads: 3"
#define MOE \
  "kind: moe, layers: 3, d_model: 12, heads: 3, experts: 5, top_k: 2, expert_hidden: 7, normalised_scores: true"
#define DECODER                                                                                                    \
  "\"num_hidden_layers\": 3, \"hidden_size\": 12, \"num_attention_heads\": 3, \"vocab_size\": 256, "               \
  "\"max_position_embeddings\": 9, \"hidden_act\": \"silu\", \"attention_dropout\": 0.0, \"bos_token_id\": null, " \
  "\"eos_token_id\": null, \"torch_dtype\": \"bfloat16\", "

/* A model, the architecture that computes it, and keys of its config.json. */
static const struct {
  const char *model, *architecture, *config;
} cases[] = {
    {GPT ", bias: none", "LlamaForCausalLM",
     "{" DECODER "\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"num_key_value_heads\": 3,"
     " \"head_dim\": 4, \"intermediate_size\": 32, \"attention_bias\": false, \"mlp_bias\": false, \"rope_theta\": "
     "10000.0,"
     " \"rope_scaling\": null, \"tie_word_embeddings\": true, \"pretraining_tp\": 1}"},
    {GPT ", bias: none, kv_heads: 1, head_dim: 8, d_hidden: 20, rotary_base: 500000, norm_epsilon: 1.0e-5, tied: false,"
         " rotary_scaling: [8, 1, 4, 32]",
     "LlamaForCausalLM",
     "{" DECODER "\"num_key_value_heads\": 1, \"head_dim\": 8, \"intermediate_size\": 20, \"rms_norm_eps\": 1e-5,"
     " \"rope_theta\": 500000.0, \"tie_word_embeddings\": false, \"rope_scaling\": {\"rope_type\": \"llama3\","
     " \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": "
     "32}}"},
    {GPT ", bias: attention", "LlamaForCausalLM", "{\"attention_bias\": true, \"mlp_bias\": false}"},
    {GPT ", bias: mlp", "LlamaForCausalLM", "{\"attention_bias\": false, \"mlp_bias\": true}"},
    {GPT ", bias: all", "LlamaForCausalLM", "{\"attention_bias\": true, \"mlp_bias\": true}"},
    {GPT ", bias: qkv", "Qwen2ForCausalLM",
     "{" DECODER
     "\"model_type\": \"qwen2\", \"use_sliding_window\": false, \"attention_bias\": null, \"mlp_bias\": null,"
     " \"intermediate_size\": 32, \"head_dim\": 4}"},
    {GPT ", bias: none, qk_norm: true", "Qwen3ForCausalLM",
     "{" DECODER "\"model_type\": \"qwen3\", \"attention_bias\": false, \"mlp_bias\": null, \"head_dim\": 4}"},
    {GPT ", bias: attention, qk_norm: true", "Qwen3ForCausalLM", "{\"attention_bias\": true, \"mlp_bias\": null}"},
    /* Transformers' Llama needs heads that divide d_model, whatever head_dim is */
    {"kind: gpt, layers: 3, d_model: 12, heads: 6, head_dim: 4, bias: none", "LlamaForCausalLM", "{\"head_dim\": 4}"},
    {"kind: gpt, layers: 3, d_model: 12, heads: 5, head_dim: 4, bias: none", "MistralForCausalLM",
     "{\"model_type\": \"mistral\", \"head_dim\": 4, \"num_attention_heads\": 5, \"num_key_value_heads\": 5,"
     " \"attention_bias\": null, \"mlp_bias\": null, \"sliding_window\": null}"},
    {MOE ", bias: none", "MixtralForCausalLM",
     "{" DECODER "\"model_type\": \"mixtral\", \"num_local_experts\": 5, \"num_experts_per_tok\": 2,"
     " \"intermediate_size\": 7, \"num_key_value_heads\": 3, \"router_jitter_noise\": 0.0,"
     " \"output_router_logits\": false}"},
    {MOE ", bias: none, qk_norm: true", "Qwen3MoeForCausalLM",
     "{" DECODER "\"model_type\": \"qwen3_moe\", \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 7,"
     " \"norm_topk_prob\": true}"},
};

static void every_key_is_written_with_its_number(void **state) {
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_recipe *recipe = recipe_of(cases[i].model);
    const ad_architecture *found;
    json_t *config;
    if (ad_express_find(recipe, &found)) fail_msg("{%s}: %s", cases[i].model, ad_last_error());
    assert_string_equal(found->name, cases[i].architecture);
    if (ad_express_config(recipe, found, AD_BF16, &config)) fail_msg("{%s}: %s", cases[i].model, ad_last_error());
    has(cases[i].model, config, cases[i].config);
    json_decref(config);
    ad_recipe_destroy(recipe);
  }
}

/* What no architecture computes is reported for each of them, with the key and its value. */
static void what_no_architecture_computes_is_reported_of_each(void **state) {
  static const struct {
    const char *model, *facts[6];
  } refused[] = {
      {GPT ", bias: mlp, qk_norm: true", {"LlamaForCausalLM", "model.qk_norm", "Qwen3ForCausalLM", "model.bias"}},
      {GPT ", bias: all, qk_norm: true", {"LlamaForCausalLM", "model.qk_norm", "Qwen3ForCausalLM", "model.bias"}},
      {GPT ", bias: qkv, qk_norm: true", {"LlamaForCausalLM", "model.qk_norm", "Qwen3ForCausalLM", "model.bias"}},
      {"kind: gpt, layers: 3, d_model: 12, heads: 5, head_dim: 4, bias: attention",
       {"LlamaForCausalLM", "model.d_model", "MistralForCausalLM", "model.bias"}},
      {MOE ", bias: none, shared_experts: 1",
       {"MixtralForCausalLM", "model.shared_experts", "1", "Qwen3MoeForCausalLM"}},
      {MOE ", bias: none, sigmoid: true", {"MixtralForCausalLM", "model.sigmoid", "Qwen3MoeForCausalLM"}},
      {MOE ", bias: attention", {"MixtralForCausalLM", "model.bias", "Qwen3MoeForCausalLM", "model.qk_norm"}},
  };
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    ad_recipe *recipe = recipe_of(refused[i].model);
    const ad_architecture *found;
    assert_int_equal(ad_express_find(recipe, &found), AD_INVALID);
    assert_says_all(refused[i].facts);
    const char *kinds = strstr(refused[i].model, "kind: moe") ? "LlamaForCausalLM" : "MixtralForCausalLM";
    assert_null(strstr(ad_last_error(), kinds));  // those of another kind are not named
    ad_recipe_destroy(recipe);
  }
}

static void dtypes_have_the_names_of_transformers(void **state) {
  assert_string_equal(ad_express_dtype(AD_F64), "float64");
  assert_string_equal(ad_express_dtype(AD_F32), "float32");
  assert_string_equal(ad_express_dtype(AD_F16), "float16");
  assert_string_equal(ad_express_dtype(AD_BF16), "bfloat16");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_key_is_written_with_its_number),
      cmocka_unit_test(what_no_architecture_computes_is_reported_of_each),
      cmocka_unit_test(dtypes_have_the_names_of_transformers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
