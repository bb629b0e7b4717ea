/* Tests mistakes that are derived from a pipeline's table: each action left out, done twice, done for another
 * microbatch, each two neighbours swapped, a W before its I, a REDUCE before the last addend. A run refuses such tables
 * by law; this test executes them all the same, on real ranks. Each ends with a message or with the right bits: none
 * gives other numbers, and none hangs. ADDEND_TEST_TELL=1 in the environment prints what became of each. */
#include "world.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>
#include "array/array.h"
#include "base/memory.h"
#include "draw.h"
#include "module/module.h"
#include "ranks.h"
#include "says.h"
#include "schedule/table.h"
#include "step/run.h"

enum { STEPS = 2, RANKS_MAX = 4, ELEMENTS_MAX = 1 << 15 };

/* ---- mistakes in a table ---- */

typedef enum mutant_kind { LEFT_OUT, TWICE, OTHER_MICROBATCH, SWAPPED, EARLY, KINDS } mutant_kind;
static const char *const kind_names[KINDS] = {"left out", "twice", "for another microbatch",
                                              "swapped with the one before", "before what it needs"};

typedef struct mutant {
  mutant_kind kind;
  int32_t rank;
  size_t place, to; /* EARLY: the action at `place` moves to `to` */
  int32_t microbatch;
} mutant;

typedef struct row {
  ad_action *actions;
  size_t count;
} row;

static row row_of(const ad_table *table, int32_t rank) {
  row r = {.count = ad_table_action_count(table, rank)};
  must(ad_new(r.count + 1, &r.actions));
  memcpy(r.actions, ad_table_action(table, rank, 0), r.count * sizeof *r.actions);
  return r;
}

static ad_action take_out(row *r, size_t place) {
  ad_action action = r->actions[place];
  memmove(&r->actions[place], &r->actions[place + 1], (--r->count - place) * sizeof action);
  return action;
}

static void put_in(row *r, size_t place, ad_action action) {
  memmove(&r->actions[place + 1], &r->actions[place], (r->count++ - place) * sizeof action);
  r->actions[place] = action;
}

static void move(row *r, size_t from, size_t to) { put_in(r, to, take_out(r, from)); }

static void change(row *r, const mutant *m) {
  if (m->kind == LEFT_OUT) take_out(r, m->place);
  if (m->kind == TWICE) put_in(r, m->place, r->actions[m->place]);
  if (m->kind == OTHER_MICROBATCH) r->actions[m->place].microbatch = m->microbatch;
  if (m->kind == SWAPPED) move(r, m->place, m->place - 1);
  if (m->kind == EARLY) move(r, m->place, m->to);
}

/* Returns a copy of the table with the mistake. */
static ad_table *changed(const ad_table *table, const mutant *m) {
  ad_table *copy;
  row r = row_of(table, m->rank);
  must(ad_table_copy(table, &copy));
  change(&r, m);
  ad_table_take_row(copy, m->rank, r.actions, r.count);
  return copy;
}

/* ---- listing every mistake of a table ---- */

enum { MUTANTS_MAX = 1024 };
typedef struct mutants {
  mutant list[MUTANTS_MAX];
  int count;
} mutants;

static void add(mutants *to, mutant m) {
  assert_true(to->count < MUTANTS_MAX);
  to->list[to->count++] = m;
}

static int is_addend(const ad_action *a) { return a->kind == AD_ACTION_B || a->kind == AD_ACTION_W; }

/* The place of the I that a W needs, or of the last addend that a REDUCE needs: an EARLY mistake moves before it. */
static size_t place_needed(const ad_table *table, int32_t rank, size_t place) {
  const ad_action *of = ad_table_action(table, rank, place);
  for (size_t i = place; i-- > 0;) {
    const ad_action *a = ad_table_action(table, rank, i);
    if (a->stage != of->stage) continue;
    if (of->kind == AD_ACTION_W && a->kind == AD_ACTION_I && a->microbatch == of->microbatch) return i;
    if (of->kind == AD_ACTION_REDUCE && is_addend(a)) return i;
  }
  return place;
}

