/* Tests backward in two passes: gradients of inputs first, of weights later. Both passes together leave, bit for bit,
 * what one pass leaves; memory that the second pass reads is kept; and no reduction starts before its last addend. */
#include "says.h"
#include "ranks.h"
#include "reduce/reducer.h"
#include "tensor/tape.h"
#include "world.h"
#include "base/random.h"

enum { ROWS = 6, WIDTH = 8, VOCABULARY = 11, PARAMS = 6, MICROBATCHES = 3 };
enum { TABLE, FIRST, SECOND, NORM, KEYS, UNUSED };

static const char *const names[PARAMS] = {"table", "first", "second", "norm", "keys", "unused"};
static const ad_shape shapes[PARAMS] = {{2, {VOCABULARY, WIDTH}}, {2, {WIDTH, WIDTH}},
                                        {2, {WIDTH, WIDTH}},      {1, {WIDTH}},
                                        {2, {WIDTH, WIDTH}},      {2, {WIDTH, WIDTH}}};

/* A pipeline stage: an input x and tokens come in; a loss and a value for the next stage go out. */
typedef struct stage {
  world w;
  ad_array param[PARAMS], x[MICROBATCHES], tokens[MICROBATCHES], targets, c, keys;
  const ad_array *list[PARAMS];
  ad_parameters from;
  ad_reducer *reducer;
} stage;

static ad_reducer *open_reducer(const stage *s) {
  ad_param_spec specs[PARAMS];
  ad_reducer *reducer;
  for (size_t i = 0; i < PARAMS; i++) {
    specs[i] = (ad_param_spec){.size = sizeof(ad_param_spec),
                               .name = names[i],
                               .shape = s->param[i].shape,
                               .layout = s->w.layout,
                               .storage = s->w.layout};
    specs[i].policy.param = AD_F64;
  }
  /* each parameter gets its own bucket */
  ad_reducer_options options = {.size = sizeof options, .bucket_bytes = 1};
  must(ad_reducer_create(s->w.comm, specs, PARAMS, &options, &reducer));
  return reducer;
}

static void open_stage(stage *s) {
  *s = (stage){.w = world_open()};
  for (uint64_t i = 0; i < PARAMS; i++) {
    s->param[i] = random_array(&s->w, AD_F64, shapes[i], 10 + i, 0);
    s->list[i] = &s->param[i];
  }
  for (uint64_t m = 0; m < MICROBATCHES; m++) {
    s->x[m] = random_array(&s->w, AD_F64, (ad_shape){3, {1, ROWS, WIDTH}}, 30 + m, 0);
    s->tokens[m] = random_array(&s->w, AD_I32, (ad_shape){2, {1, ROWS}}, 40 + m, VOCABULARY);
  }
  s->targets = random_array(&s->w, AD_I32, (ad_shape){2, {1, ROWS}}, 50, VOCABULARY);
  s->c = random_array(&s->w, AD_F64, (ad_shape){3, {1, ROWS, WIDTH / 2}}, 51, 0);
  s->keys = random_array(&s->w, AD_F64, (ad_shape){3, {1, ROWS, WIDTH}}, 52, 0);
  s->from = (ad_parameters){.size = sizeof(ad_parameters), .values = s->list, .count = PARAMS};
  s->reducer = open_reducer(s);
}

static void close_stage(stage *s) {
  ad_reducer_destroy(s->reducer);
  for (int i = 0; i < PARAMS; i++) free(s->param[i].data);
  for (int m = 0; m < MICROBATCHES; m++) free(s->x[m].data);
  for (int m = 0; m < MICROBATCHES; m++) free(s->tokens[m].data);
  free(s->targets.data);
  free(s->c.data);
  free(s->keys.data);
  world_close(&s->w);
}

typedef struct recorded {
  ad_tensor *p[PARAMS], *x, *output[2]; /* a loss, and a value for the next stage */
} recorded;

/* The stage has a weight that is used twice on one path (FIRST), a tied weight (TABLE: embedding and head), a value
 * whose two parts take different ways, and attention keys that depend on parameters only while queries depend on the
 * input. */
static recorded record(const stage *s, ad_tape *t, size_t m) {
  recorded r = {.x = NULL};
  for (size_t i = 0; i < PARAMS; i++) r.p[i] = ad_parameter(t, &s->from, i);
  r.x = ad_input(t, &s->x[m]);
  ad_tensor *h = ad_add(t, ad_embedding(t, r.p[TABLE], ad_constant(t, &s->tokens[m])), r.x);
  ad_tensor *n = ad_rms_norm(t, h, ad_scale(t, r.p[NORM], 1.5), 1e-5);
  ad_tensor *k = ad_linear(t, ad_constant(t, &s->keys), r.p[KEYS]);
  h = ad_add(t, h, ad_attention(t, ad_linear(t, n, r.p[FIRST]), k, ad_linear(t, n, r.p[SECOND]), 4));
  h = ad_linear(t, ad_gelu(t, h), r.p[FIRST]);
  ad_tensor *left = ad_slice(t, h, -1, 0, WIDTH / 2), *right = ad_slice(t, h, -1, WIDTH / 2, WIDTH / 2);
  r.output[1] = ad_multiply(t, left, ad_constant(t, &s->c));
  ad_tensor *full = ad_concat(t, (ad_tensor *[]){right, left}, 2, -1);
  r.output[0] = ad_cross_entropy(t, ad_linear_transposed(t, full, r.p[TABLE]), ad_constant(t, &s->targets));
  return r;
}

static ad_status start(const stage *s, ad_tape *t, const recorded *r, ad_start which) {
  ad_array dual = s->c;
  dual.layout = ad_layout_dual(&s->c.layout);
  const ad_array *gradients[2] = {NULL, &dual};
  return ad_backward_from(t, r->output, gradients, 2, which);
}

static void same_bits(const ad_array *a, const ad_array *b) {
  assert_non_null(a);
  assert_non_null(b);
  assert_int_equal(ad_array_bytes(a), ad_array_bytes(b));
  assert_memory_equal(a->data, b->data, ad_array_bytes(a));
}

