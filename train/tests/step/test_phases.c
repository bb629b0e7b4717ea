/* Tests the step of a program with several modules and phases: values go from phase to phase and their gradients come
 * back, on every topology as on one rank and as the formulas say; norms, clips and skipped steps of several modules. */
#include "says.h"
#include "two_modules.h"

#include <math.h>
#include <unistd.h>
#include "addend/safetensors.h"
#include "kernels/kernels.h"
#include "files/file.h"
#include "module/module.h"
#include "program/program.h"
#include "step/known_bugs.h"
#include "step/run.h"

#define STEPPING ", global_batch: 7, microbatches: 3, lr: 1e-2"
enum { RANKS = 6, STEPS = 2, BATCH = 7, MICROBATCHES = 3, ELEMENTS = IN * MID + MID + MID * OUT };

/* What the ranks saw: full values, w, v and u one after another. */
typedef struct seen {
  ad_step_report report[STEPS];
  double loss_alone;
  double before[STEPS][ELEMENTS], gradient[RANKS][STEPS][ELEMENTS], moment[STEPS][ELEMENTS], after[STEPS][ELEMENTS];
  char message[RANKS][512];
} seen;

typedef struct job {
  const ad_recipe *recipe;
  ad_dtype dtype;
  int overflows; /* 1: the second step's loss scale is so large that gradients overflow */
  seen *seen;
} job;

static ad_status keep(ad_run *run, ad_param_part part, double *to) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_array *array = ad_run_part(run, i, part);
    double memory[ELEMENTS] = {0};
    ad_array full = {.data = memory};
    ad_status status = ad_array_full(ad_run_comm(run), array, &full);
    if (status) return status;
    size_t numel = (size_t)ad_shape_numel(&array->shape);
    ad_cast(to, AD_F64, memory, array->dtype, numel);
    to += numel;
  }
  return AD_OK;
}

static ad_status take_one(job *j, ad_run *run, int step) {
  seen *s = j->seen;
  double memory[ELEMENTS];
  int64_t rank = ad_comm_rank(ad_run_comm(run));
  if (j->overflows && step) ad_run_loss_scale(run)->exponent = 30;
  ad_status status = keep(run, AD_PART_MASTER, memory);
  if (!status && !rank) memcpy(s->before[step], memory, sizeof memory);
  ad_step_report report = {0};
  if (!status) status = ad_run_step(run, step, &report);
  if (!status && !rank) s->report[step] = report;
  if (!status) status = keep(run, AD_PART_GRADIENT, s->gradient[rank][step]);
  if (!status) status = keep(run, AD_PART_STATE, memory);
  if (!status && !rank) memcpy(s->moment[step], memory, sizeof memory);
  if (!status) status = keep(run, AD_PART_MASTER, memory);
  if (!status && !rank) memcpy(s->after[step], memory, sizeof memory);
  return status;
}

static int take_steps(ad_comm *comm, void *context) {
  job *j = context;
  int64_t rank = ad_comm_rank(comm);
  ad_run_options options = {.size = sizeof options, .dtype = j->dtype, .quiet = 1};
  ad_run *run;
  double loss = 0;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  ad_status status = ad_run_loss(run, 0, AD_TRAINED_ON, &loss);
  if (!rank) j->seen->loss_alone = loss;
  for (int step = 0; !status && step < STEPS; step++) status = take_one(j, run, step);
  if (status) snprintf(j->seen->message[rank], sizeof j->seen->message[rank], "%s", ad_last_error());
  ad_run_destroy(run);
  return 0;
}

static seen *run_on(int64_t ranks, const char *model, const char *train, const char *sections, job j) {
  char training[256];
  snprintf(training, sizeof training, STEPPING "%s", train);
  ad_recipe *recipe = two_recipe(ranks == 1 ? MESHES_OF_ONE : MESHES_OF_SIX, model, training, sections);
  ad_launch_result result = {.size = sizeof result};
  j.recipe = recipe;
  j.seen = shared_memory(sizeof(seen));
  ad_status status = launch(ranks, take_steps, &j, &result);
  if (status) fail_msg("%s", result.message);
  ad_recipe_destroy(recipe);
  return j.seen;
}

static seen *steps_on(int64_t ranks, const char *model, const char *train, const char *sections) {
  seen *s = run_on(ranks, model, train, sections, (job){.dtype = AD_F64});
  if (s->message[0][0]) fail_msg("%s", s->message[0]);
  return s;
}

