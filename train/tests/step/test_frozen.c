/* Tests runs with frozen parameters: the others' gradients are those of a run without frozen ones, on every topology;
 * frozen values keep their bits; what has no gradient sends none, keeps no tape and gives its memory back. */
#include "deferred.h"
#include "pools.h"

#include <math.h>
#include "kernels/kernels.h"
#include "module/module.h"
#include "program/program.h"
#include "reduce/plan.h"
#include "step/run.h"

enum { RANKS_MAX = 8, STEPS = 3, BATCH = 7, PARAMS = 5 };

/* The ranks on which the two modules run. */
typedef struct place {
  const char *a, *b;
  int disjoint;
  int64_t ranks;
} place;

static const place one = {"dp=1 cp=1", "dp=1 cp=1", 0, 1}, together = {"dp=2 cp=2", "dp=1 cp=4", 0, 4},
                   apart = {"dp=2 cp=2", "dp=1 cp=4", 1, 8}, three_and_two = {"dp=3 cp=1", "dp=1 cp=2", 1, 5};

/* What all ranks saw: full values one after another, in the order of the program's parameters. */
typedef struct seen {
  ad_step_report report[STEPS];
  double gradient[STEPS][ELEMENTS_MAX], after[STEPS + 1][ELEMENTS_MAX];
  size_t offset[PARAMS + 1]; /* where each parameter's elements begin */
  size_t params;
} seen;

typedef struct job {
  const ad_recipe *recipe;
  int defers; /* 1: backward in two passes */
  seen *seen;
} job;

static ad_recipe *recipe_of(const place *at, pools_form form, int frozen, int microbatches, int zero,
                            const char *more) {
  char text[768];
  ad_recipe *recipe = NULL;
  pools_register();
  snprintf(text, sizeof text,
           "name: pools\nmodel: {kind: pools, form: %d, frozen: %d}\nmesh: {a: %s, b: %s}\nplacement: %s\n"
           "shard: {zero: %d}\ntrain: {seed: 4, steps: 10, global_batch: %d, microbatches: %d, lr: 1e-2, clip: 0%s}\n",
           form, frozen, at->a, at->b, at->disjoint ? AD_DISJOINT : AD_COLOCATED, zero, BATCH, microbatches, more);
  if (ad_recipe_parse(text, "pools.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}

/* Writes the full array of each parameter; zeros where the parameter has none. */
static ad_status keep(ad_run *run, ad_param_part part, seen *s, double *to) {
  s->params = ad_run_param_count(run);
  for (size_t i = 0; i < s->params; i++) {
    double memory[ELEMENTS_MAX] = {0};
    ad_array full = {.data = memory};
    const ad_array *array = ad_run_part(run, i, part);
    size_t numel = (size_t)ad_shape_numel(&ad_run_param_at(run, i).spec->shape);
    ad_status status = array ? ad_run_full(run, array, &full) : AD_OK;
    if (status) return status;
    memset(to + s->offset[i], 0, numel * sizeof *to);
    if (array) ad_cast(to + s->offset[i], AD_F64, memory, full.dtype, numel);
    s->offset[i + 1] = s->offset[i] + numel;
  }
  return AD_OK;
}

/* Checks that a frozen parameter has a value and nothing else, wherever it is. */
static ad_status check_parts(const ad_run *run) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    int is_frozen = ad_run_param_at(run, i).spec->frozen;
    const ad_array *value = ad_run_part(run, i, AD_PART_VALUE);
    if (!value) return ad_fail(AD_INVALID, "parameter %zu has no value", i);
    if (is_frozen && ad_run_part(run, i, AD_PART_MASTER) != value)
      return ad_fail(AD_INVALID, "parameter %zu has a master", i);
    if (is_frozen == (ad_run_part(run, i, AD_PART_GRADIENT) != NULL) ||
        is_frozen == (ad_run_part(run, i, AD_PART_STATE) != NULL))
      return ad_fail(AD_INVALID, "parameter %zu is frozen or not, unlike its gradient or its state", i);
  }
  return AD_OK;
}

static int train_on_rank(ad_comm *comm, void *context) {
  const job *j = context;
  static seen own;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64, .quiet = 1};
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  if (j->defers) RANK_MUST(comm, defer_weights(run, 1));
  RANK_MUST(comm, check_parts(run));
  RANK_MUST(comm, keep(run, AD_PART_VALUE, &own, own.after[0]));
  for (int step = 0; step < STEPS; step++) {
    RANK_MUST(comm, ad_run_step(run, step, &own.report[step]));
    RANK_MUST(comm, keep(run, AD_PART_GRADIENT, &own, own.gradient[step]));
    RANK_MUST(comm, keep(run, AD_PART_VALUE, &own, own.after[step + 1]));
  }
  ad_run_destroy(run);
  if (!ad_comm_rank(comm)) memcpy(j->seen, &own, sizeof own);
  return 0;
}