static void add_at(mutants *to, const ad_table *table, int32_t rank, size_t place) {
  const ad_action *a = ad_table_action(table, rank, place);
  size_t needed = place_needed(table, rank, place);
  add(to, (mutant){LEFT_OUT, rank, place, 0, 0});
  add(to, (mutant){TWICE, rank, place, 0, 0});
  if (place) add(to, (mutant){SWAPPED, rank, place, 0, 0});
  if (needed + 1 < place) add(to, (mutant){EARLY, rank, place, needed, 0});
  for (int32_t m = 0; m < ad_table_microbatch_count(table); m++)
    if (a->microbatch >= 0 && m != a->microbatch) add(to, (mutant){OTHER_MICROBATCH, rank, place, 0, m});
}

static void find_mutants(const ad_table *table, mutants *to) {
  to->count = 0;
  for (int32_t rank = 0; rank < ad_table_rank_count(table); rank++)
    for (size_t i = 0; i < ad_table_action_count(table, rank); i++) add_at(to, table, rank, i);
}

/* ---- executing a table on real ranks ---- */

typedef struct seen {
  ad_step_report report[STEPS];
  double gradient[RANKS_MAX][STEPS][ELEMENTS_MAX];
  size_t elements[RANKS_MAX];
} seen;

typedef struct job {
  const ad_recipe *recipe;
  const ad_table *table; /* the table to execute; NULL: the run's own */
  seen *seen;
} job;

static void keep(ad_run *run, double *to, size_t *elements) {
  *elements = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    size_t count = gradient && gradient->data ? ad_array_numel(gradient) : 0;
    if (*elements + count > ELEMENTS_MAX) abort();
    if (count) memcpy(to + *elements, gradient->data, count * sizeof *to);
    *elements += count;
  }
}

static ad_status take_steps(ad_run *run, int64_t rank, seen *to) {
  for (int step = 0; step < STEPS; step++) {
    ad_step_report report = {0};
    ad_status status = ad_run_step(run, step, &report);
    if (status) return status;
    if (!rank) to->report[step] = report;
    keep(run, to->gradient[rank][step], &to->elements[rank]);
  }
  return AD_OK;
}

static int execute(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  if (j->table) {
    ad_table *table;
    RANK_MUST(comm, ad_table_copy(j->table, &table));
    RANK_MUST(comm, ad_run_take_unchecked(run, table));
  }
  RANK_MUST(comm, take_steps(run, ad_comm_rank(comm), j->seen));
  ad_run_destroy(run);
  return 0;
}

/* ---- the outcome of a wrong table ---- */

typedef enum outcome { SAME_BITS, SAME_NUMBERS, OTHER_NUMBERS, REFUSED, OUTCOMES } outcome;
static const char *const outcome_names[OUTCOMES] = {"the same bits", "the same numbers", "other numbers", "an error"};

static double apart(double a, double b) { return fabs(a - b) / fmax(1e-300, fmax(fabs(a), fabs(b))); }

/* The distance of one rank's gradients in a step, relative to their norm. */
static double gradient_apart(const seen *a, const seen *b, int64_t rank, int step) {
  double squares = 0, norm = 0;
  if (a->elements[rank] != b->elements[rank]) return INFINITY;
  for (size_t i = 0; i < a->elements[rank]; i++) {
    double x = a->gradient[rank][step][i], y = b->gradient[rank][step][i];
    squares += (x - y) * (x - y);
    norm += x * x;
  }
  return sqrt(squares) / fmax(1e-300, sqrt(norm));
}

