/* Tests attention in bf16 against f64 on the same numbers. Each operand of a product is rounded once, so an error is
 * that of a sum of independently rounded terms: its bound is the root of the sum of the terms' squares, times half a
 * unit in the last place. A sum that was accumulated in bf16 has several times that error. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "addend/tensor.h"
#include "array/part.h"
#include "addend/helpers.h"
#include "ranks.h"
#include "tensor/attention.h"

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, WIDTH = HEADS * HEAD_DIM, KV_WIDTH = KV_HEADS * HEAD_DIM };

typedef struct setting {
  size_t seq;
  int sees_all;
  size_t parts;  /* number of parts into which keys are sharded */
  double spread; /* factor on q, and so on the scores */
} setting;

/* ---- values, with the errors that rounding may make ---- */

typedef struct value {
  uint16_t *half;
  float *wide;
  double *exact, *noise; /* the f64 result, and the sum of squares of the errors that its terms' roundings may make */
  size_t count;
} value;

static void *zeros(size_t count, size_t size) {
  void *memory = calloc(count + 1, size);
  CHECK(memory);
  return memory;
}

static value value_of(size_t count) {
  return (value){zeros(count, sizeof(uint16_t)), zeros(count, sizeof(float)), zeros(count, sizeof(double)),
                 zeros(count, sizeof(double)), count};
}

static value normal(size_t count, uint64_t stream, double spread) {
  value v = value_of(count);
  for (size_t i = 0; i < count; i++) {
    ad_set_element(AD_BF16, v.half, i, spread * ad_random_normal(7, stream, i));
    v.exact[i] = ad_element(AD_BF16, v.half, i);
  }
  return v;
}

static void release(value *v) {
  free(v->half);
  free(v->wide);
  free(v->exact);
  free(v->noise);
}

/* Adds a term of a product: `rounded` is in bf16, rounded from an f32 that is wrong by `off`; `factor` is exact. */
static void add_term(value *to, size_t at, double rounded, double off, double factor) {
  to->exact[at] += rounded * factor;
  to->noise[at] += (0x1p-18 * rounded * rounded + off * off) * factor * factor;
}

/* Checks results that are f32 sums of such terms, rounded to bf16 `roundings` times. */
static void holds(const value *v, int roundings) {
  double squares = 0, worst = 0;
  for (size_t i = 0; i < v->count; i++) {
    double last = roundings * 0x1p-18 * v->exact[i] * v->exact[i];
    double is = roundings ? ad_element(AD_BF16, v->half, i) : (double)v->wide[i];
    double off = fabs(is - v->exact[i]) / (sqrt(v->noise[i] + last) + 2e-6 * fabs(v->exact[i]) + 1e-9);
    squares += off * off;
    worst = fmax(worst, off);
  }
  CHECK(!v->count || sqrt(squares / (double)v->count) <= 1);
  CHECK(worst <= 6);
}

/* ---- the formula in f64, one row of one head at a time ---- */

typedef struct problem {
  setting setting;
  value q, k, v, d_out;     /* inputs */
  value out, d_q, d_k, d_v; /* results */
} problem;

typedef struct row {
  size_t q, kv; /* index of the row's first element in q, and of its head's first element in row 0 of the keys */
  size_t seen;
} row;

static row row_of(const setting *s, size_t batch, size_t head, size_t position) {
  return (row){(batch * s->seq + position) * WIDTH + head * HEAD_DIM,
               batch * s->seq * KV_WIDTH + head / (HEADS / KV_HEADS) * HEAD_DIM, s->sees_all ? s->seq : position + 1};
}

static double dot(const double *a, const double *b) {
  double sum = 0;
  for (size_t i = 0; i < HEAD_DIM; i++) sum += a[i] * b[i];
  return sum;
}