static seen *run_recipe(ad_recipe *recipe, int defers) {
  ad_launch_result result = {.size = sizeof result};
  int64_t ranks = 0;
  job j = {recipe, defers, shared_memory(sizeof(seen))};
  must(ad_recipe_world(recipe, &ranks));
  if (launch(ranks, train_on_rank, &j, &result)) fail_msg("%s", result.message);
  ad_recipe_destroy(recipe);
  return j.seen;
}

static seen *run_on(const place *at, pools_form form, int frozen, int microbatches, int zero) {
  return run_recipe(recipe_of(at, form, frozen, microbatches, zero, ""), 0);
}

static void forget(seen *s) { munmap(s, sizeof *s); }

/* ---- values and gradients ---- */

/* Returns 1 if parameter i of the form is frozen. Only BACK has v and q, which come after w, and only TWICE has t. */
static int is_frozen(pools_form form, int frozen, size_t i) {
  static const int of_back[] = {FROZEN_W, FROZEN_V, FROZEN_Q, FROZEN_U}, of_others[] = {FROZEN_W, FROZEN_U, FROZEN_T};
  return (frozen & (form == BACK ? of_back : of_others)[i]) != 0;
}

static size_t bytes_of(const seen *s, size_t i) { return (s->offset[i + 1] - s->offset[i]) * sizeof(double); }

/* Checks the first step against that of a run without frozen parameters, and that frozen values keep their bits. */
static void check_first_step(const seen *s, const seen *trained, pools_form form, int frozen) {
  double squares = 0;
  assert_true(s->report[0].loss == trained->report[0].loss);
  for (size_t i = 0; i < s->params; i++) {
    size_t at = s->offset[i];
    if (is_frozen(form, frozen, i)) {
      for (int step = 0; step < STEPS; step++)
        assert_memory_equal(&s->after[step + 1][at], &s->after[0][at], bytes_of(s, i));
      continue;
    }
    assert_memory_equal(&s->gradient[0][at], &trained->gradient[0][at], bytes_of(s, i));
    assert_memory_equal(&s->after[1][at], &trained->after[1][at], bytes_of(s, i));
    assert_true(memcmp(&s->after[1][at], &s->after[0][at], bytes_of(s, i)) != 0);
    for (; at < s->offset[i + 1]; at++) squares += s->gradient[0][at] * s->gradient[0][at];
  }
  assert_true(fabs(s->report[0].norm - sqrt(squares)) <= 1e-12 * sqrt(squares));
}

static void is_near(const double *a, const double *b) {
  double largest = 0;
  for (int i = 0; i < ELEMENTS_MAX; i++) largest = fmax(largest, fabs(b[i]));
  for (int i = 0; i < ELEMENTS_MAX; i++) assert_true(fabs(a[i] - b[i]) <= 1e-12 * largest);
}

static void is_like(const seen *s, const seen *wanted) {
  for (int step = 0; step < STEPS; step++) {
    is_near(s->gradient[step], wanted->gradient[step]);
    is_near(s->after[step + 1], wanted->after[step + 1]);
    assert_true(fabs(s->report[step].norm - wanted->report[step].norm) <= 1e-12 * wanted->report[step].norm);
    assert_true(fabs(s->report[step].loss - wanted->report[step].loss) <= 1e-12 * wanted->report[step].loss);
  }
}

/* Every set of frozen parameters of a form, but that of all. */
typedef struct case_of {
  pools_form form;
  int frozen;
} case_of;

