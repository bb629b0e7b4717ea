/* Tests that leaves move no more bytes: on powers of two of ranks and leaves, the collectives of a step with train.leaves
 * have in all the bytes of those of a step without, which has a microbatch for each of a rank's leaves. */
#include "world.h"

#include "base/injection.h"
#include "comm/call.h"

enum { ON_RANKS = 4, STEPS = 2 };

/* The bytes in a rank's buffers of collectives in f32, which are those of gradients and parameters. The sums of norms
 * and losses are exact with leaves, and so have other dtypes. */
typedef struct moved {
  uint64_t bytes[AD_EXCHANGE + 1];
} moved;

static void count_bytes(void *context, void *passing) {
  moved *of = context;
  const ad_call *call = ((const ad_call_passing *)passing)->call;
  if (call->dtype == AD_F32) of->bytes[call->op] += call->in_bytes + call->out_bytes;
}

typedef struct job {
  const ad_recipe *recipe;
  moved *ranks;
} job;

static int take_steps(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options};
  ad_step_report report;
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  ad_injection_set(AD_INJECT_CALL, (ad_injection){count_bytes, &j->ranks[ad_comm_rank(comm)]});
  for (int step = 0; step < STEPS; step++) RANK_MUST(comm, ad_run_step(run, step, &report));
  ad_injections_clear();
  ad_run_destroy(run);
  return 0;
}

static void run_with(const char *const *sets, size_t count, moved *ranks) {
  static const char text[] =
      "name: bytes\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
      "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"dp=1\"\n"
      "train: {seed: 4, steps: 4, lr: 1e-2, clip: 0.1, global_batch: 16}\n";
  ad_recipe *recipe = NULL;
  ad_launch_result result = {.size = sizeof result};
  ad_status status = ad_recipe_parse(text, "bytes.yaml", sets, count, &recipe);
  if (status) fail_msg("%s", ad_last_error());
  job j = {recipe, ranks};
  status = launch(ON_RANKS, take_steps, &j, &result);
  if (status) fail_msg("%s on %s", result.message, sets[0]);
  ad_recipe_destroy(recipe);
}

static void leaves_move_the_bytes_of_microbatches(const char *mesh, const char *zero, const char *sync) {
  moved *ranks = shared_memory(2 * ON_RANKS * sizeof *ranks);
  uint64_t all = 0;
  run_with((const char *const[]){mesh, zero, sync, "train.microbatches=4"}, 4, ranks);
  run_with((const char *const[]){mesh, zero, sync, "train.microbatches=4", "train.leaves=16"}, 5, ranks + ON_RANKS);
  for (int rank = 0; rank < ON_RANKS; rank++)
    for (int op = 0; op <= AD_EXCHANGE; op++) {
      uint64_t without = ranks[rank].bytes[op], with = ranks[ON_RANKS + rank].bytes[op];
      all += without;
      if (with != without)
        fail_msg("%s of rank %d on %s, %s: %llu bytes with leaves, %llu without", ad_op_name((ad_collective_op)op),
                 rank, mesh, zero, (unsigned long long)with, (unsigned long long)without);
    }
  assert_true(all > 0);
  munmap(ranks, 2 * ON_RANKS * sizeof *ranks);
}

static const char replicas[] = "mesh=dp_replicate=4", shards[] = "mesh=dp_shard=4",
                  both[] = "mesh=dp_replicate=2 dp_shard=2", at_the_end[] = "train.sync=[none, none, none, all]",
                  scattered[] = "train.sync=[shard, shard, shard, all]",
                  mixed[] = "train.sync=[shard, all, shard, all]";

static void zero_0_moves_no_more(void **state) {
  leaves_move_the_bytes_of_microbatches(replicas, "shard.zero=0", at_the_end);
  leaves_move_the_bytes_of_microbatches(both, "shard.zero=0", at_the_end);
}

static void zero_1_moves_no_more(void **state) {
  leaves_move_the_bytes_of_microbatches(shards, "shard.zero=1", at_the_end);
  leaves_move_the_bytes_of_microbatches(both, "shard.zero=1", at_the_end);
}

static void zero_2_and_3_move_no_more(void **state) {
  static const char *const zero[] = {"shard.zero=2", "shard.zero=3"};
  for (size_t i = 0; i < 2; i++) {
    leaves_move_the_bytes_of_microbatches(shards, zero[i], scattered);
    leaves_move_the_bytes_of_microbatches(both, zero[i], scattered);
    leaves_move_the_bytes_of_microbatches(both, zero[i], mixed);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(zero_0_moves_no_more),
      cmocka_unit_test(zero_1_moves_no_more),
      cmocka_unit_test(zero_2_and_3_move_no_more),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