static void probabilities(const problem *p, row at, double *of) {
  double largest = -INFINITY, sum = 0;
  for (size_t j = 0; j < at.seen; j++) {
    of[j] = dot(p->q.exact + at.q, p->k.exact + at.kv + j * KV_WIDTH) / sqrt(HEAD_DIM);
    largest = fmax(largest, of[j]);
  }
  for (size_t j = 0; j < at.seen; j++) sum += of[j] = exp(of[j] - largest);
  for (size_t j = 0; j < at.seen; j++) of[j] /= sum;
}

static void forward_row(problem *p, row at, const double *probability) {
  for (size_t j = 0; j < at.seen; j++)
    for (size_t d = 0; d < HEAD_DIM; d++)
      add_term(&p->out, at.q + d, probability[j], 0, p->v.exact[at.kv + j * KV_WIDTH + d]);
}

/* Backward's sum of p dp, computed from the bf16 result times its gradient. */
static double centre_of(const problem *p, row at) {
  double sum = 0;
  for (size_t d = 0; d < HEAD_DIM; d++) sum += ad_element(AD_BF16, p->out.half, at.q + d) * p->d_out.exact[at.q + d];
  return sum;
}

static void backward_row(problem *p, row at, const double *probability) {
  double centre = centre_of(p, at);
  for (size_t j = 0; j < at.seen; j++) {
    size_t column = at.kv + j * KV_WIDTH;
    double slope = dot(p->d_out.exact + at.q, p->v.exact + column) - centre;
    double d_score = at.seen == 1 ? 0 : probability[j] * slope / sqrt(HEAD_DIM);
    double off = at.seen == 1 ? 0 : probability[j] * 4e-7;  // error of the slope's two terms, which nearly cancel
    for (size_t d = 0; d < HEAD_DIM; d++) {
      add_term(&p->d_v, column + d, probability[j], 0, p->d_out.exact[at.q + d]);
      add_term(&p->d_q, at.q + d, d_score, off, p->k.exact[column + d]);
      add_term(&p->d_k, column + d, d_score, off, p->q.exact[at.q + d]);
    }
  }
}

static void each_row(problem *p, void (*of_row)(problem *p, row at, const double *probability)) {
  double *probability = zeros(p->setting.seq, sizeof(double));
  for (size_t batch = 0; batch < BATCH; batch++)
    for (size_t head = 0; head < HEADS; head++)
      for (size_t i = 0; i < p->setting.seq; i++) {
        row at = row_of(&p->setting, batch, head, i);
        probabilities(p, at, probability);
        of_row(p, at, probability);
      }
  free(probability);
}

/* ---- the same computed by the library ---- */

static positions all_of(size_t count) {
  return (positions){.span = {{0, (int64_t)count}}, .span_count = 1, .count = count};
}

static attention_sizes sizes_of(const setting *s) {
  return (attention_sizes){.batch = BATCH,
                           .head_dim = HEAD_DIM,
                           .heads = HEADS,
                           .width = WIDTH,
                           .kv_heads = KV_HEADS,
                           .kv_width = KV_WIDTH,
                           .sharing = HEADS / KV_HEADS,
                           .rows = all_of(s->seq),
                           .visible = s->sees_all ? s->seq : 0};
}

/* A part of keys and values in its own memory, as if it had come from another rank, and its gradients. */
typedef struct key_part {
  attention_part part;
  size_t first, count;
  uint16_t *k, *v;
  float *d_k, *d_v;
} key_part;