static const case_of cases[] = {
    {PAIR, FROZEN_W},
    {PAIR, FROZEN_U},
    {TWICE, FROZEN_W},
    {TWICE, FROZEN_U},
    {TWICE, FROZEN_W | FROZEN_U}, /* the first loss depends on frozen parameters alone */
    {TWICE, FROZEN_U | FROZEN_T},
    {BACK, FROZEN_W},
    {BACK, FROZEN_W | FROZEN_U}, /* the value that comes back is of frozen parameters alone */
    {BACK, FROZEN_W | FROZEN_V | FROZEN_Q},
    {BACK, FROZEN_V | FROZEN_Q},
    {BACK, FROZEN_U},
};
enum { CASES = sizeof cases / sizeof *cases };

static void compare_with_trained(const place *at, int microbatches, int zero) {
  for (int form = 0; form < FORMS; form++) {
    seen *trained = run_on(at, (pools_form)form, 0, microbatches, zero);
    for (int i = 0; i < CASES; i++) {
      if (cases[i].form != (pools_form)form) continue;
      seen *s = run_on(at, cases[i].form, cases[i].frozen, microbatches, zero);
      check_first_step(s, trained, cases[i].form, cases[i].frozen);
      forget(s);
    }
    forget(trained);
  }
}

static void the_others_learn_what_they_learn_without_frozen_ones(void **state) {
  compare_with_trained(&one, 3, 0);
  compare_with_trained(&together, 2, 3);
  compare_with_trained(&together, 1, 1);
  compare_with_trained(&apart, 3, 2);
  compare_with_trained(&three_and_two, 5, 0);
}

static void every_topology_learns_the_same(void **state) {
  for (int i = 0; i < CASES; i++) {
    seen *alone = run_on(&one, cases[i].form, cases[i].frozen, 3, 0);
    for (int zero = i % 2; zero < 4; zero += 2) {
      seen *shared = run_on(&together, cases[i].form, cases[i].frozen, 3, zero);
      seen *disjoint = run_on(&three_and_two, cases[i].form, cases[i].frozen, 3, zero);
      is_like(shared, alone);
      is_like(disjoint, alone);
      forget(shared);
      forget(disjoint);
    }
    forget(alone);
  }
}

static void backward_may_run_in_two_passes(void **state) {
  for (int i = 0; i < CASES; i++) {
    seen *pass = run_on(&apart, cases[i].form, cases[i].frozen, 3, 3);
    seen *passes = run_recipe(recipe_of(&apart, cases[i].form, cases[i].frozen, 3, 3, ""), 1);
    assert_memory_equal(passes->gradient, pass->gradient, sizeof pass->gradient);
    assert_memory_equal(passes->after, pass->after, sizeof pass->after);
    forget(pass);
    forget(passes);
  }
}

static void it_holds_under_a_hostile_backend(void **state) {
  for (int i = 0; i < CASES; i += 3) {
    seen *s = run_on(&apart, cases[i].form, cases[i].frozen, 3, 3);
    setenv("ADDEND_HOSTILE", "11", 1);
    seen *hostile = run_on(&apart, cases[i].form, cases[i].frozen, 3, 3);
    unsetenv("ADDEND_HOSTILE");
    assert_memory_equal(hostile->gradient, s->gradient, sizeof s->gradient);
    assert_memory_equal(hostile->after, s->after, sizeof s->after);
    forget(s);
    forget(hostile);
  }
}

/* ---- what is not done ---- */

static const ad_run_options in_f64 = {.size = sizeof in_f64, .dtype = AD_F64, .quiet = 1};

/* A run on backend dry, as one rank. */
typedef struct paper {
  ad_recipe *recipe;
  ad_comm *comm;
  ad_run *run;
} paper;

static paper paper_of(ad_recipe *recipe, int64_t rank) {
  paper p = {.recipe = recipe};
  int64_t ranks;
  must(ad_recipe_world(recipe, &ranks));
  must(ad_comm_open_dry(rank, ranks, &p.comm));
  if (ad_run_create(p.comm, p.recipe, &in_f64, &p.run)) fail_msg("%s", ad_last_error());
  return p;
}

static paper open_paper(const place *at, pools_form form, int frozen, int64_t rank) {
  return paper_of(recipe_of(at, form, frozen, 4, 0, ""), rank);
}