/* Fills memory that was returned to the pool with NaN. */
static void foul_spares(const ad_tape *t) {
  for (const spare *each = t->values->spares; each; each = each->next) memset(each->data, 0xff, each->bytes);
}

/* ---- one tape ---- */

static void two_passes_are_one_bit_for_bit(void **state) {
  stage s;
  open_stage(&s);
  ad_tape *one = open_tape(&s.w, AD_F64), *two = open_tape(&s.w, AD_F64);
  recorded a = record(&s, one, 0), b = record(&s, two, 0);
  must(start(&s, one, &a, AD_LAST_START));
  must(start(&s, two, &b, AD_INPUTS_START));
  same_bits(ad_grad(b.x), ad_grad(a.x));
  for (int i = 0; i < PARAMS; i++) assert_null(ad_grad(b.p[i]));
  must(ad_backward_weights(two));
  for (int i = 0; i < UNUSED; i++) same_bits(ad_grad(b.p[i]), ad_grad(a.p[i]));
  assert_null(ad_grad(b.p[UNUSED]));
  ad_tape_destroy(one);
  ad_tape_destroy(two);
  close_stage(&s);
}

/* The same with an earlier start of backward, and with gradients that are kept on the way. */
static void kept_gradients_and_earlier_starts_are_the_same_bits(void **state) {
  stage s;
  open_stage(&s);
  ad_array kept[2];
  ad_tensor *p[2][PARAMS];
  ad_tape *t[2];
  for (int in_two = 0; in_two < 2; in_two++) {
    t[in_two] = open_tape(&s.w, AD_F64);
    recorded r = record(&s, t[in_two], 0);
    /* the gradient of the second linear's weight waits for the second pass */
    ad_tensor *h = r.output[1]->operand[0]->operand[0];
    assert_string_equal(h->op->name, "linear");
    ad_keep(h);
    memcpy(p[in_two], r.p, sizeof r.p);
    must(ad_backward_from(t[in_two], &r.output[0], NULL, 1, AD_MORE_STARTS));
    must(start(&s, t[in_two], &r, in_two ? AD_INPUTS_START : AD_LAST_START));
    kept[in_two] = *ad_grad(h);
    if (in_two) same_bits(&kept[1], &kept[0]);
    if (in_two) must(ad_backward_weights(t[in_two]));
    if (in_two) same_bits(ad_grad(h), &kept[0]);
  }
  for (int i = 0; i < UNUSED; i++) same_bits(ad_grad(p[1][i]), ad_grad(p[0][i]));
  ad_tape_destroy(t[0]);
  ad_tape_destroy(t[1]);
  close_stage(&s);
}

/* Without an input everything belongs to the second pass; without a parameter nothing does. */
static void either_pass_may_have_nothing_to_do(void **state) {
  stage s;
  open_stage(&s);
  ad_tape *t = open_tape(&s.w, AD_F64);
  ad_tensor *w = ad_parameter(t, &s.from, FIRST), *x = ad_constant(t, &s.x[0]);
  ad_tensor *loss = ad_sum(t, ad_gelu(t, ad_linear(t, x, w)));
  must(ad_backward_from(t, &loss, NULL, 1, AD_INPUTS_START));
  assert_null(ad_grad(w));
  must(ad_backward_weights(t));
  assert_non_null(ad_grad(w));
  ad_tape_reset(t);
  x = ad_input(t, &s.x[0]);
  loss = ad_sum(t, ad_gelu(t, x));
  must(ad_backward_from(t, &loss, NULL, 1, AD_INPUTS_START));
  assert_non_null(ad_grad(x));
  must(ad_backward_weights(t));
  ad_tape_destroy(t);
  close_stage(&s);
}

/* A phase's input is another phase's output: the first pass of the needer continues in the first pass of the giver,
 * long before any second pass. */
static void the_first_pass_of_one_tape_continues_that_of_another(void **state) {
  stage s;
  open_stage(&s);
  ad_tensor *p[2][2];
  ad_array into[2];
  ad_tape *t[2][2];
  for (int in_two = 0; in_two < 2; in_two++) {
    ad_start which = in_two ? AD_INPUTS_START : AD_LAST_START;
    ad_tape *a = t[in_two][0] = open_tape(&s.w, AD_F64), *b = t[in_two][1] = open_tape(&s.w, AD_F64);
    ad_tensor *x = ad_input(a, &s.x[0]), *u = p[in_two][0] = ad_parameter(a, &s.from, FIRST);
    ad_tensor *h = ad_gelu(a, ad_linear(a, x, u)), *v = p[in_two][1] = ad_parameter(b, &s.from, SECOND);
    ad_tensor *y = ad_input(b, ad_tensor_array(h)), *loss = ad_sum(b, ad_gelu(b, ad_linear(b, y, v)));
    must(ad_backward_from(b, &loss, NULL, 1, which));
    must(ad_backward_from(a, &h, (const ad_array *[]){ad_grad(y)}, 1, which));
    into[in_two] = *ad_grad(x);
    /* the start's gradient was borrowed for the call only */
    if (in_two) memset(ad_grad(y)->data, 0xff, ad_array_bytes(ad_grad(y)));
    if (in_two) must(ad_backward_weights(a));
    if (in_two) must(ad_backward_weights(b));
  }
  same_bits(&into[1], &into[0]);
  for (int i = 0; i < 2; i++) same_bits(ad_grad(p[1][i]), ad_grad(p[0][i]));
  for (int i = 0; i < 4; i++) ad_tape_destroy(t[i / 2][i % 2]);
  close_stage(&s);
}

/* ---- random graphs ---- */

enum { LEAVES = 8, STEPS = 14, GRAPHS = 300, WAYS = 12, KEPT = 3 };

typedef struct graph {
  ad_tensor *leaf[LEAVES], *value[LEAVES + STEPS], *kept[KEPT], *earlier, *output[2];
} graph;

static uint64_t drawn(uint64_t number, uint64_t what, uint64_t below) {
  return ad_random_bits(70, number, what) % below;
}

static ad_tensor *swapped(ad_tape *t, ad_tensor *a) {
  ad_tensor *left = ad_slice(t, a, 1, 0, 2), *right = ad_slice(t, a, 1, 2, ROWS - 2);
  return ad_concat(t, (ad_tensor *[]){right, left}, 2, 1);
}

