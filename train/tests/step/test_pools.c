/* Tests the step of modules on disjoint ranks: gradients, losses and values are those of the same program on ranks that
 * all modules share, however many microbatches are in flight; what a rank knows of modules that it does not have; and
 * what is refused. */
#include "deferred.h"
#include "pools.h"

#include <math.h>
#include <unistd.h>
#include "base/error.h"
#include "kernels/kernels.h"
#include "files/file.h"
#include "module/module.h"
#include "program/program.h"
#include "says.h"
#include "step/run.h"

enum { RANKS_MAX = 8, STEPS = 2, BATCH = 7 };

/* The ranks on which the two modules of a program run. */
typedef struct place {
  const char *a, *b;
  int disjoint;
  int64_t ranks;
} place;

static const place one = {"dp=1 cp=1", "dp=1 cp=1", 0, 1}, together = {"dp=2 cp=2", "dp=1 cp=4", 0, 4},
                   apart = {"dp=2 cp=2", "dp=1 cp=4", 1, 8}, three_and_two = {"dp=3 cp=1", "dp=1 cp=2", 1, 5},
                   one_and_six = {"cp=1 dp=1", "dp_replicate=3 cp=2", 1, 7};

/* What the ranks saw: full values one after another, and each rank's reports and message. */
typedef struct seen {
  ad_step_report report[RANKS_MAX][STEPS];
  double gradient[RANKS_MAX][STEPS][ELEMENTS_MAX], after[RANKS_MAX][STEPS][ELEMENTS_MAX];
  char message[RANKS_MAX][512];
} seen;

typedef struct job {
  const ad_recipe *recipe;
  ad_dtype dtype;
  seen *seen;
  int deferred;     /* number of microbatches whose second pass waits; ONE_PASS: backward is one pass */
  const char *list; /* actions of the ranks as CSV, to execute instead of the run's own table; NULL: the run's own */
} job;
enum { ONE_PASS = -1 };
/* `deferred` and `list` for the jobs that start from now on */
static int deferred = ONE_PASS;
static const char *list;

static const ad_run_options in_f64 = {.size = sizeof in_f64, .dtype = AD_F64, .quiet = 1};

static void print_recipe(char *text, size_t size, const place *at, pools_form form, pools_mistake mistake,
                         int microbatches, int zero) {
  snprintf(text, size,
           "name: pools\nmodel: {kind: pools, form: %d, mistake: %d}\nmesh: {a: %s, b: %s}\nplacement: %s\n"
           "shard: {zero: %d}\ntrain: {seed: 4, steps: 10, global_batch: %d, microbatches: %d, lr: 1e-2, clip: 0}\n",
           form, mistake, at->a, at->b, at->disjoint ? AD_DISJOINT : AD_COLOCATED, zero, BATCH, microbatches);
}

static ad_recipe *parse(const char *text) {
  ad_recipe *recipe = NULL;
  pools_register();
  if (ad_recipe_parse(text, "pools.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}

static ad_recipe *recipe_of(const place *at, pools_form form, pools_mistake mistake, int microbatches, int zero) {
  char text[512];
  print_recipe(text, sizeof text, at, form, mistake, microbatches, zero);
  return parse(text);
}

static ad_status keep(ad_run *run, ad_param_part part, double *to) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    double memory[ELEMENTS_MAX] = {0};
    ad_array full = {.data = memory};
    ad_status status = ad_run_full(run, ad_run_part(run, i, part), &full);
    if (status) return status;
    size_t numel = (size_t)ad_shape_numel(&full.shape);
    ad_cast(to, AD_F64, memory, full.dtype, numel);
    to += numel;
  }
  return AD_OK;
}

static ad_status take_steps(ad_run *run, seen *s, int64_t rank) {
  for (int step = 0; step < STEPS; step++) {
    ad_status status = ad_run_step(run, step, &s->report[rank][step]);
    if (!status) status = keep(run, AD_PART_GRADIENT, s->gradient[rank][step]);
    if (!status) status = keep(run, AD_PART_VALUE, s->after[rank][step]);
    if (status) return status;
  }
  return AD_OK;
}

static ad_status take_list(ad_run *run, const char *text) {
  ad_table *table;
  ad_status status = ad_table_parse(text, strlen(text), "list.csv", &table, NULL);
  return status ? status : ad_run_take_table(run, table);
}

static int train_on_rank(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options, .dtype = j->dtype, .quiet = 1};
  ad_run *run;
  int64_t rank = ad_comm_rank(comm);
  ad_status status = ad_run_create(comm, j->recipe, &options, &run);
  if (!status) {
    if (j->deferred != ONE_PASS) status = defer_weights(run, (size_t)j->deferred);
    if (j->list) status = take_list(run, j->list);
    if (!status) status = take_steps(run, j->seen, rank);
    ad_run_destroy(run);
  }
  if (status) {
    snprintf(j->seen->message[rank], sizeof j->seen->message[rank], "%s", ad_last_error());
    ad_comm_fail(comm, status, ad_last_error());
  }
  return status != AD_OK;
}