static void close_paper(paper *p) {
  ad_run_destroy(p->run);
  ad_comm_close(p->comm);
  ad_recipe_destroy(p->recipe);
}

static size_t actions_of(const paper *p, ad_action_kind kind) {
  size_t count = 0;
  for (size_t i = 0; i < ad_order_count(&p->run->order); i++) count += ad_order_at(&p->run->order, i)->kind == kind;
  return count;
}

/* Checks, as one rank of each module, that each of the four microbatches sends as many gradients as values. */
static void check_transfers(pools_form form, int frozen, size_t values, size_t gradients) {
  for (int64_t rank = 0; rank < apart.ranks; rank += apart.ranks - 1) {
    paper p = open_paper(&apart, form, frozen, rank);
    assert_int_equal(actions_of(&p, AD_ACTION_SEND_F) + actions_of(&p, AD_ACTION_RECV_F), 4 * values);
    assert_int_equal(actions_of(&p, AD_ACTION_SEND_B) + actions_of(&p, AD_ACTION_RECV_B), 4 * gradients);
    close_paper(&p);
  }
}

static void what_has_no_gradient_sends_and_receives_none(void **state) {
  check_transfers(PAIR, 0, 1, 1);
  check_transfers(PAIR, FROZEN_W, 1, 0);
  check_transfers(PAIR, FROZEN_U, 1, 1);
  check_transfers(TWICE, FROZEN_W, 1, 0);
  check_transfers(BACK, 0, 2, 2);
  check_transfers(BACK, FROZEN_W, 2, 2); /* a's other phase learns, so a gradient may come back to it */
  check_transfers(BACK, FROZEN_W | FROZEN_V | FROZEN_Q, 2, 1);
  check_transfers(BACK, FROZEN_U, 2, 2);
}

static void a_module_without_a_gradient_has_no_bucket_and_no_memory_for_one(void **state) {
  paper p = open_paper(&apart, PAIR, FROZEN_W, 0);
  const ad_reducer *reducer = ad_module_reducer(ad_run_module(p.run, 0));
  assert_int_equal(ad_reducer_bucket_count(reducer), 0);
  assert_int_equal(ad_reducer_bytes(reducer), 0);
  assert_int_equal(p.run->transfers.list[0].ways[1].count, 0);
  close_paper(&p);
}

/* Steps take no more memory for tapes than the forward passes of a loss. */
static void a_phase_without_a_gradient_takes_the_memory_of_its_forward(void **state) {
  ad_step_report report;
  paper p = open_paper(&apart, PAIR, FROZEN_W, 0);
  double loss;
  // the second pass also has a record of the first pass's memory
  for (int i = 0; i < 2; i++) must(ad_run_loss(p.run, 0, AD_TRAINED_ON, &loss));
  size_t forward = ad_run_tape_bytes(p.run);
  must(ad_run_step(p.run, 0, &report));
  assert_int_equal(ad_run_tape_bytes(p.run), forward);
  close_paper(&p);
}

/* ---- an encoder behind a bridge, and the first stages of a pipeline ---- */