static ad_tensor *flat_and_back(ad_tape *t, ad_tensor *a) {
  ad_tensor *flat = ad_reshape(t, a, &(ad_shape){1, {ROWS * WIDTH}});
  return ad_reshape(t, flat, &(ad_shape){3, {1, ROWS, WIDTH}});
}

static ad_tensor *step(const stage *s, ad_tape *t, const graph *g, uint64_t number, int i) {
  uint64_t at = 10 * (uint64_t)i;
  ad_tensor *a = g->value[drawn(number, at + 1, (uint64_t)(3 + i))],
            *b = g->value[drawn(number, at + 2, (uint64_t)(3 + i))];
  ad_tensor *w = g->leaf[3 + drawn(number, at + 3, 3)], *row = g->leaf[6 + drawn(number, at + 4, 2)];
  switch (drawn(number, at, WAYS)) {
    case 0:
      return ad_add(t, a, b);
    case 1:
      return ad_multiply(t, a, ad_gelu(t, b));
    case 2:
      return ad_scale(t, ad_linear(t, a, w), 0.4);
    case 3:
      return ad_gelu(t, a);
    case 4:
      return ad_rms_norm(t, a, row, 1e-5);
    case 5:
      return ad_scale(t, a, -0.7);
    case 6:
      return flat_and_back(t, a);
    case 7:
      return swapped(t, a);
    case 8:
      return ad_view(t, a, s->w.mesh);
    case 9:
      return ad_add_row(t, a, row);
    case 10:
      return ad_scale(t, ad_linear_transposed(t, a, ad_gelu(t, w)), 0.4);
    default:
      return ad_swiglu(t, a, b);
  }
}

/* A random graph: its leaves are two inputs, parameters and values made from parameters alone; each step applies an
 * operation to leaves and earlier values. */
static graph draw(const stage *s, ad_tape *t, uint64_t number) {
  graph g = {.earlier = NULL};
  for (size_t i = 0; i < 2; i++) g.leaf[i] = ad_input(t, &s->x[i]);
  g.leaf[2] = ad_parameter(t, &s->from, TABLE);
  for (size_t i = 0; i < 2; i++) g.leaf[3 + i] = ad_parameter(t, &s->from, FIRST + i);
  g.leaf[5] = ad_parameter(t, &s->from, KEYS);
  g.leaf[6] = ad_parameter(t, &s->from, NORM);
  g.leaf[7] = ad_scale(t, g.leaf[6], 0.9);
  g.value[0] = g.leaf[0];
  g.value[1] = g.leaf[1];
  g.value[2] = ad_embedding(t, g.leaf[2], ad_constant(t, &s->tokens[0]));
  for (int i = 0; i < STEPS; i++) g.value[3 + i] = step(s, t, &g, number, i);
  for (int i = 0; i < KEPT; i++) {
    g.kept[i] = g.value[3 + drawn(number, 200 + (uint64_t)i, STEPS)];
    ad_keep(g.kept[i]);
  }
  ad_tensor *all = g.value[2 + STEPS];
  for (int i = STEPS / 2; i + 1 < STEPS; i++) all = ad_add(t, all, g.value[3 + i]);
  g.output[0] = ad_sum(t, all);
  g.output[1] = g.value[drawn(number, 210, 3 + STEPS)];
  g.earlier = ad_sum(t, g.value[drawn(number, 211, 3 + STEPS)]);
  return g;
}

static int graphs_that_waited;

static int count_waiting(const ad_tape *t) {
  int count = 0;
  for (const ad_tensor *each = t->last; each; each = each->previous) count += each->waits;
  return count;
}

static graph run_drawn(const stage *s, ad_tape *t, uint64_t number, int in_two) {
  graph g = draw(s, t, number);
  ad_array arrives = s->keys;
  arrives.layout = ad_layout_dual(&s->keys.layout);
  must(ad_tape_status(t));
  if (number % 2) must(ad_backward_from(t, &g.earlier, NULL, 1, AD_MORE_STARTS));
  must(
      ad_backward_from(t, g.output, (const ad_array *[]){NULL, &arrives}, 2, in_two ? AD_INPUTS_START : AD_LAST_START));
  if (in_two && t->values->is_shared) foul_spares(t);
  graphs_that_waited += in_two && count_waiting(t) > 1;
  if (in_two) must(ad_backward_weights(t));
  return g;
}

static void same_or_none(uint64_t number, const ad_tensor *a, const ad_tensor *b) {
  const ad_array *x = ad_grad(a), *y = ad_grad(b);
  if (!x && !y) return;
  if (!x || !y || memcmp(x->data, y->data, ad_array_bytes(x))) fail_msg("graph %llu", (unsigned long long)number);
  for (size_t i = 0; i < ad_array_numel(x); i++) assert_true(isfinite(element(x, i)));
}

static void drawn_graphs_in_two_passes_are_the_same_bits(void **state) {
  stage s;
  ad_tape_pool *pool;
  open_stage(&s);
  must(ad_tape_pool_create(0, &pool));
  for (uint64_t number = 0; number < GRAPHS; number++) {
    ad_tape *one = open_tape(&s.w, AD_F64), *two = open_tape(&s.w, AD_F64), *pooled = open_tape(&s.w, AD_F64);
    ad_tape_share(pooled, pool);
    graph a = run_drawn(&s, one, number, 0), b = run_drawn(&s, two, number, 1), c = run_drawn(&s, pooled, number, 1);
    for (int i = 0; i < 7; i++) same_or_none(number, a.leaf[i], b.leaf[i]);
    for (int i = 0; i < 7; i++) same_or_none(number, a.leaf[i], c.leaf[i]);
    for (int i = 0; i < KEPT; i++) same_or_none(number, a.kept[i], b.kept[i]);
    for (int i = 0; i < KEPT; i++) same_or_none(number, a.kept[i], c.kept[i]);
    ad_tape_destroy(one);
    ad_tape_destroy(two);
    ad_tape_destroy(pooled);
  }
  assert_true(graphs_that_waited > 3 * GRAPHS / 2); /* of 2 * GRAPHS graphs */
  ad_tape_pool_destroy(pool);
  close_stage(&s);
}

