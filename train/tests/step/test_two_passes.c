/* Tests the step with backward in two passes, where inputs of later microbatches come before weights of earlier ones:
 * losses, norms, gradients and parameters are those of one pass, bit for bit, for every program on meshes of every
 * kind. Every program gets an input in the middle, so that both passes have work. */
#include "says.h"
#include "deferred.h"
#include "world.h"

#include "base/injection.h"
#include "module/module.h"
#include "step/run.h"

enum { RANKS_MAX = 13, STEPS = 2, PARAMS_MAX = 512, ONE_PASS = -1, ALL_DEFERRED = 99 };

/* A hash of the elements of each parameter that a rank holds, so that different bits are noticed. */
typedef struct marks {
  uint64_t gradient[STEPS][PARAMS_MAX], value[PARAMS_MAX];
} marks;

typedef struct seen {
  ad_step_report report[STEPS];
  marks marks[RANKS_MAX];
  size_t params, bytes[RANKS_MAX];
  int waited; /* operations on all ranks that waited for the second pass of their first microbatch */
} seen;

typedef struct job {
  const ad_recipe *recipe;
  int deferred; /* number of microbatches whose second pass waits; ONE_PASS: backward is one pass */
  seen *seen;
} job;

/* ---- an input in the middle of each tape ---- */

/* Makes the first operand of each tape's first addition an input, as if another stage had computed it. */
static void cut_first_sum(void *context, void *passing) {
  static ad_tensor *with[2];
  ad_operation_passing *at = passing;
  (void)context;
  if (strcmp(at->op->name, "add") || at->operands[0]->op == NULL) return;
  for (const ad_tensor *each = at->tape->last; each; each = each->previous)
    if (!each->op && each->carries && !each->from) return; /* the tape has an input already */
  ad_tape_lend(at->operands[0]);
  with[0] = ad_input_with(at->tape, ad_tensor_array(at->operands[0]), at->operands[0]->grad_dtype, "the cut");
  with[1] = at->operands[1] == at->operands[0] ? with[0] : at->operands[1];
  at->operands = with;
}

static int count_waiting(const ad_run *run) {
  int count = 0;
  for (size_t p = 0; p < ad_program_phase_count(run->program); p++) {
    const ad_tape *t = ad_run_tape(run, p, 0);
    for (const ad_tensor *each = t ? t->last : NULL; each; each = each->previous) count += each->waits;
  }
  return count;
}

typedef struct looking {
  const ad_run *run;
  int waited;
} looking;

/* Counts what waits when the first microbatch's second pass begins. */
static void look(void *context, void *passing) {
  looking *at = context;
  (void)passing;
  if (!at->waited) at->waited = count_waiting(at->run);
}

/* ---- one rank's run ---- */

static uint64_t mark_of(const ad_array *array) {
  const unsigned char *byte = array ? array->data : NULL;
  uint64_t mark = 14695981039346656037u; /* the hash is FNV-1a */
  for (size_t i = 0; byte && i < ad_array_bytes(array); i++) mark = (mark ^ byte[i]) * 1099511628211u;
  return mark;
}

static void keep(uint64_t *to, ad_run *run, ad_param_part part) {
  for (size_t i = 0; i < ad_run_param_count(run); i++)
    if (ad_run_param_at(run, i).held) to[i] = mark_of(ad_run_part(run, i, part));
}