static outcome compare(const seen *right, const seen *other, int64_t ranks) {
  double most = 0;
  int same = 1;
  for (int step = 0; step < STEPS; step++) {
    const ad_step_report *a = &right->report[step], *b = &other->report[step];
    same &= a->loss == b->loss && a->norm == b->norm;
    most = fmax(most, fmax(apart(a->loss, b->loss), apart(a->norm, b->norm)));
    for (int64_t rank = 0; rank < ranks; rank++) {
      size_t bytes = right->elements[rank] * sizeof(double);
      most = fmax(most, gradient_apart(right, other, rank, step));
      same &= !memcmp(right->gradient[rank][step], other->gradient[rank][step], bytes);
    }
  }
  if (!(most <= 1e-12)) return OTHER_NUMBERS;
  return same ? SAME_BITS : SAME_NUMBERS;
}

static const char *in_flight = ""; /* the table that is executing, for the message of a test that hangs */
static void report_hang(int signal) {
  (void)signal;
  static const char words[] = "\nit hangs: ";
  if (write(STDERR_FILENO, words, sizeof words - 1) < 0 || write(STDERR_FILENO, in_flight, strlen(in_flight)) < 0)
    _exit(2);
  _exit(1);
}

/* Executes the table and compares with `right`; *out gets the ranks' message. */
static outcome outcome_of(const job *j, int64_t ranks, const seen *right, ad_launch_result *out) {
  memset(j->seen->elements, 0, sizeof j->seen->elements);
  *out = (ad_launch_result){.size = sizeof *out};
  alarm(RANK_HANGS);
  ad_status status = launch(ranks, execute, (void *)j, out);
  alarm(0);
  if (!status) return right ? compare(right, j->seen, ranks) : SAME_BITS;
  if (out->signal || !out->message[0])
    fail_msg("%s: rank %lld ended by signal %d: %s", in_flight, (long long)out->rank, out->signal, out->message);
  return REFUSED;
}

/* ---- trying one table ---- */

typedef struct counters {
  int of[2][KINDS][OUTCOMES]; /* [0]: tables that the laws refuse; [1]: tables that they let pass */
} counters;

static const char *words_of(const char *recipe, const ad_table *table, const mutant *m) {
  static char words[256];
  char action[AD_ACTION_TEXT_MAX];
  ad_action_print(ad_table_action(table, m->rank, m->place), action, sizeof action);
  snprintf(words, sizeof words, "%s: rank %d, place %zu, %s %s (%d)", recipe, m->rank, m->place, action,
           kind_names[m->kind], m->microbatch);
  return words;
}

/* A table that no law refuses gives the same bits, or is refused: the laws only require that a stage is reduced after its
 * last addend; the executing run also requires a reduction of each microbatch once its addends are there. */
static void judge_lawful(outcome became, const ad_launch_result *result) {
  if (became == SAME_BITS) return;
  if (became != REFUSED)
    fail_msg("%s: no law is broken, and it has %s: %s", in_flight, outcome_names[became], result->message);
  assert_says_in("a REDUCE before its addends", result->message, SAYS_FACTS("REDUCE"));
}

static void try_mutant(const job *right, int64_t ranks, const ad_table *table, const mutant *m, counters *to) {
  static seen *other;
  ad_launch_result result;
  if (!other) other = shared_memory(sizeof *other);
  ad_table *wrong = changed(table, m);
  int holds = ad_table_check(wrong, NULL) == AD_OK;
  job j = {right->recipe, wrong, other};
  in_flight = words_of(right->recipe->name, table, m);
  outcome became = outcome_of(&j, ranks, right->seen, &result);
  if (getenv("ADDEND_TEST_TELL"))
    print_message("%s: %s, %s %s\n", in_flight, holds ? "holds" : "refused", outcome_names[became], result.message);
  if (holds) judge_lawful(became, &result);
  to->of[holds][m->kind][became]++;
  ad_table_destroy(wrong);
}