/* ---- several tapes with one reducer ---- */

/* Runs a step whose second passes come in the order of microbatches order[i]; NULL: one pass each. */
static void run_step(stage *s, const size_t *order, ad_tape_pool *pool) {
  s->from.reducer = s->reducer;
  ad_tape *t[MICROBATCHES];
  recorded r[MICROBATCHES];
  for (size_t m = 0; order && m < MICROBATCHES; m++) {
    t[m] = open_tape(&s->w, AD_F64);
    if (pool) ad_tape_share(t[m], pool);
    r[m] = record(s, t[m], m);
    must(start(s, t[m], &r[m], AD_INPUTS_START));
    if (pool) foul_spares(t[m]);
  }
  for (size_t i = 0; i < MICROBATCHES; i++) {
    size_t m = order ? order[i] : i;
    must(ad_reducer_begin_microbatch(s->reducer, i + 1 == MICROBATCHES ? AD_SYNC_ALL : AD_SYNC_NONE));
    if (!order) {
      t[m] = open_tape(&s->w, AD_F64);
      r[m] = record(s, t[m], m);
    }
    must(order ? ad_backward_weights(t[m]) : start(s, t[m], &r[m], AD_LAST_START));
    must(ad_reducer_end_microbatch(s->reducer));
    ad_tape_destroy(t[m]);
  }
  must(ad_reducer_finish(s->reducer));
}

static void keep_sums(const stage *s, ad_array *to) {
  for (size_t i = 0; i < PARAMS; i++) {
    to[i] = *ad_reducer_gradient(s->reducer, i);
    to[i].data = malloc(ad_array_bytes(&to[i]));
    memcpy(to[i].data, ad_reducer_gradient(s->reducer, i)->data, ad_array_bytes(&to[i]));
  }
}

/* All first passes come before any second pass. With second passes in the order of microbatches the sums have the bits
 * of one pass; in another order they are sums in another order. */
static void gradients_add_up_in_the_order_of_the_second_passes(void **state) {
  static const size_t forward[] = {0, 1, 2}, other[] = {2, 0, 1};
  stage s;
  ad_array sums[PARAMS];
  open_stage(&s);
  run_step(&s, NULL, NULL);
  keep_sums(&s, sums);
  for (int pooled = 0; pooled < 2; pooled++) {
    ad_tape_pool *pool = NULL;
    if (pooled) must(ad_tape_pool_create(0, &pool));
    run_step(&s, forward, pool);
    for (size_t i = 0; i < UNUSED; i++) same_bits(ad_reducer_gradient(s.reducer, i), &sums[i]);
    for (size_t i = 0; i < PARAMS; i++) assert_int_equal(ad_reducer_is_absent(s.reducer, i), i == UNUSED);
    run_step(&s, other, pool);
    for (size_t i = 0; i < UNUSED; i++)
      for (size_t k = 0; k < ad_array_numel(&sums[i]); k++)
        assert_true(fabs(element(ad_reducer_gradient(s.reducer, i), k) - element(&sums[i], k)) <=
                    1e-14 * (1 + fabs(element(&sums[i], k))));
    ad_tape_pool_destroy(pool);
  }
  for (int i = 0; i < PARAMS; i++) free(sums[i].data);
  close_stage(&s);
}

/* Runs one whole backward, or the second of two passes, as a microbatch of the reducer. */
static void go_back(stage *s, ad_tape *t, const recorded *r, ad_sync sync) {
  must(ad_reducer_begin_microbatch(s->reducer, sync));
  must(t->defers_weights ? ad_backward_weights(t) : start(s, t, r, AD_LAST_START));
  must(ad_reducer_end_microbatch(s->reducer));
}

/* Between the two passes of the first microbatch another one runs forward and its whole backward. */
static void full_passes_of_other_tapes_come_between(void **state) {
  stage s;
  ad_array sums[PARAMS];
  open_stage(&s);
  s.from.reducer = s.reducer;
  for (int in_two = 0; in_two < 2; in_two++) {
    ad_tape_pool *pool;
    ad_tape *t[2];
    recorded r;
    must(ad_tape_pool_create(0, &pool));
    for (int i = 0; i < 2; i++) t[i] = open_tape(&s.w, AD_F64);
    for (int i = 0; in_two && i < 2; i++) ad_tape_share(t[i], pool);
    recorded first = record(&s, t[0], 0);
    if (in_two) must(start(&s, t[0], &first, AD_INPUTS_START));
    r = record(&s, t[1], 1);
    go_back(&s, t[1], &r, AD_SYNC_NONE);
    go_back(&s, t[0], &first, AD_SYNC_NONE);
    ad_tape_reset(t[1]);
    r = record(&s, t[1], 2);
    go_back(&s, t[1], &r, AD_SYNC_ALL);
    must(ad_reducer_finish(s.reducer));
    for (size_t i = 0; in_two && i < UNUSED; i++) same_bits(ad_reducer_gradient(s.reducer, i), &sums[i]);
    if (!in_two) keep_sums(&s, sums);
    for (int i = 0; i < 2; i++) ad_tape_destroy(t[i]);
    ad_tape_pool_destroy(pool);
  }
  for (int i = 0; i < PARAMS; i++) free(sums[i].data);
  close_stage(&s);
}

/* A whole backward of another tape does not count as the second pass that a tape still has to make. */
static void full_passes_flush_nothing_that_another_tape_deferred(void **state) {
  stage s;
  open_stage(&s);
  s.from.reducer = s.reducer;
  ad_tape *t[2];
  for (int i = 0; i < 2; i++) t[i] = open_tape(&s.w, AD_F64);
  recorded first = record(&s, t[0], 0), second = record(&s, t[1], 1);
  must(start(&s, t[0], &first, AD_INPUTS_START));
  must(ad_reducer_begin_microbatch(s.reducer, AD_SYNC_ALL));
  must(start(&s, t[1], &second, AD_LAST_START));
  assert_int_equal(ad_reducer_end_microbatch(s.reducer), AD_INVALID);
  assert_says("1", "table");
  for (int i = 0; i < 2; i++) ad_tape_destroy(t[i]);
  close_stage(&s);
}

