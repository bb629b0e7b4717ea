/* Tests the step: the same result on every topology, and how it handles non-finite numbers, empty parts and tokens that
 * do not count. */
#include "allocations.h"
#include "says.h"
#include "world.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>
#include "base/memory.h"
#include "array/transit.h"
#include "base/known_bugs.h"
#include "module/module.h"
#include "reduce/known_bugs.h"
#include "step/known_bugs.h"
#include "step/run.h"

#define STEPPING ", steps: 4, lr: 1e-2"
enum { RANKS = 3, STEPS = 2, ELEMENTS_MAX = 1 << 14 };

/* What the ranks of one run saw. */
typedef struct seen {
  ad_step_report report[STEPS];
  double loss_alone;
  double gradient[RANKS][STEPS][ELEMENTS_MAX];
  size_t numel;
} seen;

typedef struct job {
  const ad_recipe *recipe;
  const char *bug;
  seen *seen;
} job;

static void keep_gradient(const job *j, ad_run *run, int step) {
  double *to = j->seen->gradient[ad_comm_rank(ad_run_comm(run))][step];
  size_t numel = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    memcpy(to + numel, gradient->data, ad_array_bytes(gradient));
    numel += ad_array_numel(gradient);
  }
  j->seen->numel = numel;
}

/* A mistake that is in no list of known bugs: the sum of counts is left out. */
static void leave_count_out(void *context, void *passing) {
  ad_transit_passing *at = passing;
  if (!at->transit->what || strcmp(at->transit->what, "count") != 0) return;
  at->handled = 1;
  at->status = AD_OK;
}

static const ad_known_bug *find_bug(const char *name) {
  static const ad_known_bug local_count = {.name = "local-count", .at = {{AD_INJECT_TRANSIT, leave_count_out}}};
  size_t counts[2];
  const ad_known_bug *lists[] = {ad_train_known_bugs(&counts[0]), ad_reduce_known_bugs(&counts[1])};
  for (int l = 0; l < 2; l++)
    for (size_t i = 0; i < counts[l]; i++)
      if (!strcmp(lists[l][i].name, name)) return &lists[l][i];
  return strcmp(name, local_count.name) ? NULL : &local_count;
}

/* Makes a mutation for good: the rank's process ends after the test. */
static void inject(const char *name, ad_known_bug_scene *scene) {
  const ad_known_bug *known = find_bug(name);
  if (!known) abort();
  ad_known_bug_inject(known, scene);
}

static int take_steps(ad_comm *comm, void *context) {
  job *j = context;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_run *run;
  ad_known_bug_scene scene = {.rank = ad_comm_rank(comm), .microbatch = -1};
  if (j->bug) inject(j->bug, &scene);
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  RANK_MUST(comm, ad_run_loss(run, 0, AD_TRAINED_ON, &j->seen->loss_alone));
  for (int step = 0; step < STEPS; step++) {
    RANK_MUST(comm, ad_run_step(run, step, &j->seen->report[step]));
    keep_gradient(j, run, step);
  }
  ad_run_destroy(run);
  return 0;
}

static seen *steps_on(const char *mesh, int64_t ranks, const char *data, const char *train, const char *bug) {
  ad_recipe *recipe = tiny_recipe(mesh, data, train);
  job j = {recipe, bug, shared_memory(sizeof(seen))};
  ad_launch_result result = {.size = sizeof result};
  ad_status status = launch(ranks, take_steps, &j, &result);
  if (status) fail_msg("%s", result.message);
  ad_recipe_destroy(recipe);
  return j.seen;
}

static void release(seen *each) { munmap(each, sizeof *each); }

static double difference(const seen *a, int64_t rank, const seen *b, int64_t other, int step) {
  double worst = 0, largest = 0;
  assert_int_equal(a->numel, b->numel);
  for (size_t i = 0; i < a->numel; i++) {
    worst = fmax(worst, fabs(a->gradient[rank][step][i] - b->gradient[other][step][i]));
    largest = fmax(largest, fabs(b->gradient[other][step][i]));
  }
  return largest > 0 ? worst / largest : worst;
}

static void compare_with_one_rank(const char *data, const char *train) {
  seen *one = steps_on("dp=1", 1, data, train, NULL);
  seen *three = steps_on("dp_replicate=3 dp_shard=1", RANKS, data, train, NULL);
  for (int step = 0; step < STEPS; step++) {
    for (int64_t rank = 0; rank < RANKS; rank++) assert_true(difference(three, rank, one, 0, step) < 1e-12);
    assert_true(fabs(three->report[step].loss - one->report[step].loss) < 1e-12);
    assert_true(fabs(three->report[step].norm - one->report[step].norm) < 1e-12);
    assert_int_equal(three->report[step].count, one->report[step].count);
  }
  release(one);
  release(three);
}