static void forget(seen *s) { munmap(s, sizeof *s); }

static double difference(const double *a, const double *b, int count) {
  double worst = 0, largest = 0;
  for (int i = 0; i < count; i++) {
    worst = fmax(worst, fabs(a[i] - b[i]));
    largest = fmax(largest, fabs(b[i]));
  }
  assert_true(largest > 0);
  return worst / largest;
}

/* ---- expected losses and gradients, by the formulas ---- */

typedef struct expected {
  double loss[3], gradient[ELEMENTS];
} expected;

typedef struct parts {
  const double *w, *v, *u;
} parts;
static parts parts_of(const double *all) { return (parts){all, all + IN * MID, all + IN * MID + MID}; }

static double h_at(parts p, int64_t step, int64_t row, int k) {
  double sum = 0;
  for (int i = 0; i < IN; i++) sum += two_input(step, row, i) * p.w[i * MID + k];
  return sum;
}

/* Adds a row's square loss, and its addends to the gradients of w, u and v. `ds` is the gradient of s, which all rows
 * of the microbatch share. */
static void add_row(expected *e, parts p, int64_t step, int64_t row, double total, double ds) {
  double *dw = e->gradient, *dv = dw + IN * MID, *du = dv + MID, h[MID], dh[MID];
  for (int k = 0; k < MID; k++) {
    h[k] = h_at(p, step, row, k);
    e->loss[SIZE] += h[k] * h[k] / total;
    dh[k] = ds * p.v[k];
    dv[k] += ds * h[k];
  }
  for (int o = 0; o < OUT; o++) {
    double y = 0;
    for (int k = 0; k < MID; k++) y += h[k] * p.u[k * OUT + o];
    e->loss[SQUARE] += y * y / total;
    for (int k = 0; k < MID; k++) {
      du[k * OUT + o] += 2 * y / total * h[k];
      dh[k] += 2 * y / total * p.u[k * OUT + o];
    }
  }
  for (int i = 0; i < IN; i++)
    for (int k = 0; k < MID; k++) dw[i * MID + k] += two_input(step, row, i) * dh[k];
}

static expected expect(const double *values, int64_t step) {
  expected e = {{0}, {0}};
  parts p = parts_of(values);
  double total = 0;
  for (int64_t row = 0; row < BATCH; row++) total += (double)two_counted(row);
  for (int64_t m = 0; m < MICROBATCHES; m++) {
    ad_span rows = ad_cut(BATCH, m, MICROBATCHES);
    double s = 0, counted = 0;
    for (int64_t row = rows.first; row < rows.first + rows.count; row++) {
      counted += (double)two_counted(row);
      for (int k = 0; k < MID; k++) s += h_at(p, step, row, k) * p.v[k];
    }
    double share = counted / total;
    e.loss[STRENGTH] += share * s * s;
    for (int64_t row = rows.first; row < rows.first + rows.count; row++)
      add_row(&e, p, step, row, total, 2 * s * share);
  }
  return e;
}

static void holds_the_formulas(const seen *s, int rank) {
  for (int step = 0; step < STEPS; step++) {
    expected e = expect(s->before[step], step);
    const ad_step_report *report = &s->report[step];
    for (int i = 0; i < 3; i++) assert_true(fabs(report->losses[i] - e.loss[i]) < 1e-12 * e.loss[i]);
    assert_true(fabs(report->loss - (e.loss[SQUARE] + e.loss[STRENGTH])) < 1e-12 * report->loss);
    assert_true(difference(s->gradient[rank][step], e.gradient, ELEMENTS) < 1e-12);
  }
}

/* Two phases need h, so w's gradient is the sum of both; the metric adds nothing; `strength`, which is not linear in
 * its sums, enters with its microbatch's share. */
static void gradients_and_losses_are_those_of_the_formulas(void **state) {
  seen *one = steps_on(1, "", "", "");
  holds_the_formulas(one, 0);
  assert_true(one->loss_alone == one->report[0].loss);
  assert_int_equal(one->report[0].count, 1 + 2 + 3 + 1 + 2 + 3 + 1);
  forget(one);
}