/* A weight that is itself an output, and one that only an earlier start reached: the first pass runs outside any
 * reducer microbatch and gives the reducer nothing; the second pass submits both. */
static void a_seed_on_a_weight_waits_on_the_tape(void **state) {
  stage s;
  ad_array sums[PARAMS];
  open_stage(&s);
  for (int in_two = 0; in_two < 2; in_two++) {
    ad_tape *t = open_tape(&s.w, AD_F64);
    s.from.reducer = s.reducer;
    ad_tensor *u = ad_parameter(t, &s.from, FIRST), *v = ad_parameter(t, &s.from, SECOND);
    ad_tensor *x = ad_input(t, &s.x[0]), *loss = ad_sum(t, ad_gelu(t, ad_linear(t, x, u)));
    ad_tensor *earlier = ad_sum(t, ad_gelu(t, ad_linear(t, x, v)));
    ad_array arrives = s.param[KEYS];
    arrives.layout = ad_layout_dual(&arrives.layout);
    const ad_array *gradients[] = {&arrives, NULL};
    if (!in_two) must(ad_reducer_begin_microbatch(s.reducer, AD_SYNC_ALL));
    must(ad_backward_from(t, &earlier, NULL, 1, AD_MORE_STARTS));
    must(ad_backward_from(t, (ad_tensor *[]){u, loss}, gradients, 2, in_two ? AD_INPUTS_START : AD_LAST_START));
    if (in_two) must(ad_reducer_begin_microbatch(s.reducer, AD_SYNC_ALL));
    if (in_two) must(ad_backward_weights(t));
    must(ad_reducer_end_microbatch(s.reducer));
    must(ad_reducer_finish(s.reducer));
    for (int i = FIRST; in_two && i <= SECOND; i++) same_bits(ad_reducer_gradient(s.reducer, (size_t)i), &sums[i]);
    for (int i = FIRST; i <= SECOND; i++) assert_false(ad_reducer_is_absent(s.reducer, (size_t)i));
    if (!in_two) keep_sums(&s, sums);
    ad_tape_destroy(t);
  }
  for (int i = 0; i < PARAMS; i++) free(sums[i].data);
  close_stage(&s);
}

/* ---- no reduction before its last addend ---- */

static void begin_two(stage *s, ad_tape **t) {
  s->from.reducer = s->reducer;
  for (size_t m = 0; m < 2; m++) {
    t[m] = open_tape(&s->w, AD_F64);
    recorded r = record(s, t[m], m);
    must(start(s, t[m], &r, AD_INPUTS_START));
  }
}

static void a_step_whose_weights_wait_is_refused_before_its_reduction(void **state) {
  stage s;
  ad_tape *t[2];
  open_stage(&s);
  begin_two(&s, t);
  must(ad_reducer_begin_microbatch(s.reducer, AD_SYNC_ALL));
  must(ad_backward_weights(t[0]));
  /* a reset tape forgets its tensors, but the reducer still waits for its second pass */
  for (int is_reset = 0; is_reset < 2; is_reset++) {
    assert_int_equal(ad_reducer_end_microbatch(s.reducer), AD_INVALID);
    assert_says("1", "table", "ad_backward_weights");
    ad_tape_reset(t[1]);
  }
  ad_tape_destroy(t[0]);
  ad_tape_destroy(t[1]);
  close_stage(&s);
}

static void a_step_that_was_refused_continues_with_the_weights(void **state) {
  stage s;
  ad_tape *t[2];
  open_stage(&s);
  begin_two(&s, t);
  must(ad_reducer_begin_microbatch(s.reducer, AD_SYNC_NONE));
  must(ad_backward_weights(t[0]));
  must(ad_reducer_end_microbatch(s.reducer));
  must(ad_reducer_begin_microbatch(s.reducer, AD_SYNC_ALL));
  assert_int_equal(ad_reducer_end_microbatch(s.reducer), AD_INVALID);
  must(ad_backward_weights(t[1]));
  must(ad_reducer_end_microbatch(s.reducer));
  must(ad_reducer_finish(s.reducer));
  ad_tape_destroy(t[0]);
  ad_tape_destroy(t[1]);
  close_stage(&s);
}

static int posted;
static void note(void *context, ad_bucket_event event, const ad_bucket_step *step) {
  posted += event == AD_BUCKET_POST;
}