static int take_steps(ad_comm *comm, void *context) {
  job *j = context;
  marks *to = &j->seen->marks[ad_comm_rank(comm)];
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_run *run;
  double alone;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  ad_injection_set(AD_INJECT_OPERANDS, (ad_injection){cut_first_sum, NULL});
  looking at = {run, 0};
  ad_injection_set(AD_INJECT_MICROBATCH, (ad_injection){look, &at});
  if (j->deferred != ONE_PASS) RANK_MUST(comm, defer_weights(run, (size_t)j->deferred));
  if (ad_run_param_count(run) > PARAMS_MAX) abort();
  for (int step = 0; step < STEPS; step++) {
    RANK_MUST(comm, ad_run_loss(run, step, AD_TRAINED_ON, &alone));
    RANK_MUST(comm, ad_run_step(run, step, &j->seen->report[step]));
    keep(to->gradient[step], run, AD_PART_GRADIENT);
  }
  keep(to->value, run, AD_PART_VALUE);
  j->seen->params = ad_run_param_count(run);
  j->seen->bytes[ad_comm_rank(comm)] = ad_run_tape_bytes(run);
  __atomic_add_fetch(&j->seen->waited, at.waited, __ATOMIC_SEQ_CST);
  ad_injections_clear();
  ad_run_destroy(run);
  return 0;
}

static seen *steps_of(const ad_recipe *recipe, int64_t ranks, int deferred) {
  job j = {recipe, deferred, shared_memory(sizeof(seen))};
  ad_launch_result result = {.size = sizeof result};
  ad_status status = launch(ranks, take_steps, &j, &result);
  if (status) fail_msg("%s", result.message);
  return j.seen;
}

static void release(seen *each) { munmap(each, sizeof *each); }

static void same_steps(const ad_recipe *recipe, const seen *one, const seen *two, int deferred) {
  for (int step = 0; step < STEPS; step++) {
    const ad_step_report *a = &one->report[step], *b = &two->report[step];
    if (a->loss == b->loss && a->norm == b->norm && !memcmp(a->losses, b->losses, sizeof a->losses)) continue;
    fail_msg("%s, %d deferred, step %d: loss %.17g and %.17g, norm %.17g and %.17g", recipe->name, deferred, step,
             a->loss, b->loss, a->norm, b->norm);
  }
}

static void same_marks(const ad_recipe *recipe, const seen *one, const seen *two, int deferred) {
  for (int rank = 0; rank < RANKS_MAX; rank++)
    for (size_t i = 0; i < one->params; i++) {
      const marks *a = &one->marks[rank], *b = &two->marks[rank];
      for (int step = 0; step < STEPS; step++)
        if (a->gradient[step][i] != b->gradient[step][i])
          fail_msg("%s, %d deferred, step %d, rank %d: another gradient of parameter %zu", recipe->name, deferred, step,
                   rank, i);
      if (a->value[i] != b->value[i])
        fail_msg("%s, %d deferred: another value of parameter %zu", recipe->name, deferred, i);
    }
}

static void compare(const ad_recipe *recipe) {
  static const int deferrals[] = {0, 1, ALL_DEFERRED};
  int64_t ranks;
  must(ad_recipe_world(recipe, &ranks));
  assert_true(ranks <= RANKS_MAX);
  seen *one = steps_of(recipe, ranks, ONE_PASS);
  assert_true(one->params > 0 && !one->waited);
  for (size_t i = 0; i < sizeof deferrals / sizeof *deferrals; i++) {
    if (deferrals[i] > 1 && recipe->train.microbatches < 3) continue;
    seen *two = steps_of(recipe, ranks, deferrals[i]);
    same_steps(recipe, one, two, deferrals[i]);
    same_marks(recipe, one, two, deferrals[i]);
    assert_true(two->waited > 0);
    release(two);
  }
  release(one);
}

static void compare_shipped(const char *name, const char *set) {
  char path[512];
  ad_recipe *recipe;
  snprintf(path, sizeof path, AD_TEST_SOURCE "/recipes/%s.yaml", name);
  if (ad_recipe_read(path, &set, set != NULL, &recipe)) fail_msg("%s", ad_last_error());
  compare(recipe);
  ad_recipe_destroy(recipe);
}

static void compare_tiny(const char *mesh, const char *train) {
  ad_recipe *recipe = tiny_recipe(mesh, "", train);
  compare(recipe);
  ad_recipe_destroy(recipe);
}

/* ---- each program, on meshes of every kind ---- */

#define STEPPING ", steps: 4, lr: 1e-2, global_batch: 7, microbatches: 3"