static ad_recipe *parse(const char *text) {
  ad_recipe *recipe = NULL;
  if (ad_recipe_parse(text, "frozen.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}

/* An encoder with `layers` blocks before a decoder; microbatches have 4 samples. */
static ad_recipe *encoder_recipe(int layers, int microbatches, int is_frozen) {
  char text[1024];
  snprintf(text, sizeof text,
           "model: {kind: ocr, encoder_layers: %d, encoder_d_model: 24, encoder_heads: 4, patch: 8, layers: 2, "
           "d_model: 24, heads: 4}\n"
           "data: {text: [/usr/share/common-licenses], fonts: [none.ttf], chars: 8, height: 16, width: 64, "
           "sizes: [9, 11]}\n"
           "mesh: {encoder: dp=2 tp=2, model: dp=2 cp=2}\nplacement: disjoint\n"
           "train: {global_batch: %d, microbatches: %d, steps: 2, lr: 1e-3}\n%s\n",
           layers, 4 * microbatches, microbatches, is_frozen ? "groups: [{match: 'encoder.*', frozen: true}]" : "");
  return parse(text);
}

static void a_frozen_encoder_sends_forward_alone_and_types_stay(void **state) {
  for (int64_t rank = 0; rank < 8; rank++) {
    paper p = paper_of(encoder_recipe(2, 4, 1), rank), trained = paper_of(encoder_recipe(2, 4, 0), rank);
    ad_step_report report;
    must(ad_run_step(p.run, 0, &report)); /* the decoder's operations refuse a value of other types */
    assert_int_equal(actions_of(&p, AD_ACTION_SEND_F) + actions_of(&p, AD_ACTION_RECV_F), 4);
    assert_int_equal(actions_of(&p, AD_ACTION_SEND_B) + actions_of(&p, AD_ACTION_RECV_B), 0);
    assert_int_equal(actions_of(&trained, AD_ACTION_SEND_B) + actions_of(&trained, AD_ACTION_RECV_B), 4);
    close_paper(&p);
    close_paper(&trained);
  }
}

/* Takes a step as the encoder's first rank. Returns the bytes of values on its tapes: all bytes, but those that tapes
 * need to know their operations. */
static size_t value_bytes(ad_recipe *recipe) {
  ad_step_report report;
  paper p = paper_of(recipe, 0);
  if (ad_run_step(p.run, 0, &report)) fail_msg("%s", ad_last_error());
  size_t bytes = ad_tape_pool_peak_bytes(p.run->in_flight.pool);
  close_paper(&p);
  return bytes;
}

/* A block's values leave their memory to those of the next block, and a microbatch's to those of the next one. The few
 * that stay, such as the residual stream before the block and what the encoder gave, have 2 samples of 8 patches. */
static void a_frozen_encoder_needs_the_memory_of_one_block(void **state) {
  enum { FEW_VALUES = 4 * (2 * 8 * 24 * sizeof(double)) };
  size_t one_block = value_bytes(encoder_recipe(1, 1, 1));
  assert_true(one_block > 4 * FEW_VALUES);
  assert_true(value_bytes(encoder_recipe(10, 1, 1)) <= one_block + FEW_VALUES);
  assert_true(value_bytes(encoder_recipe(1, 4, 1)) <= one_block + FEW_VALUES);
}

/* Blocks of a decoder before the first that learns give their memory back in a real run as on backend dry, from which
 * plans have it. */
static void a_plan_knows_what_frozen_blocks_take(void **state) {
  size_t bytes[2];
  ad_step_report report;
  for (int is_dry = 0; is_dry < 2; is_dry++) {
    ad_comm *comm;
    ad_run *run;
    ad_recipe *recipe = parse(
        "model: {kind: gpt, layers: 4, d_model: 16, heads: 2}\ndata: {text: /usr/share/common-licenses, seq: 12}\n"
        "mesh: dp=1\ntrain: {global_batch: 4, microbatches: 2, steps: 2, lr: 1e-3}\n"
        "groups: [{match: 'embedding.*', frozen: true}, {match: 'blocks.[0-2].*', frozen: true}]\n");
    if (is_dry)
      must(ad_comm_open_dry(0, 1, &comm));
    else
      must(ad_comm_open_alone(&comm));
    if (ad_run_create(comm, recipe, &in_f64, &run)) fail_msg("%s", ad_last_error());
    must(ad_run_step(run, 0, &report));
    bytes[is_dry] = ad_run_tape_bytes(run);
    ad_run_destroy(run);
    ad_comm_close(comm);
    ad_recipe_destroy(recipe);
  }
  assert_int_equal(bytes[0], bytes[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_others_learn_what_they_learn_without_frozen_ones),
      cmocka_unit_test(every_topology_learns_the_same),
      cmocka_unit_test(backward_may_run_in_two_passes),
      cmocka_unit_test(it_holds_under_a_hostile_backend),
      cmocka_unit_test(what_has_no_gradient_sends_and_receives_none),
      cmocka_unit_test(a_module_without_a_gradient_has_no_bucket_and_no_memory_for_one),
      cmocka_unit_test(a_phase_without_a_gradient_takes_the_memory_of_its_forward),
      cmocka_unit_test(a_frozen_encoder_sends_forward_alone_and_types_stay),
      cmocka_unit_test(a_frozen_encoder_needs_the_memory_of_one_block),
      cmocka_unit_test(a_plan_knows_what_frozen_blocks_take),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