static void a_step_on_three_ranks_is_the_step_of_one(void **state) {
  compare_with_one_rank(", valid: [1, 0.5, 0]", STEPPING ", global_batch: 7, microbatches: 2");
}

static void a_rank_without_rows_takes_part(void **state) {
  compare_with_one_rank("", STEPPING ", global_batch: 2, microbatches: 1");
}

static void a_microbatch_without_rows_takes_part(void **state) {
  compare_with_one_rank("", STEPPING ", global_batch: 2, microbatches: 3");
}

static void reducing_more_often_changes_nothing(void **state) {
  seen *late =
      steps_on("dp=3", RANKS, "", STEPPING ", global_batch: 6, microbatches: 3, sync: [none, none, all]", NULL);
  seen *often =
      steps_on("dp=3", RANKS, "", STEPPING ", global_batch: 6, microbatches: 3, sync: [all, none, all]", NULL);
  assert_true(difference(often, 1, late, 1, 0) < 1e-12);
  release(late);
  release(often);
}

typedef struct counting {
  const ad_recipe *recipe;
  int *count;
} counting;

static int count_reductions(ad_comm *comm, void *context) {
  const counting *c = context;
  ad_run *run;
  ad_step_report report;
  char *text;
  RANK_MUST(comm, ad_run_create(comm, c->recipe, NULL, &run));
  RANK_MUST(comm, ad_run_step(run, 0, &report));
  RANK_MUST(comm, ad_comm_flight_recorder(comm, &text));
  for (const char *at = text; !ad_comm_rank(comm) && (at = strstr(at, " reduce_scatter(")); at++) ++*c->count;
  free(text);
  ad_run_destroy(run);
  return 0;
}

/* Counts the reductions of one step with three microbatches on two ranks. */
static int reductions_of(const char *sync) {
  char train[160];
  ad_launch_result result = {.size = sizeof result};
  snprintf(train, sizeof train, STEPPING ", global_batch: 6, microbatches: 3, sync: %s}\nshard: {zero: 1", sync);
  ad_recipe *recipe = tiny_recipe("dp=2", "", train);
  counting c = {recipe, shared_memory(sizeof *c.count)};
  if (launch(2, count_reductions, &c, &result)) fail_msg("%s", result.message);
  int count = *c.count;
  munmap(c.count, sizeof *c.count);
  ad_recipe_destroy(recipe);
  return count;
}

static void each_microbatch_is_reduced_as_its_own_word_says(void **state) {
  int once = reductions_of("[none, none, all]");
  assert_true(once > 0);
  assert_int_equal(reductions_of("[none, shard, all]"), 2 * once);
  assert_int_equal(reductions_of("[shard, none, all]"), 2 * once);
  assert_int_equal(reductions_of("[shard, shard, all]"), 3 * once);
}

static void replicas_agree_bit_for_bit(void **state) {
  seen *ranks = steps_on("dp=3", RANKS, "", STEPPING ", global_batch: 7, microbatches: 2", NULL);
  for (int64_t rank = 1; rank < RANKS; rank++) {
    assert_memory_equal(ranks->gradient[0], ranks->gradient[rank], sizeof ranks->gradient[0]);
  }
  release(ranks);
}

static void the_loss_alone_is_the_loss_of_the_step(void **state) {
  seen *ranks = steps_on("dp=3", RANKS, ", valid: [1, 0.25]", STEPPING ", global_batch: 5, microbatches: 2", NULL);
  assert_true(ranks->loss_alone == ranks->report[0].loss);
  release(ranks);
}

static double injected_difference(const char *bug) {
  static const char data[] = ", valid: [1, 0.5, 0]", train[] = STEPPING ", global_batch: 8, microbatches: 2";
  seen *right = steps_on("dp=3", RANKS, data, train, NULL), *wrong = steps_on("dp=3", RANKS, data, train, bug);
  double found = difference(wrong, 1, right, 1, 0);
  release(right);
  release(wrong);
  return found;
}

static void injected_bugs_change_the_gradient(void **state) {
  assert_true(injected_difference(NULL) == 0);
  assert_true(injected_difference("mean-of-microbatch-means") > 1e-3);
  assert_true(injected_difference("shifted-slice") > 1e-3);
  assert_true(injected_difference("perturbed-replica") > 1e-6);
  assert_true(injected_difference("local-count") > 1e-3);
}