static void gpt_in_two_passes_is_gpt(void **state) {
  compare_tiny("dp=1", STEPPING);
  compare_tiny("dp_replicate=2 dp_shard=1", STEPPING ", sync: [none, none, all]");
  compare_shipped("gpt-tp-sp", "train.microbatches=3");
  compare_shipped("gpt-cp", "train.microbatches=3");
}

static void sharded_storage_changes_nothing(void **state) {
  for (int zero = 0; zero < 4; zero++) {
    char train[160];
    snprintf(train, sizeof train, STEPPING "}\nshard: {zero: %d", zero);
    compare_tiny("dp=3", train);
  }
  compare_shipped("hsdp-2x2", NULL);
  compare_shipped("gpt-3d", NULL);
}

static void experts_in_two_passes_are_experts(void **state) {
  compare_shipped("moe-tp2ep", "train.microbatches=3");
  compare_shipped("moe-balance", NULL);
  compare_shipped("moe-cp", NULL);
  compare_shipped("moe-empty", NULL);
}

/* In a decomposition the adversary climbs by gradients of kept values, after each microbatch. */
static void a_decomposition_in_two_passes(void **state) {
  compare_shipped("pools-1", NULL);
  compare_shipped("pools-ragged", NULL);
}

static void an_encoder_and_its_model_in_two_passes(void **state) {
  compare_shipped("ocr-ragged", NULL);
  compare_shipped("ocr-disjoint", NULL);
}

/* ---- memory, compared with the plan ---- */

/* The bytes of one rank that makes the calls of take_steps on backend dry. */
static size_t planned_bytes(const ad_recipe *recipe, int64_t rank, int64_t ranks, int deferred) {
  ad_comm *dry;
  ad_run *run;
  ad_step_report report;
  double alone;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  must(ad_comm_open_dry(rank, ranks, &dry));
  must(ad_run_create(dry, recipe, &options, &run));
  ad_injection_set(AD_INJECT_OPERANDS, (ad_injection){cut_first_sum, NULL});
  if (deferred != ONE_PASS) must(defer_weights(run, (size_t)deferred));
  for (int step = 0; step < STEPS; step++) {
    must(ad_run_loss(run, step, AD_TRAINED_ON, &alone));
    must(ad_run_step(run, step, &report));
  }
  size_t bytes = ad_run_tape_bytes(run);
  ad_injections_clear();
  ad_run_destroy(run);
  ad_comm_close(dry);
  return bytes;
}

static void plans_know_what_waits(void **state) {
  static const int deferrals[] = {ONE_PASS, 0, 1, 2};
  ad_recipe *recipe = tiny_recipe("dp=2", "", STEPPING);
  size_t bytes[4];
  for (int i = 0; i < 4; i++) {
    seen *two = steps_of(recipe, 2, deferrals[i]);
    bytes[i] = two->bytes[0];
    for (int rank = 0; rank < 2; rank++)
      assert_int_equal(planned_bytes(recipe, rank, 2, deferrals[i]), two->bytes[rank]);
    release(two);
  }
  print_message("tapes in bytes: one pass %zu, two %zu, one deferred %zu, two deferred %zu\n", bytes[0], bytes[1],
                bytes[2], bytes[3]);
  assert_true(bytes[1] >= bytes[0] && bytes[2] > bytes[1] && bytes[3] > bytes[2]);
  assert_true(bytes[2] < 2 * bytes[0] && bytes[3] < 3 * bytes[0]);
  ad_recipe_destroy(recipe);
}

/* ---- a second pass that is left out ---- */

/* When the second microbatch's second pass is due, makes its tape forget it. */
static void forget_weights(void *context, void *passing) {
  const ad_run *run = *(const ad_run **)context;
  static int microbatch;
  (void)passing;
  if (microbatch++ == 1) ad_run_tape(run, 0, 1)->defers_weights = 0;
}