static void two_modules_on_two_meshes_are_those_of_one_rank(void **state) {
  seen *one = steps_on(1, "", "", "");
  for (int zero = 0; zero < 4; zero++) {
    char shard[64];
    snprintf(shard, sizeof shard, "shard: {zero: %d}\n", zero);
    seen *six = steps_on(RANKS, "", "", shard);
    for (int rank = 0; rank < RANKS; rank++) {
      holds_the_formulas(six, rank);
      assert_memory_equal(six->gradient[rank], six->gradient[0], sizeof six->gradient[0]);
      for (int step = 0; step < STEPS; step++)
        assert_true(difference(six->gradient[rank][step], one->gradient[0][step], ELEMENTS) < 1e-12);
    }
    assert_true(difference(six->after[STEPS - 1], one->after[STEPS - 1], ELEMENTS) < 1e-12);
    assert_true(fabs(six->report[1].norm - one->report[1].norm) < 1e-12 * one->report[1].norm);
    assert_int_equal(six->report[0].count, one->report[0].count);
    forget(six);
  }
  forget(one);
}

/* ---- norms and clips of two norm groups ---- */

static double norm_of(const double *values, int count) {
  double sum = 0;
  for (int i = 0; i < count; i++) sum += values[i] * values[i];
  return sqrt(sum);
}

/* After the first step a first moment is (1 - beta1) times the clipped gradient. */
static void clipped_by(const seen *s, int first, int count, double norm, double clip) {
  for (int i = first; i < first + count; i++) {
    double clipped = 0.1 * s->gradient[0][0][i] * clip / norm;
    assert_true(fabs(s->moment[0][i] - clipped) < 1e-12 * fabs(clipped) + 1e-15);
  }
}

static void norm_groups_have_a_norm_and_a_clip_each(void **state) {
  enum { OF_FRONT = IN * MID + MID, OF_BACK = MID * OUT };
  static const char clip[] = ", clip: 0.01, beta1: 0.9";
  for (int64_t ranks = 1; ranks <= RANKS; ranks += RANKS - 1) {
    seen *apart = steps_on(ranks, ", apart: true", clip, ""), *together = steps_on(ranks, "", clip, "");
    const double *gradient = apart->gradient[0][0], *norms = apart->report[0].norms;
    double front = norm_of(gradient, OF_FRONT), back = norm_of(gradient + OF_FRONT, OF_BACK);
    assert_true(fabs(norms[0] - front) < 1e-12 * front && fabs(norms[1] - back) < 1e-12 * back);
    assert_true(fabs(apart->report[0].norm - hypot(front, back)) < 1e-12 * front);
    clipped_by(apart, 0, OF_FRONT, front, 0.01);
    clipped_by(apart, OF_FRONT, OF_BACK, back, 0.01);
    assert_true(fabs(together->report[0].norms[0] - hypot(front, back)) < 1e-12 * front);
    assert_true(together->report[0].norms[1] == 0);
    clipped_by(together, 0, ELEMENTS, hypot(front, back), 0.01);
    forget(apart);
    forget(together);
  }
}

static void a_skipped_step_skips_both_modules(void **state) {
  for (int apart = 0; apart <= 1; apart++) {
    seen *s = run_on(RANKS, apart ? ", apart: true" : "", "", "precision: {param: f16, loss_scale: 2}\n",
                     (job){.overflows = 1});
    assert_string_equal(s->message[0], "");
    assert_false(s->report[0].skipped);
    assert_true(s->report[1].skipped);
    assert_memory_not_equal(s->before[0], s->after[0], sizeof s->before[0]);
    assert_memory_equal(s->before[1], s->after[1], sizeof s->before[1]);
    assert_memory_equal(s->moment[0], s->moment[1], sizeof s->moment[0]);
    forget(s);
  }
}

/* ---- phases that leave something out ---- */

static void says(const char *forgets, const char *const *facts) {
  char model[64];
  snprintf(model, sizeof model, ", forgets: %s", forgets);
  for (int64_t ranks = 1; ranks <= RANKS; ranks += RANKS - 1) {
    seen *s = run_on(ranks, model, "", "", (job){.dtype = AD_F64});
    for (int rank = 0; rank < ranks; rank++) assert_says_in(model + strlen(", "), s->message[rank], facts);
    forget(s);
  }
}

static void a_phase_that_leaves_something_out_is_named(void **state) {
  says("1", SAYS_FACTS("front", "h"));
  says("2", SAYS_FACTS("square"));
  says("3", SAYS_FACTS("back", "z", "needs"));
}