static key_part part_of(const problem *p, size_t index) {
  size_t first = index * p->setting.seq / p->setting.parts,
         count = (index + 1) * p->setting.seq / p->setting.parts - first;
  size_t elements = BATCH * count * KV_WIDTH;
  key_part part = {.first = first,
                   .count = count,
                   .k = zeros(elements, sizeof(uint16_t)),
                   .v = zeros(elements, sizeof(uint16_t)),
                   .d_k = zeros(elements, sizeof(float)),
                   .d_v = zeros(elements, sizeof(float))};
  for (size_t batch = 0; batch < BATCH; batch++) {
    size_t to = batch * count * KV_WIDTH, from = (batch * p->setting.seq + first) * KV_WIDTH;
    memcpy(part.k + to, p->k.half + from, count * KV_WIDTH * sizeof(uint16_t));
    memcpy(part.v + to, p->v.half + from, count * KV_WIDTH * sizeof(uint16_t));
  }
  positions columns = {.span = {{(int64_t)first, (int64_t)count}}, .span_count = 1, .count = count};
  part.part = (attention_part){part.k, part.v, columns};
  return part;
}

/* Copies sums, which lie head after head, of `count` rows into the rows of a value from row `first` on. */
static void put_sums(const problem *p, value *to, size_t heads, const float *sums, size_t first, size_t count) {
  for (size_t unit = 0; unit < BATCH * heads; unit++)
    for (size_t i = 0; i < count; i++)
      memcpy(to->wide + ((unit / heads * p->setting.seq + first + i) * heads + unit % heads) * HEAD_DIM,
             sums + (unit * count + i) * HEAD_DIM, HEAD_DIM * sizeof(float));
}

static void put_gradients(problem *p, const key_part *part) {
  put_sums(p, &p->d_k, KV_HEADS, part->d_k, part->first, part->count);
  put_sums(p, &p->d_v, KV_HEADS, part->d_v, part->first, part->count);
}

static void release_part(key_part *part) {
  free(part->k);
  free(part->v);
  free(part->d_k);
  free(part->d_v);
}

/* Scratch memory filled with NaN, followed by bytes that must stay unchanged. */
enum { BEHIND = 64 };

static char *scratch_of(size_t bytes) {
  char *scratch = malloc(bytes + BEHIND);
  CHECK(scratch);
  memset(scratch, 0xff, bytes + BEHIND);
  return scratch;
}

static void release_scratch(char *scratch, size_t bytes) {
  for (size_t i = 0; i < BEHIND; i++) CHECK(scratch[bytes + i] == (char)0xff);
  free(scratch);
}

static void compute_out(problem *p, row_state state, char *scratch) {
  float *sums = zeros(p->out.count, sizeof(float));
  attention_forward forward = {sizes_of(&p->setting), AD_BF16, p->q.half, sums, state, scratch};
  ad_attention_begin(&forward);
  for (size_t i = 0; i < p->setting.parts; i++) {
    key_part part = part_of(p, p->setting.parts - 1 - i);
    ad_attention_add(&forward, &part.part);
    release_part(&part);
  }
  ad_attention_end(&forward);
  put_sums(p, &p->out, HEADS, sums, 0, p->setting.seq);
  ad_attention_round(p->out.half, AD_BF16, sums, (head_sizes){BATCH, p->setting.seq, WIDTH, HEADS, HEAD_DIM}, 0);
  free(sums);
}

static void compute_gradients(problem *p, row_state state, char *scratch) {
  float *d_q = zeros(p->d_q.count, sizeof(float));
  attention_backward backward = {sizes_of(&p->setting), AD_BF16, p->q.half, p->out.half,
                                 p->d_out.half,         state,   d_q,       scratch};
  for (size_t i = 0; i < p->setting.parts; i++) {
    key_part part = part_of(p, i);
    ad_attention_back(&backward, &part.part, part.d_k, part.d_v);
    put_gradients(p, &part);
    release_part(&part);
  }
  put_sums(p, &p->d_q, HEADS, d_q, 0, p->setting.seq);
  free(d_q);
}

static void compute(problem *p) {
  size_t seq = p->setting.seq, rows = BATCH * HEADS * seq;
  size_t bytes = ad_attention_scratch_bytes(AD_BF16, seq, (seq + p->setting.parts - 1) / p->setting.parts, HEAD_DIM);
  row_state state = {zeros(rows, sizeof(float)), zeros(rows, sizeof(float))};
  char *scratch = scratch_of(bytes);
  compute_out(p, state, scratch);
  compute_gradients(p, state, scratch);
  release_scratch(scratch, bytes);
  free(state.maximum);
  free(state.sum);
}