/* Runs the recipe on its ranks, and destroys it. */
static seen *run_recipe(ad_recipe *recipe, ad_dtype dtype, int fails) {
  ad_launch_result result = {.size = sizeof result};
  int64_t ranks = 0;
  job j = {recipe, dtype, shared_memory(sizeof(seen)), deferred, list};
  must(ad_recipe_world(recipe, &ranks));
  int failed = launch(ranks, train_on_rank, &j, &result) != AD_OK;
  if (failed != fails) fail_msg("%s", result.message);
  ad_recipe_destroy(recipe);
  return j.seen;
}

static seen *run_on(const place *at, pools_form form, pools_mistake mistake, int microbatches, int zero) {
  return run_recipe(recipe_of(at, form, mistake, microbatches, zero), AD_F64, mistake != NO_MISTAKE);
}

static void forget(seen *s) { munmap(s, sizeof *s); }

/* ---- compared with the same program on shared ranks ---- */

static double difference(const double *a, const double *b) {
  double worst = 0, largest = 0;
  for (int i = 0; i < ELEMENTS_MAX; i++) {
    worst = fmax(worst, fabs(a[i] - b[i]));
    largest = fmax(largest, fabs(b[i]));
  }
  assert_true(largest > 0);
  return worst / largest;
}

static void all_ranks_saw_the_same(const seen *s, const place *at) {
  for (int64_t rank = 1; rank < at->ranks; rank++) {
    assert_memory_equal(s->gradient[rank], s->gradient[0], sizeof s->gradient[0]);
    assert_memory_equal(s->after[rank], s->after[0], sizeof s->after[0]);
    for (int step = 0; step < STEPS; step++) {
      assert_true(s->report[rank][step].loss == s->report[0][step].loss);
      assert_true(s->report[rank][step].norm == s->report[0][step].norm);
      assert_int_equal(s->report[rank][step].count, s->report[0][step].count);
    }
  }
}

/* Checks that both runs agree; `exact`: bit for bit, otherwise within 1e-12. */
static void is_like(const seen *s, const seen *wanted, int exact) {
  for (int step = 0; step < STEPS; step++) {
    const ad_step_report *is = &s->report[0][step], *should = &wanted->report[0][step];
    assert_true(difference(s->gradient[0][step], wanted->gradient[0][step]) < 1e-12);
    assert_true(difference(s->after[0][step], wanted->after[0][step]) < 1e-12);
    for (int i = 0; i < 2; i++) assert_true(fabs(is->losses[i] - should->losses[i]) <= 1e-12 * should->losses[i]);
    assert_true(fabs(is->norm - should->norm) < 1e-12 * should->norm);
    assert_int_equal(is->count, should->count);
  }
  if (!exact) return;
  assert_memory_equal(s->gradient[0], wanted->gradient[0], sizeof s->gradient[0]);
  assert_memory_equal(s->after[0], wanted->after[0], sizeof s->after[0]);
  for (int step = 0; step < STEPS; step++) assert_true(s->report[0][step].loss == wanted->report[0][step].loss);
}

static void compare(pools_form form, int microbatches, int zero) {
  static const place *const others[] = {&three_and_two, &one_and_six};
  seen *alone = run_on(&one, form, NO_MISTAKE, microbatches, zero);
  seen *shared = run_on(&together, form, NO_MISTAKE, microbatches, zero);
  seen *disjoint = run_on(&apart, form, NO_MISTAKE, microbatches, zero);
  is_like(shared, alone, 0);
  is_like(disjoint, shared, 1);
  all_ranks_saw_the_same(disjoint, &apart);
  for (int i = 0; i < 2; i++) {
    seen *s = run_on(others[i], form, NO_MISTAKE, microbatches, zero);
    is_like(s, alone, 0);
    all_ranks_saw_the_same(s, others[i]);
    forget(s);
  }
  forget(disjoint);
  forget(shared);
  forget(alone);
}