/* Skips the second pass of the first microbatch, whose tape the third microbatch then uses. */
static int has_skipped;
static void skip_weights(void *context, void *passing) {
  const ad_run *run = *(const ad_run **)context;
  (void)passing;
  if (has_skipped) return;
  ad_run_tape(run, 0, 0)->defers_weights = 0;
  has_skipped = 1;
}

static void remember_weights(void *context, void *passing) {
  const ad_run *run = *(const ad_run **)context;
  (void)passing;
  if (has_skipped++ == 1) ad_run_tape(run, 0, 0)->defers_weights = 1;
}

static int take_a_tape_that_waits(ad_comm *comm, void *context) {
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_step_report report;
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, context, &options, &run));
  RANK_MUST(comm, defer_weights(run, 1));
  ad_injection_set(AD_INJECT_MICROBATCH, (ad_injection){skip_weights, &run});
  ad_injection_set(AD_INJECT_ORDER, (ad_injection){remember_weights, &run});
  RANK_MUST(comm, ad_run_step(run, 0, &report));
  return 0;
}

static int leave_weights_out(ad_comm *comm, void *context) {
  const ad_recipe *recipe = context;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_step_report report;
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, recipe, &options, &run));
  RANK_MUST(comm, defer_weights(run, 2));
  ad_injection_set(AD_INJECT_MICROBATCH, (ad_injection){forget_weights, &run});
  RANK_MUST(comm, ad_run_step(run, 0, &report));
  return 0;
}

static void ends_with(const char *mistake, int (*function)(ad_comm *, void *), const char *const *facts) {
  ad_recipe *recipe = tiny_recipe("dp=1", "", STEPPING ", sync: [shard, shard, all]");
  ad_launch_result result = {.size = sizeof result};
  assert_int_not_equal(launch(1, function, recipe, &result), AD_OK);
  assert_says_in(mistake, result.message, facts);
  ad_recipe_destroy(recipe);
}

static void weights_that_are_left_out_end_the_step(void **state) {
  ends_with("leave_weights_out", leave_weights_out,
            SAYS_FACTS("ad_reducer_end_microbatch", "embedding.weight", "ad_backward_weights"));
  ends_with("take_a_tape_that_waits", take_a_tape_that_waits, SAYS_FACTS("model", "W"));
}

/* At the begin of a pass no tape may have memory of the pool. */
static void look_at_pool(void *context, void *passing) {
  const ad_run *run = *(const ad_run **)context;
  size_t microbatch = *(size_t *)passing;
  if (!microbatch && ad_run_tape(run, 0, 0)->values->tapes) abort();
}

static int pass_after_pass(ad_comm *comm, void *context) {
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_step_report report;
  ad_run *run;
  double alone;
  RANK_MUST(comm, ad_run_create(comm, context, &options, &run));
  RANK_MUST(comm, defer_weights(run, 1));
  ad_injection_set(AD_INJECT_PHASE, (ad_injection){look_at_pool, &run});
  for (int step = 0; step < STEPS; step++) {
    RANK_MUST(comm, ad_run_loss(run, step, AD_TRAINED_ON, &alone));
    RANK_MUST(comm, ad_run_step(run, step, &report));
  }
  ad_injections_clear();
  ad_run_destroy(run);
  return 0;
}

static void each_step_begins_with_an_empty_pool(void **state) {
  ad_recipe *recipe = tiny_recipe("dp=1", "", STEPPING);
  ad_launch_result result = {.size = sizeof result};
  if (launch(1, pass_after_pass, recipe, &result)) fail_msg("%s", result.message);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpt_in_two_passes_is_gpt),
      cmocka_unit_test(sharded_storage_changes_nothing),
      cmocka_unit_test(experts_in_two_passes_are_experts),
      cmocka_unit_test(an_encoder_and_its_model_in_two_passes),
      cmocka_unit_test(a_decomposition_in_two_passes),
      cmocka_unit_test(plans_know_what_waits),
      cmocka_unit_test(each_step_begins_with_an_empty_pool),
      cmocka_unit_test(weights_that_are_left_out_end_the_step),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