/* ---- checkpoints and weights of several modules ---- */

typedef struct stored {
  const ad_recipe *recipe;
  const char *folder;
  int saves;
  double values[ELEMENTS], moments[ELEMENTS], balance[MID];
  char message[512];
} stored;

static ad_status save(ad_run *run, const char *folder, const char *weights) {
  ad_checkpointer *checkpointer;
  ad_step_report report;
  ad_status status = ad_run_step(run, 0, &report);
  double *balance = ad_module_state(ad_run_module(run, 0), 0)->data;
  for (int i = 0; i < MID; i++) balance[i] += i;
  if (!status) status = ad_checkpointer_create(ad_run_comm(run), ad_run_everyone(run).mesh, folder, 1, &checkpointer);
  if (status) return status;
  status = ad_run_save(run, checkpointer, 1);
  if (!status) status = ad_checkpointer_finish(checkpointer);
  ad_checkpointer_destroy(checkpointer);
  return status ? status : ad_run_write_weights(run, weights);
}

static ad_status load(ad_run *run, const char *folder, const char *weights) {
  int64_t steps = 0;
  ad_status status = ad_run_load(run, folder, &steps);
  return status || steps != 1 ? status : ad_run_read_weights(run, weights);
}

static int store_on_rank(ad_comm *comm, void *context) {
  stored *s = context;
  ad_run *run;
  char weights[160];
  double values[ELEMENTS], moments[ELEMENTS];
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  snprintf(weights, sizeof weights, "%s/weights", s->folder);
  RANK_MUST(comm, ad_run_create(comm, s->recipe, &options, &run));
  ad_status status = s->saves ? save(run, s->folder, weights) : load(run, s->folder, weights);
  if (!status) status = keep(run, AD_PART_VALUE, values);
  if (!status) status = keep(run, AD_PART_STATE + 1, moments);
  if (!ad_comm_rank(comm)) {
    if (status) snprintf(s->message, sizeof s->message, "%s", ad_last_error());
    memcpy(s->values, values, sizeof values);
    memcpy(s->moments, moments, sizeof moments);
    memcpy(s->balance, ad_module_state(ad_run_module(run, 0), 0)->data, sizeof s->balance);
  }
  ad_run_destroy(run);
  return 0;
}

static stored *store(int64_t ranks, const char *folder, int saves, const char *shard) {
  stored *s = shared_memory(sizeof *s);
  ad_recipe *recipe = two_recipe(ranks == 1 ? MESHES_OF_ONE : MESHES_OF_SIX, "", STEPPING, shard);
  ad_launch_result result = {.size = sizeof result};
  *s = (stored){.recipe = recipe, .folder = folder, .saves = saves};
  ad_status status = launch(ranks, store_on_rank, s, &result);
  if (status) fail_msg("%s", result.message);
  if (s->message[0]) fail_msg("%s", s->message);
  ad_recipe_destroy(recipe);
  return s;
}

static void checkpoints_carry_every_module_and_its_states_to_another_mesh(void **state) {
  char folder[] = "/tmp/addend-phases-XXXXXX";
  assert_non_null(mkdtemp(folder));
  stored *saved = store(RANKS, folder, 1, "shard: {zero: 3}\n");
  for (int i = 0; i < MID; i++) assert_true(saved->balance[i] == 0.5 + i);
  for (int64_t ranks = 1; ranks <= RANKS; ranks += RANKS - 1) {
    stored *loaded = store(ranks, folder, 0, "");
    assert_memory_equal(loaded->values, saved->values, sizeof saved->values);
    assert_memory_equal(loaded->moments, saved->moments, sizeof saved->moments);
    assert_memory_equal(loaded->balance, saved->balance, sizeof saved->balance);
    munmap(loaded, sizeof *loaded);
  }
  munmap(saved, sizeof *saved);
  char part[160];
  snprintf(part, sizeof part, "%s/step-1", folder);
  must(ad_folder_remove(part));
  must(ad_folder_remove(folder));
}

/* ---- gradients seen by a callback ---- */

static void count_addends(void *context, size_t index, const ad_array *addend) { ((int *)context)[index]++; }