static void compare_microbatches(pools_form form) {
  static const int microbatches[] = {1, 2, 3, 5};
  for (int i = 0; i < 4; i++) compare(form, microbatches[i], i % 2 ? 3 : 0);
}

static void pools_of_two_phases_learn_what_shared_ranks_learn(void **state) { compare_microbatches(PAIR); }
static void gradients_of_two_phases_are_added_before_they_go_back(void **state) { compare_microbatches(TWICE); }
static void a_value_goes_and_another_comes_back(void **state) { compare_microbatches(BACK); }

static void it_holds_under_a_hostile_backend(void **state) {
  seen *alone[FORMS];
  for (int form = 0; form < FORMS; form++) alone[form] = run_on(&one, (pools_form)form, NO_MISTAKE, 3, 3);
  setenv("ADDEND_HOSTILE", "11", 1);
  for (int form = 0; form < FORMS; form++) {
    seen *s = run_on(&apart, (pools_form)form, NO_MISTAKE, 3, 3);
    is_like(s, alone[form], 0);
    forget(s);
    forget(alone[form]);
  }
  unsetenv("ADDEND_HOSTILE");
}

static double norm_of(const double *values, int count) {
  double sum = 0;
  for (int i = 0; i < count; i++) sum += values[i] * values[i];
  return sqrt(sum);
}

/* A module whose parameters no phase uses has no addends: its gradient is zeros, not uninitialised memory. */
static void a_module_without_a_phase_has_a_gradient_of_zeros(void **state) {
  enum { OF_A = IN * MID, OF_B = MID * OUT };
  setenv("ADDEND_HOSTILE", "7", 1);
  for (int zero = 0; zero < 4; zero++) {
    seen *s = run_on(&apart, ALONE, NO_MISTAKE, 3, zero);
    for (int step = 0; step < STEPS; step++) {
      double norm = norm_of(s->gradient[0][step], OF_A);
      assert_true(norm > 0 && norm_of(s->gradient[0][step] + OF_A, OF_B) == 0);
      assert_true(fabs(s->report[0][step].norm - norm) < 1e-12 * norm);
    }
    all_ranks_saw_the_same(s, &apart);
    forget(s);
  }
  unsetenv("ADDEND_HOSTILE");
}

/* ---- backward in two passes ---- */

static void compare_deferred(const place *at, pools_form form, int microbatches) {
  seen *pass = run_on(at, form, NO_MISTAKE, microbatches, 3);
  for (deferred = 0; deferred < microbatches; deferred += 2) {
    seen *passes = run_on(at, form, NO_MISTAKE, microbatches, 3);
    is_like(passes, pass, 1);
    all_ranks_saw_the_same(passes, at);
    forget(passes);
  }
  deferred = ONE_PASS;
  forget(pass);
}

static void weights_may_wait_while_values_cross(void **state) {
  for (int form = 0; form < FORMS; form++) {
    compare_deferred(&apart, (pools_form)form, 5);
    compare_deferred(&three_and_two, (pools_form)form, 3);
    compare_deferred(&one, (pools_form)form, 3);
  }
  setenv("ADDEND_HOSTILE", "7", 1);
  compare_deferred(&apart, BACK, 5);
  unsetenv("ADDEND_HOSTILE");
}

static void compare_list(const place *at, int microbatches, const char *of_compute) {
  seen *own = run_on(at, PAIR, NO_MISTAKE, microbatches, 0);
  list = of_compute;
  seen *listed = run_on(at, PAIR, NO_MISTAKE, microbatches, 0);
  list = NULL;
  is_like(listed, own, 1);
  forget(listed);
  forget(own);
}

/* The gradient that a phase leaves for its giver's I is kept until that I, although the phase itself continues with
 * later microbatches: on its tape if both share ranks, else in the buffer in which it arrived. */
