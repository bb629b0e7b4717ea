/* Tests that mixtures of experts train as they do in PyTorch (generate_moe.py): scores applied before or after the
 * experts, a shared expert, balancing loss and bias, limited capacity; on one rank, and with experts spread over ranks,
 * sharded, and both. */
#include <unistd.h>
#include "training.h"

#define SHARDS_SEQUENCE "model.sequence_parallel=true"
#define SUMS_GATE "model.summed_gate=true"

static const world on_one_rank[] = {{1, {"mesh=dp=1"}}, {0}};
static const world over_data[] = {
    {3, {"mesh=dp_shard=3", "shard.zero=0", "views.sparse=efsdp=1 ep=3 etp=1"}},
    {3, {"mesh=dp_shard=3", "shard.zero=3"}},
    {4, {"mesh=dp_shard=4", "shard.zero=3", "views.sparse=efsdp=2 ep=2 etp=1"}},
    {4, {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3", "views.sparse=dp_replicate=2 efsdp=1 ep=2 etp=1"}},
    {0},
};
// etp=1: experts are full, and tokens are sharded over tp.
static const world over_tokens[] = {
    {2, {"mesh=tp=2", "views.sparse=efsdp=1 ep=2 etp=1"}},
    {2, {"mesh=tp=2", "views.sparse=efsdp=1 ep=2 etp=1", SHARDS_SEQUENCE}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=0", "views.sparse=efsdp=1 ep=4 etp=1", SUMS_GATE}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=3", "views.sparse=efsdp=2 ep=2 etp=1", SHARDS_SEQUENCE, SUMS_GATE}},
    {0},
};
// etp=tp: experts are sharded.
static const world over_matrices[] = {
    {2, {"mesh=dp_shard=1 tp=2"}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=3", SHARDS_SEQUENCE}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=0", "views.sparse=efsdp=1 ep=2 etp=2"}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=2", "views.sparse=efsdp=1 ep=2 etp=2", SHARDS_SEQUENCE, SUMS_GATE}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=3", "views.sparse=efsdp=1 ep=2 etp=2", SUMS_GATE}},
    {0},
};
static const world over_three_parts[] = {
    {3, {"mesh=tp=3", "views.sparse=efsdp=1 ep=3 etp=1"}},
    {3, {"mesh=dp_shard=1 tp=3"}},
    {6, {"mesh=dp_shard=2 tp=3", "shard.zero=3", "views.sparse=efsdp=1 ep=2 etp=3", SHARDS_SEQUENCE}},
    {0},
};
static const world over_the_sequence[] = {
    {2, {"mesh=cp=2", "views.sparse=efsdp=1 ep=2 etp=1"}},
    {3, {"mesh=cp=3", "views.sparse=efsdp=3 ep=1 etp=1"}},
    {4, {"mesh=dp_shard=2 cp=2", "shard.zero=3", "views.sparse=efsdp=1 ep=4 etp=1"}},
    {8, {"mesh=dp_shard=2 cp=2 tp=2", "shard.zero=3", "views.sparse=efsdp=2 ep=2 etp=2", SHARDS_SEQUENCE}},
    {8, {"mesh=dp_shard=2 cp=2 tp=2", "shard.zero=0", "views.sparse=efsdp=2 ep=4 etp=1", SUMS_GATE}},
    {0},
};

static const world over_stages[] = {
    {2, {"mesh=pp=2 dp_shard=1"}},
    {4, {"mesh=pp=2 dp_shard=2", "shard.zero=3", "views.sparse=efsdp=1 ep=2 etp=1"}},
    {4, {"mesh=pp=2 tp=2", "views.sparse=ep=2 etp=1", SHARDS_SEQUENCE}},
    {3, {"mesh=pp=3 dp_shard=1"}},
    {0},
};

static const char *const names[] = {"moe-plain",  "moe-softmax",    "moe-sigmoid",
                                    "moe-shared", "moe-normalised", "moe-normalised-sigmoid"};

static void samples_are_those_that_the_documented_rule_draws(void **state) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) with_fixture(names[i], on_one_rank, use_samples);
}

static void train_everywhere(const char *name) {
  train_on(name, on_one_rank);
  train_on(name, over_data);
  train_on(name, over_tokens);
  train_on(name, over_matrices);
  train_on(name, over_the_sequence);
  train_on(name, over_stages);
}

static void experts_with_every_default_train_as_in_pytorch(void **state) { train_everywhere("moe-plain"); }
static void softmax_after_balanced_experts_trains_as_in_pytorch(void **state) { train_everywhere("moe-softmax"); }
static void sigmoid_before_balanced_experts_trains_as_in_pytorch(void **state) {
  train_everywhere("moe-sigmoid");
  train_on("moe-sigmoid", over_three_parts);
}
static void experts_beside_a_shared_one_train_as_in_pytorch(void **state) { train_everywhere("moe-shared"); }
static void normalised_scores_train_as_in_pytorch(void **state) {
  train_everywhere("moe-normalised");
  train_on("moe-normalised", over_three_parts);
}
static void normalised_sigmoids_before_experts_train_as_in_pytorch(void **state) {
  train_everywhere("moe-normalised-sigmoid");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(samples_are_those_that_the_documented_rule_draws),
      cmocka_unit_test(experts_with_every_default_train_as_in_pytorch),
      cmocka_unit_test(softmax_after_balanced_experts_trains_as_in_pytorch),
      cmocka_unit_test(sigmoid_before_balanced_experts_trains_as_in_pytorch),
      cmocka_unit_test(experts_beside_a_shared_one_train_as_in_pytorch),
      cmocka_unit_test(normalised_scores_train_as_in_pytorch),
      cmocka_unit_test(normalised_sigmoids_before_experts_train_as_in_pytorch),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // recipes name their files relative to this folder
  return cmocka_run_group_tests(tests, NULL, NULL);
}