static void addends_are_seen_by_their_number_in_the_run(void **state) {
  ad_recipe *recipe = two_recipe(MESHES_OF_ONE, "", STEPPING, "");
  ad_comm *comm;
  ad_run *run;
  int visits[3] = {0};
  char name[64];
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, NULL, &run));
  must(ad_run_addends(run, 0, 0, count_addends, visits, NULL));
  for (int i = 0; i < 3; i++) assert_int_equal(visits[i], MICROBATCHES);
  assert_int_equal(ad_run_param_count(run), 3);
  ad_run_param u = ad_run_param_at(run, 2);
  assert_string_equal(ad_program_param_name(ad_run_program(run), u.module, u.param, name, sizeof name), "back.u");
  assert_ptr_equal(u.held, ad_run_module(run, 1));
  ad_step_report report;
  must(ad_run_step(run, 0, &report)); /* without a callback gradients go to the reducers again */
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

static void a_steady_step_of_two_modules_allocates_nothing(void **state) {
  ad_recipe *recipe = two_recipe(MESHES_OF_ONE, "", STEPPING, "");
  ad_comm *comm;
  ad_run *run;
  ad_step_report report;
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, NULL, &run));
  for (int64_t step = 0; step < 3; step++) must(ad_run_step(run, step, &report));
  ad_memory_fail_at(0);
  must(ad_run_step(run, 3, &report));
  assert_int_equal(ad_memory_fail_at(0), 0);
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

/* ---- the divisor of the losses in a dump ---- */

static char dumped[] = "/tmp/addend-divisor-XXXXXX";

static int make_folder(void **state) {
  snprintf(dumped, sizeof dumped, "/tmp/addend-divisor-XXXXXX");
  return mkdtemp(dumped) ? 0 : 1;
}
static int remove_folder(void **state) { return ad_folder_remove(dumped) != AD_OK; }

/* Checks the divisor in the dump file of microbatch m; "": the file has none. */
static void expect_divisor(int m, const char *wanted) {
  char path[128];
  ad_safetensors *file;
  snprintf(path, sizeof path, "%s/front.rank00000.addend.m%d.safetensors", dumped, m);
  if (ad_safetensors_open(path, &file)) fail_msg("%s", ad_last_error());
  const char *divisor = ad_safetensors_metadata(file, "addend.divisor");
  assert_string_equal(divisor ? divisor : "", wanted);
  ad_safetensors_close(file);
  assert_int_equal(unlink(path), 0);
}

static void dump_divided(const char *model, const char *wanted) {
  ad_recipe *recipe = two_recipe(MESHES_OF_ONE, model, STEPPING, "");
  ad_comm *comm;
  ad_run *run;
  ad_step_report report;
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, NULL, &run));
  must(ad_reducer_dump(ad_module_reducer(ad_run_module(run, 0)), dumped, 0, 0));
  must(ad_run_step(run, 0, &report));
  ad_run_destroy(run);
  for (int m = 0; m < MICROBATCHES; m++) expect_divisor(m, wanted);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
  char sum[128];
  snprintf(sum, sizeof sum, "%s/front.rank00000.sum.safetensors", dumped);
  assert_int_equal(unlink(sum), 0);
}

/* The rows' weights 1, 2, 3, 1, 2, 3, 1 sum to 13. The metric has no gradient, so its divisor does not count. */
static void a_dump_reports_the_divisor_where_all_that_learn_have_one(void **state) {
  dump_divided(", divides: 1", "13");
  dump_divided(", divides: 2", "");
  dump_divided("", "");
}

/* A dump's sums are gradients times the loss scale, and so is the norm beside them. */
static void a_dumps_norm_is_that_of_its_scaled_sums(void **state) {
  for (int scale = 0; scale < 13; scale += 12) {
    char precision[64], path[128];
    snprintf(precision, sizeof precision, "precision: {param: f16, loss_scale: %d}\n", scale);
    if (!scale) precision[0] = 0;
    ad_recipe *recipe = two_recipe(MESHES_OF_ONE, ", apart: true, divides: 1", STEPPING, precision);
    ad_comm *comm;
    ad_run *run;
    ad_step_report report;
    ad_safetensors *file;
    must(ad_comm_open_alone(&comm));
    must(ad_run_create(comm, recipe, NULL, &run));
    must(ad_reducer_dump(ad_module_reducer(ad_run_module(run, 0)), dumped, 0, 0));
    must(ad_run_step(run, 0, &report));
    ad_run_destroy(run);
    assert_int_equal(report.loss_scale, scale);
    for (int m = 0; m < MICROBATCHES; m++) expect_divisor(m, "13");
    snprintf(path, sizeof path, "%s/front.rank00000.sum.safetensors", dumped);
    must(ad_safetensors_open(path, &file));
    const char *norm = ad_safetensors_metadata(file, "addend.norm");
    assert_non_null(norm);
    assert_true(report.norms[0] > 0 && fabs(strtod(norm, NULL) / ldexp(report.norms[0], scale) - 1) < 1e-8);
    ad_safetensors_close(file);
    assert_int_equal(unlink(path), 0);
    ad_comm_close(comm);
    ad_recipe_destroy(recipe);
  }
}

