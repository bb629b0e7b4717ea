/* Tests that models of Hugging Face Transformers train as they do there (generate_transformers.py): each folder that
 * the package saved is read by model.from and trained in f64 on token files, on one rank and on meshes, and every
 * number is compared: Llama, Qwen2, Qwen3, Mistral, Mixtral, Qwen3-MoE. */
#include <unistd.h>
#include "training.h"

#define SHARDS_SEQUENCE "model.sequence_parallel=true"
#define CONVERTS_NORMS "model.convert_norms=true"

static const world dense[] = {
    {1, {"mesh=dp=1"}},
    {3, {"mesh=dp_shard=3", "shard.zero=3"}},
    {3, {"mesh=tp=3", SHARDS_SEQUENCE}},
    {4, {"mesh=dp_shard=2 cp=2", "shard.zero=1"}},
    {6, {"mesh=dp_replicate=2 tp=3", SHARDS_SEQUENCE, CONVERTS_NORMS}},
    {4, {"mesh=pp=2 dp_shard=2", "shard.zero=3"}},
    {0},
};
/* Worlds for models whose number of heads is divisible by 2 and not by 3. */
static const world dense_of_four_heads[] = {
    {1, {"mesh=dp=1"}},
    {2, {"mesh=tp=2", SHARDS_SEQUENCE}},
    {4, {"mesh=tp=4"}},
    {6, {"mesh=dp_shard=3 tp=2", "shard.zero=3"}},
    {4, {"mesh=cp=2 tp=2"}},
    {2, {"mesh=pp=2"}},
    {0},
};
static const world sparse[] = {
    {1, {"mesh=dp_shard=1"}},
    {3, {"mesh=dp_shard=3", "views.sparse=ep=3 etp=1", "shard.zero=3"}},
    {3, {"mesh=dp_shard=1 tp=3", "views.sparse=ep=3 etp=1"}},
    {6, {"mesh=dp_shard=2 tp=3", "views.sparse=ep=2 etp=3"}},
    {4, {"mesh=pp=2 dp_shard=2", "views.sparse=ep=2 etp=1"}},
    {0},
};

static const char *const names[] = {"hf-llama",   "hf-llama-scaled", "hf-qwen2",     "hf-qwen3",
                                    "hf-mistral", "hf-mixtral",      "hf-qwen3-moe", "hf-qwen3-moe-raw"};

static void samples_are_those_that_the_documented_rule_draws(void **state) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) with_fixture(names[i], &dense[0], use_samples);
}

static void llama_trains_as_in_transformers(void **state) { train_on("hf-llama", dense); }
static void scaled_positions_train_as_in_transformers(void **state) {
  train_on("hf-llama-scaled", dense_of_four_heads);
}
static void qwen2_trains_as_in_transformers(void **state) { train_on("hf-qwen2", dense); }
static void qwen3_trains_as_in_transformers(void **state) { train_on("hf-qwen3", dense); }
static void mistral_trains_as_in_transformers(void **state) { train_on("hf-mistral", dense); }
static void mixtral_trains_as_in_transformers(void **state) { train_on("hf-mixtral", sparse); }
static void qwen3_moe_trains_as_in_transformers(void **state) {
  train_on("hf-qwen3-moe", sparse);
  train_on("hf-qwen3-moe-raw", sparse);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(samples_are_those_that_the_documented_rule_draws),
      cmocka_unit_test(llama_trains_as_in_transformers),
      cmocka_unit_test(scaled_positions_train_as_in_transformers),
      cmocka_unit_test(qwen2_trains_as_in_transformers),
      cmocka_unit_test(qwen3_trains_as_in_transformers),
      cmocka_unit_test(mistral_trains_as_in_transformers),
      cmocka_unit_test(mixtral_trains_as_in_transformers),
      cmocka_unit_test(qwen3_moe_trains_as_in_transformers),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // recipes name their files relative to this folder
  return cmocka_run_group_tests(tests, NULL, NULL);
}