static void a_giver_may_go_back_long_after_its_user(void **state) {
  compare_list(&one, 3, "0F0,1F0,1I0,1W0,0F1,1F1,0I0,0W0,1I1,1W1,0F2,1F2,0I1,0W1,1I2,1W2,0I2,0W2\n");
  compare_list(&apart, 5,
               "0F0,0F1,0F2,0F3,0F4,0I0,0W0,0I1,0W1,0I2,0W2,0I3,0W3,0I4,0W4\n"
               "1F0,1I0,1F1,1I1,1F2,1I2,1F3,1I3,1F4,1I4,1W0,1W1,1W2,1W3,1W4\n");
}

/* ---- values that travel in narrower dtypes ---- */

static ad_recipe *recipe_with_comm_dtype(const place *at, pools_form form, int microbatches, const char *comm_dtype) {
  char text[768];
  print_recipe(text, sizeof text, at, form, NO_MISTAKE, microbatches, 0);
  snprintf(text + strlen(text), sizeof text - strlen(text), "comm_dtype: {%s}\n", comm_dtype);
  return parse(text);
}

static seen *run_with_comm_dtype(const place *at, ad_dtype dtype, const char *comm_dtype) {
  return run_recipe(recipe_with_comm_dtype(at, BACK, 3, comm_dtype), dtype, 0);
}

/* Checks whether the first step's loss and gradients change, and by no more than rounding, when values travel in the
 * narrow dtypes of `comm_dtype`. */
static void comm_dtype_changes(const place *at, ad_dtype dtype, const char *comm_dtype, int loss, int gradients) {
  seen *as_it_is = run_with_comm_dtype(at, dtype, ""), *narrow = run_with_comm_dtype(at, dtype, comm_dtype);
  double worst = difference(narrow->gradient[0][0], as_it_is->gradient[0][0]);
  assert_true(worst < 0x1p-6); /* bf16 keeps 8 bits of precision */
  assert_int_equal(worst > 0, gradients);
  assert_int_equal(narrow->report[0][0].loss != as_it_is->report[0][0].loss, loss);
  all_ranks_saw_the_same(narrow, at);
  forget(as_it_is);
  forget(narrow);
}

static void what_is_transferred_is_rounded_wherever_modules_lie_and_in_no_check(void **state) {
  comm_dtype_changes(&apart, 0, "values: bf16", 1, 1);
  comm_dtype_changes(&apart, 0, "gradients: bf16", 0, 1);
  comm_dtype_changes(&apart, 0, "values: f32, gradients: f32", 0, 0);
  comm_dtype_changes(&apart, AD_F64, "values: bf16, gradients: bf16", 0, 0);
  comm_dtype_changes(&together, 0, "values: bf16, gradients: bf16", 1, 1);
}

/* ---- how many microbatches a phase is ahead ---- */

static ad_run *dry_run(const place *at, pools_form form, int64_t rank, ad_comm **comm, ad_recipe **recipe) {
  ad_run *run;
  *recipe = recipe_of(at, form, NO_MISTAKE, 3, 3);
  must(ad_comm_open_dry(rank, at->ranks, comm));
  must(ad_run_create(*comm, *recipe, &in_f64, &run));
  return run;
}