enum { GIVEN = 4 }; /* inputs of a problem: q, k, v, d_out */

static problem problem_of(setting s) {
  size_t rows = BATCH * s.seq;
  return (problem){.setting = s,
                   .q = normal(rows * WIDTH, 1, s.spread),
                   .k = normal(rows * KV_WIDTH, 2, 1),
                   .v = normal(rows * KV_WIDTH, 3, 1),
                   .d_out = normal(rows * WIDTH, 4, 1),
                   .out = value_of(rows * WIDTH),
                   .d_q = value_of(rows * WIDTH),
                   .d_k = value_of(rows * KV_WIDTH),
                   .d_v = value_of(rows * KV_WIDTH)};
}

static void release_problem(problem *p) {
  value *values[] = {&p->q, &p->k, &p->v, &p->d_out, &p->out, &p->d_q, &p->d_k, &p->d_v};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) release(values[i]);
}

static void judge(problem *p, int roundings) {
  each_row(p, forward_row);
  each_row(p, backward_row);
  holds(&p->out, roundings);
  holds(&p->d_q, roundings);
  holds(&p->d_k, roundings);
  holds(&p->d_v, roundings);
  release_problem(p);
}

static void compare(setting s) {
  problem p = problem_of(s);
  compute(&p);
  judge(&p, 0);
}

static void what_bf16_rounds_is_what_products_read(void **state) {
  for (int sees_all = 0; sees_all < 2; sees_all++) {
    compare((setting){1, sees_all, 1, 1});
    compare((setting){7, sees_all, 1, 1});
    compare((setting){100, sees_all, 1, 1});
  }
}

static void sums_form_in_f32_from_part_to_part(void **state) {
  for (int sees_all = 0; sees_all < 2; sees_all++) {
    compare((setting){100, sees_all, 5, 1});
    compare((setting){200, sees_all, 50, 1});
  }
}

static void a_long_row_is_taken_in_runs(void **state) {
  compare((setting){1100, 0, 1, 1});
  compare((setting){600, 1, 1, 1});
}

/* With scores near 5,000, f32 cannot hold a row's maximum plus the logarithm of its sum exactly enough:
 * both are kept. */
static void large_scores_keep_their_sums(void **state) {
  compare((setting){100, 0, 3, 1500});
  compare((setting){100, 1, 3, 300});
}

/* ---- the operation on ranks that shard the sequence or have all of it ---- */

typedef struct cut {
  const char *mesh, *layout;
  setting setting;
  int results; /* how often the operation is applied to the same operands */
  int gathers; /* 1: every rank gathers all keys and values; 0: they go around a ring */
} cut;

static ad_array own_part(ad_comm *comm, const ad_layout *layout, const value *full, int64_t width) {
  ad_shape shape = {3, {BATCH, (int64_t)full->count / width / BATCH, width}};
  ad_layout everywhere = ad_layout_all(layout->mesh, AD_R);
  ad_array own = ad_array_describe(comm, AD_BF16, &shape, layout);
  ad_part all, mine;
  own.data = zeros(ad_array_numel(&own), sizeof(uint16_t));
  ad_part_of(&everywhere, &shape, ad_comm_rank(comm), &all);
  ad_part_of(layout, &shape, ad_comm_rank(comm), &mine);
  ad_part_copy(own.data, &mine, full->half, &all, &mine, sizeof(uint16_t));
  return own;
}