/* ---- sharded storage, and overflow in f16 ---- */

typedef struct shared_losses {
  double loss[STEPS + 1][2];
  int skipped[RANKS][STEPS];
} shared_losses;

static int train_in_f16(ad_comm *comm, void *context) {
  job *j = context;
  shared_losses *found = (void *)j->seen;
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, NULL, &run));
  double before = 0, after = 0;
  for (int step = 0; step < STEPS; step++) {
    ad_step_report report;
    RANK_MUST(comm, ad_run_loss(run, 0, AD_TRAINED_ON, &before));
    RANK_MUST(comm, ad_run_step(run, step, &report));
    RANK_MUST(comm, ad_run_loss(run, 0, AD_TRAINED_ON, &after));
    found->skipped[ad_comm_rank(comm)][step] = report.skipped;
    found->loss[step][0] = before;
    found->loss[step][1] = after;
    // At step 1 the loss scale is so large that one rank's part of a gradient overflows; step 0 did not overflow.
    ad_run_loss_scale(run)->exponent = step ? 0 : 24;
  }
  ad_run_destroy(run);
  return 0;
}

static void silence(void *context, ad_log_level level, const char *message) {}

static void a_step_that_overflows_is_skipped_on_all_ranks_and_changes_nothing(void **state) {
  for (int zero = 0; zero < 4; zero++) {
    char train[160];
    snprintf(train, sizeof train,
             STEPPING ", global_batch: 6, microbatches: 2}\nshard: {zero: %d}\nprecision: {param: f16", zero);
    ad_recipe *recipe = tiny_recipe("dp=3", "", train);
    shared_losses *found = shared_memory(sizeof *found);
    job j = {.recipe = recipe, .seen = (void *)found};
    ad_launch_result result = {.size = sizeof result};
    ad_set_log(silence, NULL);
    ad_status status = launch(RANKS, train_in_f16, &j, &result);
    ad_set_log(NULL, NULL);
    if (status) fail_msg("%s", result.message);
    for (int rank = 0; rank < RANKS; rank++) {
      assert_false(found->skipped[rank][0]);
      assert_true(found->skipped[rank][1]);
    }
    assert_true(found->loss[0][0] != found->loss[0][1]);
    assert_true(found->loss[1][0] == found->loss[1][1]);
    munmap(found, sizeof *found);
    ad_recipe_destroy(recipe);
  }
}

/* Sums the addends of all ranks by hand, to compare the sum with the gradient. */
typedef struct addend_sums {
  double sum[ELEMENTS_MAX];
  int64_t seen;
} addend_sums;

static void sum_addend(void *context, size_t param, const ad_array *addend) {
  addend_sums *sums = context;
  if (param != 1) return;
  sums->seen++;
  for (size_t i = 0; i < ad_array_numel(addend); i++) sums->sum[i] += ((double *)addend->data)[i];
}

static int compare_addends(ad_comm *comm, void *context) {
  job *j = context;
  static addend_sums sums;
  ad_run *run;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_step_report report;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  memset(&sums, 0, sizeof sums);
  RANK_MUST(comm, ad_run_addends(run, 0, 0, sum_addend, &sums, NULL));
  if (sums.seen != 2) return 1;  // one addend for each microbatch
  const ad_array *gradient = ad_run_part(run, 1, AD_PART_GRADIENT);
  ad_collective add = {.size = sizeof add,
                       .op = AD_ALL_REDUCE,
                       .group = ad_run_everyone(run),
                       .in = sums.sum,
                       .out = sums.sum,
                       .count = (size_t)ad_shape_numel(&gradient->shape),
                       .dtype = AD_F64,
                       .site = AD_HERE};
  RANK_MUST(comm, ad_comm_run(comm, &add));
  RANK_MUST(comm, ad_run_step(run, 0, &report));
  ad_span own = ad_cut(gradient->shape.dim[0], ad_comm_rank(comm), RANKS);
  for (int64_t i = 0; i < own.count; i++)
    if (!(fabs(((double *)gradient->data)[i] - sums.sum[own.first + i]) < 1e-14)) return 1;
  ad_run_destroy(run);
  return 0;
}

static void addends_are_what_the_gradient_is_the_sum_of(void **state) {
  ad_recipe *recipe =
      tiny_recipe("dp=3", ", valid: [1, 0.5, 0]", STEPPING ", global_batch: 7, microbatches: 2}\nshard: {zero: 3");
  job j = {.recipe = recipe};
  ad_launch_result result = {.size = sizeof result};
  must(launch(RANKS, compare_addends, &j, &result));
  ad_recipe_destroy(recipe);
}