/* All gradients of the bucket are ready, but another microbatch's second pass will still add to one. */
static void no_bucket_is_posted_before_its_last_addend(void **state) {
  ad_comm *dry;
  ad_mesh *mesh;
  ad_reducer *reducer;
  must(ad_comm_open_dry(0, 2, &dry));
  must(ad_mesh_create("dp_shard=2", &mesh));
  ad_param_spec spec = {.size = sizeof spec, .name = "w", .shape = {1, {4}}, .layout = ad_layout_all(mesh, AD_R)};
  spec.storage = spec.layout;
  ad_reducer_options options = {.size = sizeof options, .trace = note};
  must(ad_reducer_create(dry, &spec, 1, &options, &reducer));
  ad_array gradient = ad_reducer_describe(reducer, 0);
  posted = 0;
  must(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  ad_reducer_expect(reducer, 0, 1);
  must(ad_reducer_add(reducer, 0, &gradient));
  assert_int_equal(posted, 0);
  assert_int_equal(ad_reducer_end_microbatch(reducer), AD_INVALID);
  assert_int_equal(posted, 0);
  ad_reducer_expect(reducer, 0, -1);
  must(ad_reducer_end_microbatch(reducer));
  assert_int_equal(posted, 1);
  ad_reducer_expect(reducer, 0, 1);
  assert_int_equal(ad_reducer_finish(reducer), AD_INVALID);
  ad_reducer_expect(reducer, 0, -1);
  must(ad_reducer_finish(reducer));
  must(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  must(ad_reducer_add(reducer, 0, &gradient)); /* no further addend is expected: the bucket is launched immediately */
  assert_int_equal(posted, 2);
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
  ad_comm_close(dry);
}

/* ---- passes in a wrong order ---- */

static void passes_out_of_turn_are_refused(void **state) {
  stage s;
  open_stage(&s);
  ad_tape *t = open_tape(&s.w, AD_F64);
  recorded r = record(&s, t, 0);
  assert_int_equal(ad_backward_weights(t), AD_INVALID);
  assert_says_in("weights first", ad_last_error(), SAYS_FACTS(NULL));
  ad_tape_reset(t);
  r = record(&s, t, 0);
  must(start(&s, t, &r, AD_INPUTS_START));
  assert_int_equal(start(&s, t, &r, AD_INPUTS_START), AD_INVALID);
  assert_says_in("inputs twice", ad_last_error(), SAYS_FACTS(NULL));
  ad_tape_reset(t);
  r = record(&s, t, 0);
  must(start(&s, t, &r, AD_INPUTS_START));
  assert_int_equal(start(&s, t, &r, AD_LAST_START), AD_INVALID);
  assert_says_in("both after the inputs", ad_last_error(), SAYS_FACTS("ad_backward_weights"));
  ad_tape_reset(t);
  r = record(&s, t, 0);
  must(start(&s, t, &r, AD_INPUTS_START));
  must(ad_backward_weights(t));
  assert_int_equal(ad_backward_weights(t), AD_INVALID);
  assert_says_in("weights twice", ad_last_error(), SAYS_FACTS(NULL));
  ad_tape_reset(t);
  r = record(&s, t, 0);
  must(start(&s, t, &r, AD_LAST_START));
  assert_int_equal(ad_backward_weights(t), AD_INVALID);
  assert_says_in("weights twice", ad_last_error(), SAYS_FACTS(NULL));
  assert_int_equal(ad_backward_weights(NULL), AD_INVALID);
  ad_tape_destroy(t);
  close_stage(&s);
}

/* ---- memory that is held and given back ---- */

static size_t spare_bytes(const tape_memory *memory) {
  size_t bytes = 0;
  for (const spare *each = memory->spares; each; each = each->next) bytes += (each->bytes + 63) / 64 * 64;
  return bytes;
}

static size_t record_bytes(const tape_memory *memory) {
  size_t count = 0;
  for (const spare *each = memory->spares; each; each = each->next) count++;
  for (const spare *each = memory->records; each; each = each->next) count++;
  return 64 * count;
}

/* Bytes that are taken and not given back. */
static size_t held_bytes(const tape_memory *memory) {
  return ad_arena_mark(memory->arena) + memory->dry_used - spare_bytes(memory) - record_bytes(memory);
}

enum { MANY = 32, VALUE_BYTES = MANY * WIDTH * 8 };

/* y = gelu(x a) b. The second pass reads, for the first product, x (an input, in memory of its owner) and the product's
 * gradient, and for the second product gelu's result and its gradient. */
static void what_waits_holds_what_its_weights_read(void **state) {
  stage s;
  open_stage(&s);
  ad_array x = random_array(&s.w, AD_F64, (ad_shape){2, {MANY, WIDTH}}, 60, 0);
  ad_tape_pool *pool;
  must(ad_tape_pool_create(0, &pool));
  ad_tape *t = open_tape(&s.w, AD_F64);
  ad_tape_share(t, pool);
  ad_tensor *in = ad_input(t, &x), *u = ad_linear(t, in, ad_parameter(t, &s.from, FIRST));
  ad_tensor *v = ad_gelu(t, u), *y = ad_linear(t, v, ad_parameter(t, &s.from, SECOND));
  ad_tensor *loss = ad_sum(t, y);
  assert_int_equal(held_bytes(t->values), 3 * VALUE_BYTES + 64);
  must(ad_backward_from(t, &loss, NULL, 1, AD_INPUTS_START));
  /* three: gelu's result and two gradients; one: the gradient of the input */
  assert_int_equal(held_bytes(t->values), 3 * VALUE_BYTES + VALUE_BYTES);
  assert_null(ad_tensor_array(u)->data);
  assert_non_null(ad_tensor_array(v)->data);
  must(ad_backward_weights(t));
  /* what stays: the gradients of the leaves */
  assert_int_equal(held_bytes(t->values), VALUE_BYTES + 2 * WIDTH * WIDTH * 8);
  ad_tape_reset(t);
  assert_int_equal(ad_arena_mark(t->values->arena), 0);
  ad_tape_destroy(t);
  ad_tape_pool_destroy(pool);
  free(x.data);
  close_stage(&s);
}

/* A gradient that the reducer takes in another dtype forms on the tape and is given back once the reducer took it. */
static void what_the_reducer_took_is_given_back(void **state) {
  stage s;
  ad_tape_pool *pool;
  open_stage(&s);
  ad_param_spec spec = {.size = sizeof spec, .name = "w", .shape = shapes[FIRST], .layout = s.w.layout};
  spec.storage = s.w.layout;
  spec.policy = (ad_precision_policy){.param = AD_F64, .grad = AD_F32};
  const ad_array *list[] = {&s.param[FIRST]};
  ad_parameters from = {.size = sizeof from, .values = list, .count = 1};
  must(ad_reducer_create(s.w.comm, &spec, 1, NULL, &from.reducer));
  must(ad_tape_pool_create(0, &pool));
  ad_tape *t = open_tape(&s.w, AD_F64);
  ad_tape_share(t, pool);
  ad_tensor *in = ad_input(t, &s.x[0]), *loss = ad_sum(t, ad_linear(t, in, ad_parameter(t, &from, 0)));
  must(ad_backward_from(t, &loss, NULL, 1, AD_INPUTS_START));
  must(ad_reducer_begin_microbatch(from.reducer, AD_SYNC_ALL));
  must(ad_backward_weights(t));
  assert_int_equal(held_bytes(t->values), ad_array_bytes(ad_grad(in)));
  must(ad_reducer_end_microbatch(from.reducer));
  must(ad_reducer_finish(from.reducer));
  ad_tape_destroy(t);
  ad_tape_pool_destroy(pool);
  ad_reducer_destroy(from.reducer);
  close_stage(&s);
}

/* Values that were passed to code outside the tape stay valid, though no call of backward needs them. */
static void what_was_returned_stays(void **state) {
  stage s;
  ad_tape_pool *pool;
  open_stage(&s);
  must(ad_tape_pool_create(0, &pool));
  ad_tape *t = open_tape(&s.w, AD_F64);
  ad_tape_share(t, pool);
  ad_tensor *x = ad_input(t, &s.x[0]), *y = ad_scale(t, x, 2), *z = ad_scale(t, y, 2);
  ad_tensor *local = ad_to_local(t, y, "tp=I"), *loss = ad_sum(t, z);
  must(ad_backward_from(t, &loss, NULL, 1, AD_INPUTS_START));
  foul_spares(t);
  assert_null(ad_tensor_array(z)->data);
  assert_true(element(ad_tensor_array(local), 3) == 2 * element(&s.x[0], 3));
  ad_tape_destroy(t);
  ad_tape_pool_destroy(pool);
  close_stage(&s);
}

static ad_status copy_forward(ad_tape *tape, ad_tensor *out) {
  memcpy(ad_tensor_array(out)->data, ad_operand(out, 0)->data, ad_array_bytes(ad_operand(out, 0)));
  return AD_OK;
}

static ad_status fail_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  return ad_fail(AD_INVALID, "it fails");
}

/* An operation that fails in backward when its operand already has the gradient's memory (passes_gradient_on). */
static const ad_operation failing = {.size = sizeof failing,
                                     .name = "failing",
                                     .dims = "...->...",
                                     .passes_gradient_on = 1,
                                     .forward = copy_forward,
                                     .backward = fail_backward};

static void no_block_is_spare_twice(const tape_memory *memory) {
  for (const spare *a = memory->spares; a; a = a->next)
    for (const spare *b = a->next; b; b = b->next) assert_ptr_not_equal(a->data, b->data);
}

/* A reset tape gives back all its memory: before either pass, between them, after them, and after a failure; meanwhile
 * another tape leaves the pool unchanged. */
static void a_reset_gives_everything_back(void **state) {
  enum { FORWARD_ALONE, ONE_START, INPUTS, BOTH, FAILED, CASES };
  stage s;
  ad_tape_pool *pool;
  open_stage(&s);
  must(ad_tape_pool_create(0, &pool));
  ad_tape *other = open_tape(&s.w, AD_F64), *t = open_tape(&s.w, AD_F64);
  ad_tape_share(other, pool);
  ad_tape_share(t, pool);
  ad_scale(other, ad_input(other, &s.x[0]), 2);
  size_t held = held_bytes(t->values);
  for (int way = 0; way < CASES; way++) {
    recorded r = record(&s, t, 0);
    ad_keep(r.output[1]->operand[0]->operand[0]);
    ad_tensor *last = ad_sum(t, ad_operation_apply(t, &failing, &r.output[1], 1, NULL));
    must(ad_tape_status(t));
    if (way >= ONE_START) must(ad_backward_from(t, &r.output[0], NULL, 1, AD_MORE_STARTS));
    if (way == FAILED) assert_int_equal(ad_backward_from(t, &last, NULL, 1, AD_LAST_START), AD_INVALID);
    if (way == INPUTS || way == BOTH) must(start(&s, t, &r, AD_INPUTS_START));
    if (way == BOTH) must(ad_backward_weights(t));
    ad_tape_reset(t);
    no_block_is_spare_twice(t->values);
    /* gradients of a tape that failed are not given back before the reset */
    if (way != FAILED) assert_int_equal(held_bytes(t->values), held);
  }
  ad_tape_destroy(t);
  ad_tape_destroy(other);
  ad_tape_pool_destroy(pool);
  close_stage(&s);
}

/* Two tapes are in flight together in every step: the pool never needs more than two tapes' memory. */
static size_t bytes_of_steps(const stage *s, ad_comm *comm, int steps) {
  ad_tape_pool *pool;
  ad_tape *t[2];
  recorded r[2];
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  must(ad_tape_pool_create(ad_comm_is_dry(comm), &pool));
  for (int i = 0; i < 2; i++) {
    must(ad_tape_create(comm, s->w.mesh, &options, &t[i]));
    ad_tape_share(t[i], pool);
  }
  for (int m = 0; m <= steps; m++) {
    int now = m % 2, before = !now;
    if (m < steps) {
      ad_tape_reset(t[now]);
      r[now] = record(s, t[now], (size_t)m % MICROBATCHES);
      must(start(s, t[now], &r[now], AD_INPUTS_START));
    }
    if (m) must(ad_backward_weights(t[before]));
  }
  size_t bytes = ad_tape_pool_peak_bytes(pool) + ad_tape_peak_bytes(t[0]) + ad_tape_peak_bytes(t[1]);
  for (int i = 0; i < 2; i++) ad_tape_destroy(t[i]);
  ad_tape_pool_destroy(pool);
  return bytes;
}

static void tapes_in_flight_take_turns_with_memory_and_dry_ones_plan_it(void **state) {
  stage s;
  ad_comm *dry;
  open_stage(&s);
  must(ad_comm_open_dry(0, 1, &dry));
  size_t few = bytes_of_steps(&s, s.w.comm, 3), many = bytes_of_steps(&s, s.w.comm, 40);
  assert_int_equal(bytes_of_steps(&s, dry, 3), few);
  assert_int_equal(bytes_of_steps(&s, dry, 40), many);
  assert_true(many <= few + few / 50);
  ad_comm_close(dry);
  close_stage(&s);
}

/* ---- parameters that are acquired for each use (ZeRO 3) ---- */

static int acquired[PARAMS];
static ad_status acquire(void *context, size_t param) {
  acquired[param]++;
  return AD_OK;
}
static void release_nothing(void *context, size_t param) {}

static void a_product_is_called_for_its_weight_without_it(void **state) {
  stage s;
  open_stage(&s);
  s.from.acquire = acquire;
  s.from.release = release_nothing;
  ad_tape *t = open_tape(&s.w, AD_F64);
  recorded r = record(&s, t, 0);
  must(start(&s, t, &r, AD_INPUTS_START));
  memset(acquired, 0, sizeof acquired);
  must(ad_backward_weights(t));
  /* the norm's weight is scaled, so backward reads the scaled value and not the parameter */
  for (int i = 0; i < PARAMS; i++) assert_int_equal(acquired[i], 0);
  ad_tape_destroy(t);
  close_stage(&s);
}

/* ---- collectives in the second pass ---- */

/* Each rank's weight is I on tp and used as R, so its gradient is all-reduced in the second pass; the tapes' second
 * passes come in another order than their first. */
static int sum_weights(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_tape *t[2][2];
  ad_tensor *w[2][2];
  double x[4], weight[4];
  CHECK_OK(ad_mesh_create("tp=2", &mesh));
  ad_layout same = ad_layout_all(mesh, AD_I), sharded = same;
  ad_layout_set(&sharded, AD_AXES(AD_TP), AD_S(1));
  ad_array value = ad_array_describe(comm, AD_F64, &(ad_shape){2, {2, 2}}, &same), parameter = value;
  ad_array columns = ad_array_describe(comm, AD_F64, &(ad_shape){2, {2, 4}}, &sharded);
  for (int i = 0; i < 4; i++) x[i] = 1 + i + 10 * (double)ad_comm_rank(comm), weight[i] = 0.5 - i;
  columns.data = x;
  parameter.data = weight;
  const ad_array *list[] = {&parameter};
  ad_parameters from = {.size = sizeof from, .values = list, .count = 1};
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  for (int in_two = 0; in_two < 2; in_two++) {
    for (int i = 0; i < 2; i++) {
      ad_tape *tape;
      CHECK_OK(ad_tape_create(comm, mesh, &options, &tape));
      t[in_two][i] = tape;
      ad_tensor *p = w[in_two][i] = ad_parameter(tape, &from, 0);
      ad_tensor *y = ad_linear(tape, ad_convert(tape, p, "tp", AD_R), ad_input(tape, &columns));
      ad_tensor *loss = ad_all_reduce(tape, ad_sum(tape, ad_scale(tape, ad_gelu(tape, y), 1 + i)), "tp", AD_I);
      CHECK_OK(ad_backward_from(tape, &loss, NULL, 1, in_two ? AD_INPUTS_START : AD_LAST_START));
    }
    for (int i = 1; in_two && i >= 0; i--) CHECK_OK(ad_backward_weights(t[1][i]));
  }
  for (int i = 0; i < 2; i++) CHECK(!memcmp(ad_grad(w[1][i])->data, ad_grad(w[0][i])->data, 4 * sizeof(double)));
  for (int i = 0; i < 4; i++) ad_tape_destroy(t[i / 2][i % 2]);
  ad_mesh_destroy(mesh);
  return 0;
}

/* One rank runs the second passes of two tapes in another order than the other rank: both get the error. */
static int disagree(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_tape *t[2];
  double weight[6] = {1, 2, 3, 4, 5, 6};
  CHECK_OK(ad_mesh_create("tp=2", &mesh));
  ad_layout same = ad_layout_all(mesh, AD_I);
  ad_array parameter[2];
  const ad_array *list[] = {&parameter[0], &parameter[1]};
  for (int i = 0; i < 2; i++) {
    parameter[i] = ad_array_describe(comm, AD_F64, &(ad_shape){1, {2 + i}}, &same);
    parameter[i].data = weight;
  }
  ad_parameters from = {.size = sizeof from, .values = list, .count = 2};
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  for (size_t i = 0; i < 2; i++) {
    CHECK_OK(ad_tape_create(comm, mesh, &options, &t[i]));
    ad_tensor *p = ad_convert(t[i], ad_parameter(t[i], &from, i), "tp", AD_R);
    ad_tensor *loss = ad_sum(t[i], ad_once(t[i], ad_scale(t[i], p, 2), "tp"));
    CHECK_OK(ad_backward_from(t[i], &loss, NULL, 1, AD_INPUTS_START));
  }
  int first = ad_comm_rank(comm) == 1;
  ad_status status = ad_backward_weights(t[first]);
  if (!status) status = ad_backward_weights(t[!first]);
  CHECK(status == AD_MISMATCH);
  ad_tape_destroy(t[0]);
  ad_tape_destroy(t[1]);
  ad_mesh_destroy(mesh);
  return 0;
}

static void conversions_of_a_weight_are_summed_in_its_pass(void **state) { run_ranks(2, sum_weights, NULL); }
static void ranks_that_call_passes_in_other_orders_are_reported(void **state) { run_ranks(2, disagree, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_passes_are_one_bit_for_bit),
      cmocka_unit_test(kept_gradients_and_earlier_starts_are_the_same_bits),
      cmocka_unit_test(either_pass_may_have_nothing_to_do),
      cmocka_unit_test(the_first_pass_of_one_tape_continues_that_of_another),
      cmocka_unit_test(drawn_graphs_in_two_passes_are_the_same_bits),
      cmocka_unit_test(gradients_add_up_in_the_order_of_the_second_passes),
      cmocka_unit_test(full_passes_of_other_tapes_come_between),
      cmocka_unit_test(full_passes_flush_nothing_that_another_tape_deferred),
      cmocka_unit_test(a_seed_on_a_weight_waits_on_the_tape),
      cmocka_unit_test(a_step_whose_weights_wait_is_refused_before_its_reduction),
      cmocka_unit_test(a_step_that_was_refused_continues_with_the_weights),
      cmocka_unit_test(no_bucket_is_posted_before_its_last_addend),
      cmocka_unit_test(passes_out_of_turn_are_refused),
      cmocka_unit_test(what_waits_holds_what_its_weights_read),
      cmocka_unit_test(what_the_reducer_took_is_given_back),
      cmocka_unit_test(what_was_returned_stays),
      cmocka_unit_test(a_reset_gives_everything_back),
      cmocka_unit_test(tapes_in_flight_take_turns_with_memory_and_dry_ones_plan_it),
      cmocka_unit_test(a_product_is_called_for_its_weight_without_it),
      cmocka_unit_test(conversions_of_a_weight_are_summed_in_its_pass),
      cmocka_unit_test(ranks_that_call_passes_in_other_orders_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