/* Gathers the parts of a sharded value, on its own tape. */
static void bring_together(ad_comm *comm, const ad_layout *layout, const ad_array *own, value *full) {
  ad_tape *t;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_BF16};
  ad_array part = *own;
  part.layout = *layout;
  CHECK_OK(ad_tape_create(comm, layout->mesh, &options, &t));
  ad_tensor *all = ad_all_gather(t, ad_constant(t, &part), "cp", AD_R);
  CHECK_OK(ad_tape_status(t));
  CHECK(ad_array_numel(ad_tensor_array(all)) == full->count);
  memcpy(full->half, ad_tensor_array(all)->data, full->count * sizeof(uint16_t));
  ad_tape_destroy(t);
}

static void halve(value *v) {
  for (size_t i = 0; i < v->count; i++) ad_set_element(AD_BF16, v->half, i, ad_element(AD_BF16, v->half, i) / 2);
}

/* Starts backward with the gradient of one result, or with that of both, which then add up. */
static void start_backward(ad_tape *t, ad_tensor *const *y, const ad_array *d_out, int results) {
  const ad_array *gradients[] = {d_out, d_out};
  CHECK_OK(ad_backward_from(t, y, gradients, (size_t)results, AD_LAST_START));
}

static ad_tensor *keys(ad_tape *t, const cut *c, ad_tensor *own) {
  return c->gathers ? ad_all_gather(t, own, "cp", AD_R) : own;
}

typedef struct rank_case {
  ad_mesh *mesh;
  ad_layout layout;
  ad_array own[GIVEN];
  ad_tape *tape;
  ad_tensor *x[3], *y[2];
} rank_case;

/* Runs forward and backward on this rank; bit i of `carry`: operand i carries a gradient. */
static rank_case run_rank(ad_comm *comm, const cut *c, const problem *p, int carry) {
  const value *given[GIVEN] = {&p->q, &p->k, &p->v, &p->d_out};
  static const int64_t widths[GIVEN] = {WIDTH, KV_WIDTH, KV_WIDTH, WIDTH};
  ad_tape_options options = {.size = sizeof options, .dtype = AD_BF16};
  rank_case r;
  CHECK_OK(ad_mesh_create(c->mesh, &r.mesh));
  CHECK_OK(ad_layout_parse(r.mesh, c->layout, &r.layout));
  CHECK_OK(ad_tape_create(comm, r.mesh, &options, &r.tape));
  for (int i = 0; i < GIVEN; i++) r.own[i] = own_part(comm, &r.layout, given[i], widths[i]);
  for (int i = 0; i < 3; i++) r.x[i] = carry >> i & 1 ? ad_input(r.tape, &r.own[i]) : ad_constant(r.tape, &r.own[i]);
  ad_tensor *k = keys(r.tape, c, r.x[1]), *v = keys(r.tape, c, r.x[2]);
  for (int i = 0; i < c->results; i++)
    r.y[i] = c->setting.sees_all ? ad_attention_all(r.tape, r.x[0], k, v, HEAD_DIM)
                                 : ad_attention(r.tape, r.x[0], k, v, HEAD_DIM);
  r.own[3].layout = ad_layout_dual(&r.layout);
  start_backward(r.tape, r.y, &r.own[3], c->results);
  return r;
}

static void end_rank(rank_case *r) {
  for (int i = 0; i < GIVEN; i++) free(r->own[i].data);
  ad_tape_destroy(r->tape);
  ad_mesh_destroy(r->mesh);
}

static int one_rank(ad_comm *comm, void *context) {
  const cut *c = context;
  problem p = problem_of(c->setting);
  value *gradients[] = {&p.d_q, &p.d_k, &p.d_v};
  rank_case r = run_rank(comm, c, &p, 7);
  bring_together(comm, &r.layout, ad_tensor_array(r.y[0]), &p.out);
  for (int i = 0; i < 3; i++) bring_together(comm, &r.layout, ad_grad(r.x[i]), gradients[i]);
  for (int i = 0; i < 3 && c->results == 2; i++) halve(gradients[i]);
  judge(&p, c->results + c->gathers);
  end_rank(&r);
  return 0;
}