/* ---- a step on one rank ---- */

typedef struct single {
  ad_comm *comm;
  ad_recipe *recipe;
  ad_run *run;
} single;

static single open_single(const char *data, const char *train) {
  single s = {.recipe = tiny_recipe("dp=1", data, train)};
  must(ad_comm_open_alone(&s.comm));
  must(ad_run_create(s.comm, s.recipe, NULL, &s.run));
  return s;
}

static void close_single(single *s) {
  ad_run_destroy(s->run);
  ad_comm_close(s->comm);
  ad_recipe_destroy(s->recipe);
}

static void the_loss_falls_on_real_text(void **state) {
  single s = open_single("", ", global_batch: 8, steps: 40, lr: 1e-2, warmup: 4");
  ad_step_report first, last;
  must(ad_run_step(s.run, 0, &first));
  for (int64_t step = 1; step < 40; step++) must(ad_run_step(s.run, step, &last));
  assert_true(first.loss > 4.5 && last.loss < first.loss - 1);
  assert_int_equal(first.count, 8 * 12);
  close_single(&s);
}

static void a_steady_step_allocates_nothing(void **state) {
  single s = open_single("", STEPPING ", global_batch: 6, microbatches: 2");
  ad_step_report report;
  for (int64_t step = 0; step < 3; step++) must(ad_run_step(s.run, step, &report));
  ad_memory_fail_at(0);
  must(ad_run_step(s.run, 3, &report));
  assert_int_equal(ad_memory_fail_at(0), 0);
  close_single(&s);
}

static char warning[256];
static int warnings;
static void keep_warning(void *context, ad_log_level level, const char *message) {
  warnings += level == AD_LOG_WARNING;
  snprintf(warning, sizeof warning, "%s", message);
}

static void a_step_without_counted_tokens_warns_and_continues(void **state) {
  single s = open_single(", valid: [0]", STEPPING ", global_batch: 4, microbatches: 2");
  ad_step_report report;
  warnings = 0;
  ad_set_log(keep_warning, NULL);
  must(ad_run_step(s.run, 7, &report));
  ad_set_log(NULL, NULL);
  assert_int_equal(warnings, 1);
  assert_text_says(warning, "step 7");
  assert_int_equal(report.count, 0);
  assert_true(report.loss == 0 && report.norm == 0);
  must(ad_run_step(s.run, 8, &report));
  close_single(&s);
}

static void a_run_writes_its_own_trace_when_asked(void **state) {
  char path[] = "/tmp/addend-trace-XXXXXX", text[64] = "";
  int file = mkstemp(path);
  assert_true(file >= 0);
  ad_recipe *recipe = tiny_recipe("dp=1", "", STEPPING ", global_batch: 4");
  ad_comm *comm;
  ad_run *run;
  ad_step_report report;
  ad_run_options options = {.size = sizeof options, .trace = path};
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, &options, &run));
  must(ad_run_step(run, 0, &report));
  ad_run_destroy(run);
  close(file); /* the trace was written to another file, which then took this name */
  file = open(path, O_RDONLY);
  assert_true(file >= 0 && read(file, text, sizeof text - 1) > 0);
  assert_non_null(strstr(text, "traceEvents"));
  close(file);
  unlink(path);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

static void no_validation_part_is_reported(void **state) {
  single s = open_single("", STEPPING ", global_batch: 4");
  double loss;
  assert_int_equal(ad_run_loss(s.run, 0, AD_VALIDATION_DRAWN, &loss), AD_INVALID);
  assert_says("data.validation");
  close_single(&s);
}