static ad_recipe *recipe_of(const char *name, const char *mesh, const char *schedule) {
  char text[1024];
  ad_recipe *recipe;
  snprintf(text, sizeof text,
           "name: %s\nmodel: {kind: gpt, layers: 3, d_model: 12, heads: 2, d_hidden: 10}\n"
           "data: {text: [/usr/share/common-licenses], seq: 8, valid: [1, 0.5, 0.25, 0.75, 1, 0, 0.5]}\n"
           "mesh: \"%s\"\nschedule: %s\n"
           "train: {seed: 4, steps: 4, lr: 1e-2, global_batch: 7, microbatches: 3}\n",
           name, mesh, schedule);
  if (ad_recipe_parse(text, "tiny.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}

/* A copy of the table that the run executes. */
static ad_table *table_of(const ad_recipe *recipe, int64_t ranks) {
  ad_comm *dry;
  ad_run *run;
  ad_table *table;
  must(ad_comm_open_dry(0, ranks, &dry));
  must(ad_run_create(dry, recipe, NULL, &run));
  must(ad_table_copy(run->order.table, &table));
  ad_run_destroy(run);
  ad_comm_close(dry);
  return table;
}

static void try_drawn(const job *right, int64_t ranks, const ad_table *table, int taken, counters *to) {
  static mutants all;
  find_mutants(table, &all);
  draw drawn = draw_cases(right->recipe->name, all.count, 0, taken);
  for (int i = 0; i < all.count; i++)
    if (is_drawn(&drawn, i)) try_mutant(right, ranks, table, &all.list[i], to);
}

static void try_schedule(const char *name, const char *mesh, const char *schedule, int taken, counters *to) {
  ad_recipe *recipe = recipe_of(name, mesh, schedule);
  job right = {recipe, NULL, shared_memory(sizeof(seen))};
  ad_launch_result result;
  int64_t ranks;
  must(ad_recipe_world(recipe, &ranks));
  in_flight = name;
  if (outcome_of(&right, ranks, NULL, &result) != SAME_BITS) fail_msg("%s: %s", name, result.message);
  ad_table *table = table_of(recipe, ranks);
  try_drawn(&right, ranks, table, taken, to);
  ad_table_destroy(table);
  munmap(right.seen, sizeof *right.seen);
  ad_recipe_destroy(recipe);
}

/* A table that the laws refuse may end with the right bits only if it swaps two neighbours that do not depend on each
 * other when sends are buffered. */
static void print_counters(const counters *all, int kind) {
  const int *wrong = all->of[0][kind], *right = all->of[1][kind];
  print_message(
      "%s: refused by law and executed, %d end with an error, %d with the same bits; of those that are right "
      "%d have the same bits, %d miss a microbatch's reduction\n",
      kind_names[kind], wrong[REFUSED], wrong[SAME_BITS], right[SAME_BITS], right[REFUSED]);
  assert_int_equal(wrong[OTHER_NUMBERS] + wrong[SAME_NUMBERS], 0);
  if (kind != SWAPPED) assert_int_equal(wrong[SAME_BITS] + right[SAME_BITS], 0);
}

static void every_mutant_is_killed_or_has_no_effect(void **state) {
  static counters all;
  (void)state;
  signal(SIGALRM, report_hang);
  try_schedule("gpipe-of-2", "pp=2", "{kind: gpipe}", 10, &all);
  try_schedule("1f1b-of-2", "pp=2 dp=2", "{kind: 1f1b}", 14, &all);
  try_schedule("1f1b-of-3", "pp=3", "{kind: 1f1b}", 14, &all);
  try_schedule("interleaved-of-2", "pp=2", "{kind: interleaved, stages: 4}", 14, &all);
  try_schedule("zb-of-2", "pp=2", "{kind: zb}", 14, &all);
  try_schedule("zb-of-3", "pp=3", "{kind: zb}", 14, &all);
  for (int kind = 0; kind < KINDS; kind++) print_counters(&all, kind);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_mutant_is_killed_or_has_no_effect)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