/* The gradients of some operands have the bits that they have when all three operands carry one. */
static int some_carry(ad_comm *comm, void *context) {
  problem p = problem_of(((const cut *)context)->setting);
  rank_case all = run_rank(comm, context, &p, 7);
  for (int carry = 1; carry < 7; carry++) {
    rank_case r = run_rank(comm, context, &p, carry);
    for (int i = 0; i < 3; i++)
      CHECK(!(carry >> i & 1) ||
            !memcmp(ad_grad(r.x[i])->data, ad_grad(all.x[i])->data, ad_array_bytes(ad_grad(all.x[i]))));
    end_rank(&r);
  }
  end_rank(&all);
  release_problem(&p);
  return 0;
}

static void cut_into(int64_t ranks, const char *mesh, const char *layout, setting s, int results) {
  cut c = {mesh, layout, s, results, 0};
  run_ranks(ranks, one_rank, &c);
}

static void the_operation_rounds_once_at_its_end(void **state) {
  for (int sees_all = 0; sees_all < 2; sees_all++) {
    setting s = {.seq = 90, .sees_all = sees_all, .spread = 1};
    cut_into(1, "cp=1", "cp=S1z", s, 1);
    cut_into(2, "cp=2", "cp=S1", s, 1);
    cut_into(3, "cp=3", "cp=S1z", s, 1);
    /* some ranks have no row */
    cut_into(4, "cp=4", "cp=S1z", (setting){.seq = 3, .sees_all = sees_all, .spread = 1}, 1);
    cut_into(8, "cp=8", "cp=S1", s, 1);
    cut_into(2, "cp=2", "cp=S2", s, 1); /* heads are sharded instead of the sequence */
  }
}

/* Each rank has fewer rows than columns, and rounds its addends to the gradients of keys and values before they are
 * summed. */
static void gathered_keys_serve_the_rows_of_each_rank(void **state) {
  for (int sees_all = 0; sees_all < 2; sees_all++) {
    cut c = {"cp=3", "cp=S1z", {.seq = 91, .sees_all = sees_all, .spread = 1}, 1, 1};
    run_ranks(3, one_rank, &c);
  }
}

/* The hostile backend fills memory that is being received into with NaN: the ring neither reads nor overwrites it. */
static void a_ring_holds_under_a_hostile_backend(void **state) {
  setting s = {.seq = 90, .spread = 1};
  setenv("ADDEND_HOSTILE", "13", 1);
  cut_into(2, "cp=2", "cp=S1z", s, 1);
  cut_into(3, "cp=3", "cp=S1z", s, 1);
  cut_into(4, "cp=4", "cp=S1z", s, 2);
  unsetenv("ADDEND_HOSTILE");
}

static void gradients_are_added_to_what_is_there(void **state) {
  setting s = {.seq = 90, .spread = 1};
  cut_into(1, "cp=1", "cp=S1z", s, 2);
  cut_into(3, "cp=3", "cp=S1z", s, 2);
}

static void operands_that_carry_no_gradient_are_left_alone(void **state) {
  cut c = {"cp=1", "cp=S1", {.seq = 20, .spread = 1}, 1, 0};
  run_ranks(1, some_carry, &c);
  c.mesh = "cp=2";
  run_ranks(2, some_carry, &c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_bf16_rounds_is_what_products_read),
      cmocka_unit_test(sums_form_in_f32_from_part_to_part),
      cmocka_unit_test(a_long_row_is_taken_in_runs),
      cmocka_unit_test(large_scores_keep_their_sums),
      cmocka_unit_test(the_operation_rounds_once_at_its_end),
      cmocka_unit_test(gathered_keys_serve_the_rows_of_each_rank),
      cmocka_unit_test(a_ring_holds_under_a_hostile_backend),
      cmocka_unit_test(gradients_are_added_to_what_is_there),
      cmocka_unit_test(operands_that_carry_no_gradient_are_left_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