static void a_world_of_another_size_than_the_mesh_is_refused(void **state) {
  ad_recipe *recipe = tiny_recipe("dp=3", "", STEPPING ", global_batch: 4");
  ad_comm *comm;
  ad_run *run = NULL;
  must(ad_comm_open_alone(&comm));
  assert_int_equal(ad_run_create(comm, recipe, NULL, &run), AD_INVALID);
  assert_null(run);
  assert_says("3");
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

static void a_step_on_backend_dry_checks_everything_and_computes_nothing(void **state) {
  ad_recipe *recipe = tiny_recipe("dp_replicate=3 dp_shard=200", ", valid: [1, 0.5]", STEPPING ", global_batch: 700");
  ad_comm *comm;
  ad_run *run;
  ad_step_report report;
  must(ad_comm_open_dry(457, 600, &comm));
  must(ad_run_create(comm, recipe, NULL, &run));
  must(ad_run_step(run, 0, &report));
  assert_null(ad_run_part(run, 0, AD_PART_VALUE)->data);
  assert_true(ad_run_tape_bytes(run) > 0);
  assert_true(report.loss == 0);
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

static void memory_that_runs_out_leaves_nothing_behind(void **state) {
  ad_recipe *recipe = tiny_recipe("dp=1", "", STEPPING ", global_batch: 4");
  long n = 1;
  for (int created = 0; !created; n++) {
    ad_comm *comm;
    ad_run *run = NULL;
    must(ad_comm_open_alone(&comm));
    ad_memory_fail_at(n);
    ad_status status = ad_run_create(comm, recipe, NULL, &run);
    assert_true(reports_allocation(n, status));
    created = !status;
    ad_run_destroy(run);
    ad_comm_close(comm);
  }
  assert_true(n > 20);
  ad_recipe_destroy(recipe);
}

/* ---- a loss that is NaN ---- */

static int meet_nan(ad_comm *comm, void *context) {
  job *j = context;
  char(*messages)[256] = (void *)j->seen;
  ad_run *run;
  ad_step_report report;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, NULL, &run));
  RANK_MUST(comm, ad_run_step(run, 0, &report));
  float *norm_weight = ad_run_part(run, 1, AD_PART_VALUE)->data;
  if (ad_comm_rank(comm) == 1) norm_weight[0] = NAN;
  RANK_MUST(comm, ad_run_refresh(run, AD_VALUES_WRITTEN));
  ad_status status = ad_run_step(run, 1, &report);
  snprintf(messages[ad_comm_rank(comm)], sizeof messages[0], "%s: %s", ad_status_name(status), ad_last_error());
  ad_run_destroy(run);
  return 0;
}

static void a_loss_that_is_no_number_stops_all_ranks_and_names_step_and_rank(void **state) {
  ad_recipe *recipe = tiny_recipe("dp=3", "", STEPPING ", global_batch: 6");
  job j = {.recipe = recipe, .seen = shared_memory(sizeof(seen))};
  char(*messages)[256] = (void *)j.seen;
  ad_launch_result result = {.size = sizeof result};
  must(launch(RANKS, meet_nan, &j, &result));
  for (int rank = 0; rank < RANKS; rank++) {
    assert_text_says(messages[rank], "step 1", "rank 1");
  }
  release(j.seen);
  ad_recipe_destroy(recipe);
}

/* Finite losses whose weighted sum is not: no rank is to blame. */
static void a_sum_of_losses_that_is_no_number_names_no_rank(void **state) {
  ad_recipe *recipe = tiny_recipe("dp=1", "", STEPPING ", global_batch: 6");
  ad_step_report report;
  ad_comm *comm;
  ad_run *run;
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, NULL, &run));
  run->program->losses[0].coefficient = 1e308;
  assert_int_equal(ad_run_step(run, 1, &report), AD_NUMBER);
  assert_says("step 1");
  assert_null(strstr(ad_last_error(), "rank 1"));
  assert_null(strstr(ad_last_error(), "rank 0"));
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_loss_falls_on_real_text),
      cmocka_unit_test(a_steady_step_allocates_nothing),
      cmocka_unit_test(a_step_that_overflows_is_skipped_on_all_ranks_and_changes_nothing),
      cmocka_unit_test(addends_are_what_the_gradient_is_the_sum_of),
      cmocka_unit_test(a_step_without_counted_tokens_warns_and_continues),
      cmocka_unit_test(a_run_writes_its_own_trace_when_asked),
      cmocka_unit_test(no_validation_part_is_reported),
      cmocka_unit_test(a_world_of_another_size_than_the_mesh_is_refused),
      cmocka_unit_test(a_step_on_backend_dry_checks_everything_and_computes_nothing),
      cmocka_unit_test(memory_that_runs_out_leaves_nothing_behind),
      cmocka_unit_test(a_step_on_three_ranks_is_the_step_of_one),
      cmocka_unit_test(a_rank_without_rows_takes_part),
      cmocka_unit_test(a_microbatch_without_rows_takes_part),
      cmocka_unit_test(reducing_more_often_changes_nothing),
      cmocka_unit_test(each_microbatch_is_reduced_as_its_own_word_says),
      cmocka_unit_test(replicas_agree_bit_for_bit),
      cmocka_unit_test(the_loss_alone_is_the_loss_of_the_step),
      cmocka_unit_test(injected_bugs_change_the_gradient),
      cmocka_unit_test(a_sum_of_losses_that_is_no_number_names_no_rank),
      cmocka_unit_test(a_loss_that_is_no_number_stops_all_ranks_and_names_step_and_rank),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