static void the_step_runs_on_paper(void **state) {
  ad_recipe *recipe = two_recipe(MESHES_OF_SIX, ", apart: true", STEPPING, "shard: {zero: 3}\n");
  for (int64_t rank = 0; rank < RANKS; rank++) {
    ad_comm *comm;
    ad_run *run;
    ad_step_report report;
    must(ad_comm_open_dry(rank, RANKS, &comm));
    must(ad_run_create(comm, recipe, NULL, &run));
    must(ad_run_step(run, 0, &report));
    ad_run_destroy(run);
    ad_comm_close(comm);
  }
  ad_recipe_destroy(recipe);
}

/* A recipe asks for an evaluation unless it says otherwise; a program that holds nothing out has none. */
static void a_program_that_holds_nothing_out_is_not_evaluated(void **state) {
  ad_recipe *recipe = two_recipe(MESHES_OF_ONE, "", ", global_batch: 6, lr: 1e-3", "");
  ad_evaluation found = {.samples = 7};
  ad_comm *comm;
  ad_run *run;
  assert_true(recipe->evaluate.samples > 0);
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, NULL, &run));
  assert_int_equal(ad_run_evaluated(run), 0);
  must(ad_run_evaluate(run, &found));
  assert_true(found.samples == 0 && isnan(found.loss) && isnan(found.standard_error));
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

/* Whatever fails while a module is made, its name is reported; a program's only module needs none. */
static void a_module_that_cannot_be_made_is_named(void **state) {
  ad_recipe *of_two = two_recipe(MESHES_OF_ONE, "", STEPPING, ""),
            *of_one = tiny_recipe("dp=1", "", STEPPING ", steps: 4");
  for (int modules = 1; modules <= 2; modules++) {
    int reported[2] = {0}, others = 0;
    ad_status status = AD_MEMORY;
    for (long n = 1; status; n++) {
      ad_comm *comm;
      ad_run *run = NULL;
      must(ad_comm_open_alone(&comm));
      ad_memory_fail_at(n);
      status = ad_run_create(comm, modules == 2 ? of_two : of_one, NULL, &run);
      ad_memory_fail_at(0);
      reported[0] += status && strstr(ad_last_error(), "module `front`");
      reported[1] += status && strstr(ad_last_error(), "module `back`");
      others += status && strstr(ad_last_error(), "module `") && modules == 1;
      ad_run_destroy(run);
      ad_comm_close(comm);
    }
    assert_int_equal(others, 0);
    for (int i = 0; i < 2; i++) assert_int_equal(reported[i] > 5, modules == 2);
  }
  ad_recipe_destroy(of_two);
  ad_recipe_destroy(of_one);
}

/* Whether copies of some module's gradients would count otherwise by their position on the other module's mesh: not
 * where the meshes are one, nor where the same axes join the same ranks. */