static void close_dry(ad_run *run, ad_comm *comm, ad_recipe *recipe) {
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

/* Seven rows are cut into three microbatches, so the largest has three rows and needs the most memory. */
static void there_is_room_for_the_largest_microbatch(void **state) {
  ad_comm *comm;
  ad_recipe *recipe;
  ad_run *run = dry_run(&one_and_six, PAIR, 0, &comm, &recipe);
  size_t gradients = run->transfers.list[0].ways[1].count;
  assert_int_equal(ad_transfers_bytes(run), gradients * 3 * MID * sizeof(double));
  close_dry(run, comm, recipe);
}

static size_t forwards_before_backward(const ad_table *table, int32_t stage) {
  size_t count = 0;
  for (int32_t r = 0; r < ad_table_rank_count(table); r++)
    for (size_t i = 0; i < ad_table_action_count(table, r); i++) {
      const ad_action *action = ad_table_action(table, r, i);
      if (action->stage != stage) continue;
      if (action->kind == AD_ACTION_B) return count;
      count += action->kind == AD_ACTION_F;
    }
  return count;
}

static void leads_are(const place *at, pools_form form, const size_t *leads) {
  ad_comm *comm;
  ad_recipe *recipe;
  ad_run *run = dry_run(at, form, 0, &comm, &recipe);
  for (size_t p = 0; p < ad_program_phase_count(run->program); p++) {
    assert_int_equal(forwards_before_backward(run->order.table, (int32_t)p), leads[p] + 1);
    if (ad_run_phase(run, p)->tapes[0]) assert_int_equal(ad_run_phase(run, p)->tape_count, leads[p] + 1);
  }
  close_dry(run, comm, recipe);
}

static void a_phase_is_ahead_by_the_bridges_that_its_values_still_have_before_them(void **state) {
  leads_are(&apart, PAIR, (size_t[]){1, 0});
  leads_are(&apart, TWICE, (size_t[]){1, 0, 0});
  leads_are(&apart, BACK, (size_t[]){2, 1, 0});
  leads_are(&together, BACK, (size_t[]){0, 0, 0});
}

/* Prints what a rank did in a step, in order: forward (f) and backward (b) of a microbatch, waits for a value (v), for
 * a gradient (g), and until what was sent has arrived (s). */
static void report_order(const ad_run *run, char *text, size_t size) {
  static const char letters[AD_TRACE_COUNT] = {[AD_TRACE_FORWARD] = 'f',
                                               [AD_TRACE_BACKWARD] = 'b',
                                               [AD_TRACE_VALUE] = 'v',
                                               [AD_TRACE_GRADIENT] = 'g',
                                               [AD_TRACE_SENT] = 's'};
  size_t used = 0;
  text[0] = 0;
  for (size_t i = 0; i < run->trace.count; i++) {
    const ad_trace_event *event = &run->trace.events[i];
    if (letters[event->kind])
      used += (size_t)snprintf(text + used, size - used, "%s%c%d", used ? " " : "", letters[event->kind],
                               (int)event->index);
  }
}

/* Counts the exchanges of a value: one forward and one back for each microbatch, however many phases need it. */
static int exchanges_of(ad_comm *comm, const char *value) {
  char *text, wanted[32];
  int count = 0;
  if (ad_comm_flight_recorder(comm, &text)) return -1;
  snprintf(wanted, sizeof wanted, " at %s: ", value);
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
    count += strstr(line, " exchange ") && strstr(line, wanted);
  free(text);
  return count;
}

typedef struct ordered {
  const ad_recipe *recipe;
  pools_form form;
  const char *of_a, *of_b;
} ordered;

static ad_status is_in_order(const ad_run *run, ad_comm *comm, const ordered *o) {
  enum { TIMES = 2 * 4 };
  char text[512];
  int of_x = exchanges_of(comm, "x"), of_y = exchanges_of(comm, "y");
  report_order(run, text, sizeof text);
  const char *wanted = ad_run_module(run, 0) ? o->of_a : o->of_b;
  if (strcmp(text, wanted) != 0) return ad_fail(AD_INVALID, "it did %s, not %s", text, wanted);
  if (of_x == TIMES && of_y == (o->form == BACK ? TIMES : 0)) return AD_OK;
  return ad_fail(AD_INVALID, "%d exchanges of x, %d of y", of_x, of_y);
}

static int run_in_order(ad_comm *comm, void *context) {
  const ordered *o = context;
  ad_run *run;
  ad_step_report report;
  RANK_MUST(comm, ad_run_create(comm, o->recipe, &in_f64, &run));
  RANK_MUST(comm, ad_run_step(run, 0, &report));
  RANK_MUST(comm, is_in_order(run, comm, o));
  ad_run_destroy(run);
  return 0;
}

static void order_is(pools_form form, const char *of_a, const char *of_b) {
  ad_recipe *recipe = recipe_of(&apart, form, NO_MISTAKE, 4, 0);
  ordered o = {recipe, form, of_a, of_b};
  ad_launch_result result = {.size = sizeof result};
  if (launch(apart.ranks, run_in_order, &o, &result)) fail_msg("%s", result.message);
  ad_recipe_destroy(recipe);
}

/* A phase waits for an earlier send only when it needs that send's buffer again, not for transfers elsewhere. */
static void a_phase_waits_for_what_it_sent_before_the_place_of_that_is_taken(void **state) {
  order_is(PAIR, "f0 f1 g0 b0 s0 f2 g1 b1 s1 f3 g2 b2 g3 b3 s0 s1", "f0 v0 b0 s0 f1 v1 b1 s1 f2 v2 b2 s2 f3 v3 b3 s1");
  order_is(TWICE, "f0 f1 g0 b0 s0 f2 g1 b1 s1 f3 g2 b2 g3 b3 s0 s1",
           "f0 v0 f0 b0 b0 s0 f1 v1 f1 b1 b1 s1 f2 v2 f2 b2 b2 s2 f3 v3 f3 b3 b3 s1");
  order_is(BACK, "f0 f1 f2 f0 v0 b0 g0 b0 s0 f3 s0 f1 v1 b1 g1 b1 s1 f2 v2 b2 g2 b2 s2 f3 v3 b3 g3 b3 s0 s1 s2 s0",
           "f0 v0 f1 v1 g0 b0 s0 s0 f2 v2 g1 b1 s1 s1 f3 v3 g2 b2 g3 b3 s0 s2 s0 s2");
}

/* *out gets the address at which the next shared memory would be allocated. */
static ad_status probe(ad_comm *comm, void **out) {
  AD_TRY(ad_comm_alloc(comm, 1 << 20, out));
  ad_comm_free(comm, *out);
  return AD_OK;
}

/* Runs in the recipe's own dtypes, so that values get buffers for their transfer. The first run leaves memory that the
 * ranks keep for good; later runs must leave nothing. */
static int run_again(ad_comm *comm, void *context) {
  enum { TIMES = 3 };
  const ad_recipe *recipe = context;
  static const ad_run_options quiet = {.size = sizeof quiet, .quiet = 1};
  void *after[TIMES];
  for (int i = 0; i < TIMES; i++) {
    ad_run *run;
    ad_step_report report;
    RANK_MUST(comm, ad_run_create(comm, recipe, &quiet, &run));
    RANK_MUST(comm, ad_run_step(run, 0, &report));
    ad_run_destroy(run);
    RANK_MUST(comm, probe(comm, &after[i]));
  }
  RANK_MUST(comm, after[1] == after[2] ? AD_OK : ad_fail(AD_INVALID, "the last run left something behind"));
  return 0;
}

static void a_run_gives_back_all_memory_that_ranks_share(void **state) {
  for (int form = 0; form < FORMS; form++) {
    ad_recipe *recipe = recipe_with_comm_dtype(&apart, (pools_form)form, 4, "values: bf16, gradients: bf16");
    ad_launch_result result = {.size = sizeof result};
    if (launch(apart.ranks, run_again, recipe, &result)) fail_msg("%s", result.message);
    ad_recipe_destroy(recipe);
  }
}

static void the_step_runs_on_paper(void **state) {
  for (int form = 0; form < FORMS; form++) {
    for (int64_t rank = 0; rank < three_and_two.ranks; rank++) {
      ad_comm *comm;
      ad_recipe *recipe;
      ad_step_report report;
      ad_run *run = dry_run(&three_and_two, (pools_form)form, rank, &comm, &recipe);
      must(ad_run_step(run, 0, &report));
      close_dry(run, comm, recipe);
    }
  }
}

static int allocate_nothing(ad_comm *comm, void *context) {
  ad_run *run;
  ad_step_report report;
  RANK_MUST(comm, ad_run_create(comm, context, &in_f64, &run));
  for (int64_t step = 0; step < 3; step++) RANK_MUST(comm, ad_run_step(run, step, &report));
  ad_memory_fail_at(0);
  RANK_MUST(comm, ad_run_step(run, 3, &report));
  int allocated = ad_memory_fail_at(0) != 0;
  ad_run_destroy(run);
  return allocated;
}

static void a_steady_step_allocates_nothing(void **state) {
  for (int form = 0; form < FORMS; form++) {
    ad_launch_result result = {.size = sizeof result};
    ad_recipe *recipe = recipe_of(&three_and_two, (pools_form)form, NO_MISTAKE, 3, 3);
    assert_int_equal(launch(three_and_two.ranks, allocate_nothing, recipe, &result), AD_OK);
    ad_recipe_destroy(recipe);
  }
}

/* ---- modules on other ranks ---- */

/* A rank of module a knows parameter u, which module b has and cuts, by its shape and layout and without elements. */
static void an_absent_module_is_described_without_an_element(void **state) {
  enum { U = 3 };
  ad_comm *comm;
  ad_recipe *recipe;
  ad_run *run = dry_run(&apart, BACK, 1, &comm, &recipe);
  assert_null(ad_run_module(run, 1));
  assert_null(ad_run_param_at(run, U).held);
  assert_string_equal(ad_run_param_at(run, U).spec->name, "u");
  for (int part = 0; part < AD_PART_COUNT; part++) {
    const ad_array *array = ad_run_part(run, U, (ad_param_part)part);
    if (!array) continue;
    assert_int_equal(ad_array_numel(array), 0);
    assert_null(array->data);
    assert_ptr_equal(array->layout.mesh, ad_program_mesh(run->program, 1));
    assert_true(ad_shape_equal(&array->shape, &(ad_shape){2, {MID, OUT}}));
  }
  assert_non_null(ad_run_part(run, U, AD_PART_GRADIENT));
  assert_non_null(ad_run_part(run, U, AD_PART_STATE + 1));
  assert_ptr_equal(ad_run_part(run, U, AD_PART_MASTER), ad_run_part(run, U, AD_PART_VALUE));
  const ad_array *marks = ad_run_state(run, 1, 0);
  assert_int_equal(ad_array_numel(marks), 0);
  assert_true(ad_shape_equal(&marks->shape, &(ad_shape){1, {MID}}));
  close_dry(run, comm, recipe);
}

/* ---- checkpoints ---- */

typedef struct stored {
  const ad_recipe *recipe;
  const char *folder;
  int saves;
  double values[ELEMENTS_MAX], moments[ELEMENTS_MAX], marks[MID];
  char message[512];
} stored;

static ad_status save(ad_run *run, const char *folder) {
  ad_checkpointer *checkpointer;
  ad_step_report report;
  ad_status status = ad_run_step(run, 0, &report);
  double *marks = ad_run_module(run, 1) ? ad_run_state(run, 1, 0)->data : NULL;
  for (int i = 0; marks && i < MID; i++) marks[i] += i;
  if (!status) status = ad_checkpointer_create(ad_run_comm(run), ad_run_everyone(run).mesh, folder, 1, &checkpointer);
  if (status) return status;
  status = ad_run_save(run, checkpointer, 1);
  if (!status) status = ad_checkpointer_finish(checkpointer);
  ad_checkpointer_destroy(checkpointer);
  return status;
}

static ad_status look(ad_run *run, stored *s) {
  double values[ELEMENTS_MAX] = {0}, moments[ELEMENTS_MAX] = {0}, marks[MID] = {0};
  ad_array full = {.data = marks};
  ad_status status = keep(run, AD_PART_VALUE, values);
  if (!status) status = keep(run, AD_PART_STATE + 1, moments);
  if (!status) status = ad_run_full(run, ad_run_state(run, 1, 0), &full);
  if (status || ad_comm_rank(ad_run_comm(run))) return status;
  memcpy(s->values, values, sizeof values);
  memcpy(s->moments, moments, sizeof moments);
  memcpy(s->marks, marks, sizeof marks);
  return AD_OK;
}

static int store_on_rank(ad_comm *comm, void *context) {
  stored *s = context;
  ad_run *run;
  int64_t steps = 0;
  RANK_MUST(comm, ad_run_create(comm, s->recipe, &in_f64, &run));
  ad_status status = s->saves ? save(run, s->folder) : ad_run_load(run, s->folder, &steps);
  if (!status) status = look(run, s);
  if (status) snprintf(s->message, sizeof s->message, "%s", ad_last_error());
  ad_run_destroy(run);
  return 0;
}

static stored *store(const place *at, const char *folder, int saves, int zero) {
  stored *s = shared_memory(sizeof *s);
  ad_recipe *recipe = recipe_of(at, BACK, NO_MISTAKE, 3, zero);
  ad_launch_result result = {.size = sizeof result};
  *s = (stored){.recipe = recipe, .folder = folder, .saves = saves};
  ad_status status = launch(at->ranks, store_on_rank, s, &result);
  if (status) fail_msg("%s", result.message);
  if (s->message[0]) fail_msg("%s", s->message);
  ad_recipe_destroy(recipe);
  return s;
}

static void is_stored_as(const stored *s, const stored *wanted) {
  assert_memory_equal(s->values, wanted->values, sizeof s->values);
  assert_memory_equal(s->moments, wanted->moments, sizeof s->moments);
  for (int i = 0; i < MID; i++) assert_true(s->marks[i] == 0.5 + i);
}

static void checkpoints_go_from_pools_to_shared_ranks_and_back(void **state) {
  static const place *const places[] = {&apart, &three_and_two, &together, &one};
  for (int from = 0; from < 4; from++) {
    char folder[] = "/tmp/addend-pools-XXXXXX", part[160];
    assert_non_null(mkdtemp(folder));
    stored *saved = store(places[from], folder, 1, 3);
    for (int to = 0; to < 4; to++) {
      stored *loaded = store(places[to], folder, 0, to % 2 ? 0 : 3);
      is_stored_as(loaded, saved);
      munmap(loaded, sizeof *loaded);
    }
    munmap(saved, sizeof *saved);
    snprintf(part, sizeof part, "%s/step-1", folder);
    must(ad_folder_remove(part));
    must(ad_folder_remove(folder));
  }
}

/* ---- what is refused ---- */

/* Checks that the recipe is refused before any rank starts. */
static void refused_on_paper(const place *at, pools_form form, pools_mistake mistake, const char *const *facts) {
  char text[512];
  ad_recipe *recipe = NULL;
  pools_register();
  print_recipe(text, sizeof text, at, form, mistake, 2, 0);
  assert_int_equal(ad_recipe_parse(text, "pools.yaml", NULL, 0, &recipe), AD_INVALID);
  assert_says_all(facts);
}

static void a_need_of_other_ranks_without_a_transfer_is_refused(void **state) {
  refused_on_paper(&apart, PAIR, NO_TRANSFER, SAYS_FACTS("pass", "x", "begin"));
}

static void a_transfer_whose_bridge_joins_other_meshes_is_refused(void **state) {
  static const place *const places[] = {&apart, &together};
  for (int i = 0; i < 2; i++) {
    refused_on_paper(places[i], BACK, OTHER_MESHES, SAYS_FACTS("x", "dp_shard=1 cp=4", "dp_shard=2 cp=2"));
  }
}

/* A message that the rank did not get from another one; NULL if there is none. */
static const char *own_message(const seen *s, int64_t ranks) {
  for (int64_t rank = 0; rank < ranks; rank++) {
    if (strncmp(s->message[rank], "rank ", strlen("rank ")) && !strstr(s->message[rank], ": rank "))
      return s->message[rank];
  }
  return NULL;
}

/* Every rank gets the error, also ranks that wait for the gradient: in which call differs from run to run. */
static void a_loss_that_does_not_depend_on_what_arrived_is_refused(void **state) {
  seen *s = run_on(&three_and_two, PAIR, LOSS_OF_NOTHING, 2, 0);
  for (int64_t rank = 0; rank < three_and_two.ranks; rank++) assert_facts(s->message[rank], "x", "microbatch 0");
  const char *own = own_message(s, three_and_two.ranks);
  assert_non_null(own);
  assert_text_says(own, "x", "microbatch 0");
  forget(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pools_of_two_phases_learn_what_shared_ranks_learn),
      cmocka_unit_test(gradients_of_two_phases_are_added_before_they_go_back),
      cmocka_unit_test(a_value_goes_and_another_comes_back),
      cmocka_unit_test(it_holds_under_a_hostile_backend),
      cmocka_unit_test(a_module_without_a_phase_has_a_gradient_of_zeros),
      cmocka_unit_test(there_is_room_for_the_largest_microbatch),
      cmocka_unit_test(weights_may_wait_while_values_cross),
      cmocka_unit_test(a_giver_may_go_back_long_after_its_user),
      cmocka_unit_test(what_is_transferred_is_rounded_wherever_modules_lie_and_in_no_check),
      cmocka_unit_test(a_phase_is_ahead_by_the_bridges_that_its_values_still_have_before_them),
      cmocka_unit_test(a_phase_waits_for_what_it_sent_before_the_place_of_that_is_taken),
      cmocka_unit_test(the_step_runs_on_paper),
      cmocka_unit_test(a_run_gives_back_all_memory_that_ranks_share),
      cmocka_unit_test(a_steady_step_allocates_nothing),
      cmocka_unit_test(an_absent_module_is_described_without_an_element),
      cmocka_unit_test(checkpoints_go_from_pools_to_shared_ranks_and_back),
      cmocka_unit_test(a_need_of_other_ranks_without_a_transfer_is_refused),
      cmocka_unit_test(a_transfer_whose_bridge_joins_other_meshes_is_refused),
      cmocka_unit_test(a_loss_that_does_not_depend_on_what_arrived_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
