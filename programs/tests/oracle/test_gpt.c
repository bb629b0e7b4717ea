/* Tests that GPT trains as it does in PyTorch (generate.py): each fixture's recipe is run in f64, on one rank, on
 * replicas, and with sharded parameters, heads, vocabulary and sequence, and every number is compared. Only this test
 * sees what a distributed run shares with its reference in one process: samples, targets, masks, positions, formulas,
 * options, the optimizer. */
#include <unistd.h>
#include "training.h"

#define SHARDS_SEQUENCE "model.sequence_parallel=true"
#define CONVERTS_NORMS "model.convert_norms=true"
#define GATHERS_KEYS "model.gather_keys=true"

static const world over_data[] = {
    {1, {"mesh=dp=1"}},
    {3, {"mesh=dp_replicate=3", "shard.zero=0"}},
    {4, {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3"}},
    {6, {"mesh=dp_replicate=2 dp_shard=3", "shard.zero=3", "shard.outer_zero=1"}},
    {0},
};
static const world over_two_parts[] = {
    {2, {"mesh=tp=2"}},
    {2, {"mesh=tp=2", SHARDS_SEQUENCE}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=3", SHARDS_SEQUENCE, CONVERTS_NORMS}},
    {0},
};
static const world over_three_parts[] = {
    {3, {"mesh=tp=3"}},
    {3, {"mesh=tp=3", SHARDS_SEQUENCE}},
    {3, {"mesh=tp=3", SHARDS_SEQUENCE, CONVERTS_NORMS}},
    {0},
};
static const world over_four_parts[] = {
    {4, {"mesh=tp=4"}},
    {4, {"mesh=tp=4", SHARDS_SEQUENCE}},
    {8, {"mesh=cp=2 tp=4", SHARDS_SEQUENCE, CONVERTS_NORMS}},
    {0},
};
static const world over_the_sequence[] = {
    {2, {"mesh=cp=2"}},
    {3, {"mesh=cp=3"}},
    {2, {"mesh=cp=2", GATHERS_KEYS}},
    {3, {"mesh=cp=3", GATHERS_KEYS}},
    {4, {"mesh=dp_shard=2 cp=2", "shard.zero=3"}},
    {0},
};
static const world over_everything[] = {
    {8, {"mesh=dp_shard=2 cp=2 tp=2", "shard.zero=0"}},
    {8, {"mesh=dp_shard=2 cp=2 tp=2", "shard.zero=3", SHARDS_SEQUENCE}},
    {8, {"mesh=dp_replicate=2 cp=2 tp=2", "shard.zero=0", SHARDS_SEQUENCE, CONVERTS_NORMS}},
    {8, {"mesh=dp_shard=2 cp=2 tp=2", "shard.zero=3", GATHERS_KEYS}},
    {0},
};

static const world over_stages[] = {
    {2, {"mesh=pp=2"}},
    {3, {"mesh=pp=3"}},
    {4, {"mesh=pp=2 dp_shard=2", "shard.zero=3"}},
    {2, {"mesh=pp=2", "schedule.stages=4"}},
    {0},
};

static const char *const names[] = {"gpt-tied",       "gpt-untied",       "gpt-masks",    "gpt-schedule",
                                    "gpt-everything", "gpt-grouped",      "gpt-one-key",  "gpt-head-norms",
                                    "gpt-wide-heads", "gpt-narrow-heads", "gpt-mlp-bias", "gpt-sgd",
                                    "gpt-momentum",   "gpt-nesterov"};

static void samples_are_those_that_the_documented_rule_draws(void **state) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) with_fixture(names[i], &over_data[0], use_samples);
}

static void a_tied_model_with_every_default_trains_as_in_pytorch(void **state) {
  train_on("gpt-tied", over_data);
  train_on("gpt-tied", over_two_parts);
  train_on("gpt-tied", over_stages);
}
static void an_untied_model_with_decay_trains_as_in_pytorch(void **state) {
  train_on("gpt-untied", over_data);
  train_on("gpt-untied", over_three_parts);
  train_on("gpt-untied", over_stages);
}
static void masks_and_unequal_microbatches_train_as_in_pytorch(void **state) {
  train_on("gpt-masks", over_data);
  train_on("gpt-masks", over_stages);
}
static void warm_up_cosine_and_clip_train_as_in_pytorch(void **state) {
  train_on("gpt-schedule", over_data);
  train_on("gpt-schedule", over_two_parts);
  train_on("gpt-schedule", over_stages);
}
static void everything_at_once_trains_as_in_pytorch(void **state) {
  train_on("gpt-everything", over_data);
  train_on("gpt-everything", over_the_sequence);
}
static void grouped_heads_train_as_in_pytorch(void **state) {
  train_on("gpt-grouped", over_data);
  train_on("gpt-grouped", over_two_parts);
  train_on("gpt-grouped", over_three_parts);  // more ranks than key heads: each rank has them all
  train_on("gpt-grouped", over_the_sequence);
  train_on("gpt-grouped", over_everything);
}
static void one_head_of_keys_and_biases_train_as_in_pytorch(void **state) {
  train_on("gpt-one-key", over_data);
  train_on("gpt-one-key", over_two_parts);
  train_on("gpt-one-key", over_three_parts);
  train_on("gpt-one-key", over_the_sequence);
  train_on("gpt-one-key", over_everything);
}
static void normalised_heads_train_as_in_pytorch(void **state) {
  train_on("gpt-head-norms", over_data);
  train_on("gpt-head-norms", over_two_parts);
  train_on("gpt-head-norms", over_four_parts);
  train_on("gpt-head-norms", over_the_sequence);
  train_on("gpt-head-norms", over_everything);
}
static void heads_wider_than_the_stream_train_as_in_pytorch(void **state) {
  train_on("gpt-wide-heads", over_data);
  train_on("gpt-wide-heads", over_two_parts);
  train_on("gpt-wide-heads", over_four_parts);  // more ranks than key heads
  train_on("gpt-wide-heads", over_the_sequence);
  train_on("gpt-wide-heads", over_everything);
  train_on("gpt-wide-heads", over_stages);
}
static void heads_narrower_than_the_stream_train_as_in_pytorch(void **state) {
  train_on("gpt-narrow-heads", over_data);
  train_on("gpt-narrow-heads", over_two_parts);
  train_on("gpt-narrow-heads", over_three_parts);
  train_on("gpt-narrow-heads", over_the_sequence);
  train_on("gpt-narrow-heads", over_stages);
}
static void biases_of_the_mlp_alone_train_as_in_pytorch(void **state) {
  train_on("gpt-mlp-bias", over_data);
  train_on("gpt-mlp-bias", over_two_parts);
}
static void sgd_trains_as_in_pytorch(void **state) {
  static const char *const of_sgd[] = {"gpt-sgd", "gpt-momentum", "gpt-nesterov"};
  for (size_t i = 0; i < sizeof of_sgd / sizeof *of_sgd; i++) {
    train_on(of_sgd[i], over_data);
    train_on(of_sgd[i], over_two_parts);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(samples_are_those_that_the_documented_rule_draws),
      cmocka_unit_test(a_tied_model_with_every_default_trains_as_in_pytorch),
      cmocka_unit_test(an_untied_model_with_decay_trains_as_in_pytorch),
      cmocka_unit_test(masks_and_unequal_microbatches_train_as_in_pytorch),
      cmocka_unit_test(warm_up_cosine_and_clip_train_as_in_pytorch),
      cmocka_unit_test(everything_at_once_trains_as_in_pytorch),
      cmocka_unit_test(grouped_heads_train_as_in_pytorch),
      cmocka_unit_test(one_head_of_keys_and_biases_train_as_in_pytorch),
      cmocka_unit_test(normalised_heads_train_as_in_pytorch),
      cmocka_unit_test(heads_wider_than_the_stream_train_as_in_pytorch),
      cmocka_unit_test(heads_narrower_than_the_stream_train_as_in_pytorch),
      cmocka_unit_test(biases_of_the_mlp_alone_train_as_in_pytorch),
      cmocka_unit_test(sgd_trains_as_in_pytorch),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // recipes name their files relative to this folder
  return cmocka_run_group_tests(tests, NULL, NULL);
}