static void replicas_that_differ_on_the_other_mesh_are_seen(void **state) {
  static const struct {
    const char *meshes;
    int64_t ranks;
    int differ;
  } cases[] = {{MESHES_OF_SIX, 6, 1},
               {"{front: dp_replicate=1 dp_shard=2, back: dp_shard=2 tp=1}", 2, 0},
               {"{front: dp_replicate=2 dp_shard=1, back: dp_shard=2 tp=1}", 2, 0},
               {"{front: dp_replicate=1 dp_shard=2, back: dp_shard=1 tp=2}", 2, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_recipe *recipe = two_recipe(cases[i].meshes, "", STEPPING, "");
    ad_comm *comm;
    ad_run *run;
    must(ad_comm_open_dry(0, cases[i].ranks, &comm));
    must(ad_run_create(comm, recipe, NULL, &run));
    if (ad_replicas_differ_on_other_mesh(run) != cases[i].differ) fail_msg("%s", cases[i].meshes);
    ad_run_destroy(run);
    ad_comm_close(comm);
    ad_recipe_destroy(recipe);
  }
}

/* A schedule's REDUCE names the microbatch whose backward came last, or none; weights are computed once, and after the
 * inputs. Everything else is refused, for microbatch 0 as for others. */
static void progress_refuses_what_is_out_of_turn(void **state) {
  static const struct {
    int64_t back;
    int32_t reduced;
    int64_t found; /* the microbatch that is reduced; -1: it is refused */
  } cases[] = {{-1, -1, -1}, {-1, 0, -1}, {0, -1, 0}, {0, 0, 0}, {0, 1, -1},
               {1, -1, 1},   {1, 0, -1},  {1, 1, 1},  {1, 2, -1}};
  ad_recipe *recipe = two_recipe(MESHES_OF_ONE, "", STEPPING, "");
  ad_comm *comm;
  ad_run *run;
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, NULL, &run));
  ad_progress_begin_pass(run);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    size_t found = 7;
    run->progress.phases[1].back = cases[i].back;
    ad_status status = ad_progress_reduced(run, 1, cases[i].reduced, &found);
    if (status != (cases[i].found < 0 ? AD_INVALID : AD_OK)) fail_msg("case %zu", i);
    if (status) assert_facts(ad_last_error(), "back");
    if (!status) assert_int_equal(found, cases[i].found);
  }
  for (int32_t m = 0; m < MICROBATCHES; m++) {
    assert_int_equal(ad_progress_flush(run, 2, m), AD_INVALID);
    assert_facts(ad_last_error(), "tail");
    ad_progress_defer(run, 2, m);
    assert_int_equal(ad_progress_flush(run, 1, m), AD_INVALID);  // of another phase
    assert_int_equal(ad_progress_flush(run, 2, m + 1), AD_INVALID);
    must(ad_progress_flush(run, 2, m));
    assert_int_equal(ad_progress_flush(run, 2, m), AD_INVALID);
  }
  must(ad_progress_begin_addend(run, 0, 2, 1));
  must(ad_progress_begin_addend(run, 2, 2, 1));  // the module's other phase
  assert_int_equal(ad_progress_begin_addend(run, 2, 1, 1), AD_INVALID);
  assert_facts(ad_last_error(), "tail", "1", "2");
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

static void weights_that_cannot_be_written_are_reported(void **state) {
  ad_recipe *recipe = two_recipe(MESHES_OF_ONE, "", STEPPING, "");
  ad_comm *comm;
  ad_run *run;
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, NULL, &run));
  assert_int_equal(ad_run_write_weights(run, "/nowhere/weights.safetensors"), AD_IO);
  assert_facts(ad_last_error(), "/nowhere/weights.safetensors");
  run->trace.transfer = 2500000000;
  assert_true(fabs(ad_run_transfer_seconds(run) - 2.5) < 1e-12);
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_and_losses_are_those_of_the_formulas),
      cmocka_unit_test(two_modules_on_two_meshes_are_those_of_one_rank),
      cmocka_unit_test(norm_groups_have_a_norm_and_a_clip_each),
      cmocka_unit_test(a_skipped_step_skips_both_modules),
      cmocka_unit_test(a_phase_that_leaves_something_out_is_named),
      cmocka_unit_test(checkpoints_carry_every_module_and_its_states_to_another_mesh),
      cmocka_unit_test(addends_are_seen_by_their_number_in_the_run),
      cmocka_unit_test(a_steady_step_of_two_modules_allocates_nothing),
      cmocka_unit_test_setup_teardown(a_dumps_norm_is_that_of_its_scaled_sums, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_dump_reports_the_divisor_where_all_that_learn_have_one, make_folder,
                                      remove_folder),
      cmocka_unit_test(the_step_runs_on_paper),
      cmocka_unit_test(a_module_that_cannot_be_made_is_named),
      cmocka_unit_test(replicas_that_differ_on_the_other_mesh_are_seen),
      cmocka_unit_test(progress_refuses_what_is_out_of_turn),
      cmocka_unit_test(weights_that_cannot_be_written_are_reported),
      cmocka_unit_test(a_program_that_holds_nothing_out_is_not_evaluated),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
