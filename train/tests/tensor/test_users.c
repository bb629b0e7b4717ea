/* Tests values with several users: every operation's backward adds to a gradient that exists already, and writes where
 * none does, in every dtype for which it has arithmetic. With several users, the gradient is the sum of those that each
 * user alone gives; gradient memory holds NaN before. Also every operation with backward in two passes, with operands
 * of each kind: the bits are those of one pass, although memory that was returned to the pool in between holds NaN. */
#include <glob.h>
#include <stdio.h>
#include "addend/bridge.h"
#include "array/array.h"
#include "ranks.h"
#include "tensor/routing.h"
#include "tensor/tape.h"
#include "world.h"
#include "base/random.h"

enum { OPERANDS = 3, OUTPUTS_MAX = 48, RECORDS_MAX = 128, ELEMENTS_MAX = 512, FOULED = 1 << 16 };

/* Kinds of operands. A parameter's gradient has the wide dtype, whatever the parameter's own dtype. */
typedef enum kind { NONE, VALUE, WIDE, PARAMETER, INDEX, TARGET } kind; /* a target may be -1, which does not count */

typedef struct operand {
  ad_shape shape;
  kind kind;
  const char *layout; /* NULL: "tp=I" */
} operand;

enum { INDICES_BELOW = 3 };

typedef struct composition {
  const char *name;
  ad_tensor *(*f)(ad_tape *t, ad_tensor *const *x);
  operand operands[OPERANDS];
  const char *mesh; /* NULL: "tp=1" */
  /* where a bridge leads; for a bridge between meshes of one shape, `to_mesh` is the mesh itself */
  const char *to_mesh, *to;
} composition;

/* ---- which operations were recorded, in which dtypes ---- */

typedef struct seen {
  const ad_operation *op;
  unsigned dtypes;
} seen;

static seen records[RECORDS_MAX];
static size_t record_count;

static void see(const ad_tensor *recorded) {
  size_t i = 0;
  while (i < record_count && records[i].op != recorded->op) i++;
  CHECK(i < RECORDS_MAX);
  if (i == record_count) records[record_count++].op = recorded->op;
  records[i].dtypes |= 1u << recorded->operand[0]->array.dtype;
}

/* ---- one start of backward ---- */

/* Whether further users are recorded before or after the operation; backward visits them in the other order. */
typedef enum order { USERS_BEFORE, USERS_AFTER } order;
enum { ALL = -1 }; /* start from all outputs at the same time */

typedef struct experiment {
  ad_comm *comm;
  ad_mesh *mesh;
  const composition *of;
  ad_dtype dtype;
  ad_array value[OPERANDS];
  unsigned weights;   /* bit i: the gradient of operand i belongs to the second pass */
  ad_tape_pool *pool; /* NULL: each tape has its own memory */
} experiment;

typedef struct start {
  ad_tape *tape;
  ad_tensor *leaf[OPERANDS], *output[OUTPUTS_MAX];
  int count;
} start;

static void fill(ad_array *array, uint64_t stream) {
  for (size_t i = 0; i < ad_array_numel(array); i++) {
    if (array->dtype == AD_I32)
      ((int32_t *)array->data)[i] = (int32_t)(ad_random_bits(7, stream, i) % INDICES_BELOW);
    else
      ad_set_element(array->dtype, array->data, i, ad_random_normal(7, stream, i));
  }
}

/* Fills with NaN the memory in which gradients of later tapes will form. */
static void foul(const experiment *e, ad_tape *tape) {
  ad_layout layout = ad_layout_all(e->mesh, AD_I);
  ad_array array = ad_array_describe(e->comm, e->dtype, &(ad_shape){1, {FOULED}}, &layout);
  CHECK(array.data = malloc(ad_array_bytes(&array)));
  for (size_t i = 0; i < FOULED; i++) ad_set_element(e->dtype, array.data, i, NAN);
  ad_scale(tape, ad_constant(tape, &array), 1);
  CHECK_OK(ad_tape_status(tape));
  ad_tape_reset(tape);
  free(array.data);
}

static ad_tensor *leaf_of(const experiment *e, ad_tape *tape, int i) {
  kind of = e->of->operands[i].kind;
  if (of == INDEX || of == TARGET) return ad_constant(tape, &e->value[i]);
  if (of == PARAMETER) return ad_input_with(tape, &e->value[i], ad_dtype_wide(e->dtype), AD_HERE);
  return ad_input(tape, &e->value[i]);
}

static void add_user(start *s, ad_tensor *of) {
  CHECK(s->count < OUTPUTS_MAX);
  s->output[s->count++] = ad_scale(s->tape, of, 1);
}

/* Gives every value that an operation took one user more. */
static void add_users(start *s) {
  ad_tensor *last = s->tape->last, *found[OUTPUTS_MAX];
  int count = 0;
  for (ad_tensor *each = last; each; each = each->previous) {
    if (each->op) see(each);
    for (int i = 0; i < each->operand_count; i++) {
      int known = !each->operand[i]->carries;
      for (int k = 0; k < count; k++) known |= found[k] == each->operand[i];
      if (known) continue;
      CHECK(count < OUTPUTS_MAX);
      found[count++] = each->operand[i];
    }
  }
  for (int k = 0; k < count; k++) add_user(s, found[k]);
}

static start record(const experiment *e, order when) {
  start s = {0};
  ad_tape_options options = {.size = sizeof options, .dtype = e->dtype};
  CHECK_OK(ad_tape_create(e->comm, e->mesh, &options, &s.tape));
  if (e->pool) ad_tape_share(s.tape, e->pool);
  foul(e, s.tape);
  for (int i = 0; i < OPERANDS && e->of->operands[i].kind; i++) {
    s.leaf[i] = leaf_of(e, s.tape, i);
    if (e->weights >> i & 1) s.leaf[i]->reached = 0;  // this makes it a parameter, in any dtype
    if (when == USERS_BEFORE && s.leaf[i]->carries) add_user(&s, s.leaf[i]);
  }
  ad_tensor *result = e->of->f(s.tape, s.leaf);
  CHECK_OK(ad_tape_status(s.tape));
  if (when == USERS_AFTER) add_users(&s);
  CHECK(s.count < OUTPUTS_MAX);
  s.output[s.count++] = result;
  CHECK_OK(ad_tape_status(s.tape));
  return s;
}

typedef struct arriving {
  ad_array array[OUTPUTS_MAX];
  const ad_array *list[OUTPUTS_MAX];
} arriving;

static void describe_gradient(const experiment *e, const start *s, int i, arriving *a) {
  const ad_array *value = &s->output[i]->array;
  ad_layout dual = ad_layout_dual(&value->layout);
  a->array[i] = ad_array_describe(e->comm, s->output[i]->grad_dtype, &value->shape, &dual);
  CHECK(a->array[i].data = malloc(ad_array_bytes(&a->array[i]) + 1));
  fill(&a->array[i], 100 + (uint64_t)i);
  a->list[i] = &a->array[i];
}

static void add_gradients(const start *s, double sums[OPERANDS][ELEMENTS_MAX]) {
  for (int i = 0; i < OPERANDS && s->leaf[i]; i++) {
    const ad_array *grad = ad_grad(s->leaf[i]);
    for (size_t k = 0; grad && k < ad_array_numel(grad); k++) {
      CHECK(k < ELEMENTS_MAX);
      sums[i][k] += element(grad, k);
    }
  }
}

/* Starts backward from output `which` or from all, and adds the leaves' gradients to `sums`. Returns the number of
 * outputs. */
static int run_start(const experiment *e, order when, int which, double sums[OPERANDS][ELEMENTS_MAX]) {
  start s = record(e, when);
  arriving a;
  int first = which == ALL ? 0 : which;
  for (int i = 0; i < s.count; i++) describe_gradient(e, &s, i, &a);
  size_t count = which == ALL ? (size_t)s.count : 1;
  CHECK_OK(ad_backward_from(s.tape, s.output + first, a.list + first, count, AD_LAST_START));
  add_gradients(&s, sums);
  for (int i = 0; i < s.count; i++) free(a.array[i].data);
  ad_tape_destroy(s.tape);
  return s.count;
}

/* The relative bound: sums of some ten terms at most, each rounded a few times. */
static double roundings_of(ad_dtype dtype) { return dtype == AD_F64 ? 1e-13 : dtype == AD_F32 ? 2e-5 : 0.04; }

static void check_order(const experiment *e, order when) {
  static double together[OPERANDS][ELEMENTS_MAX], apart[OPERANDS][ELEMENTS_MAX];
  memset(together, 0, sizeof together);
  memset(apart, 0, sizeof apart);
  int count = run_start(e, when, ALL, together);
  for (int i = 0; i < count; i++) run_start(e, when, i, apart);
  for (int i = 0; i < OPERANDS; i++) {
    double largest = 0;
    for (size_t k = 0; k < ELEMENTS_MAX; k++) largest = fmax(largest, fabs(apart[i][k]));
    for (size_t k = 0; k < ELEMENTS_MAX; k++)
      if (!(fabs(together[i][k] - apart[i][k]) <= roundings_of(e->dtype) * largest)) {
        char words[128];
        snprintf(words, sizeof words, "%s, operand %d, element %zu: %g of all users is %g, the sum of each alone",
                 ad_dtype_name(e->dtype), i, k, together[i][k], apart[i][k]);
        rank_check_failed(e->of->name, (int)when, words);
      }
  }
}

/* ---- backward in two passes ---- */

/* Fills memory that was given back with NaN, so that a read of it is noticed. */
static void foul_spares(const tape_memory *memory) {
  for (const spare *each = memory->spares; each; each = each->next)
    if (each->bytes) memset(each->data, 0xff, each->bytes);
}

static void run_passes(const experiment *e, order when, int in_two, double gradient[OPERANDS][ELEMENTS_MAX]) {
  start s = record(e, when);
  arriving a;
  for (int i = 0; i < s.count; i++) describe_gradient(e, &s, i, &a);
  CHECK_OK(ad_backward_from(s.tape, s.output, a.list, (size_t)s.count, in_two ? AD_INPUTS_START : AD_LAST_START));
  for (int i = 0; i < s.count; i++)
    memset(a.array[i].data, 0xff, ad_array_bytes(&a.array[i]));  // the start's gradient was borrowed for the call only
  if (e->pool) foul_spares(s.tape->values);
  for (int i = 0; in_two && i < OPERANDS && s.leaf[i]; i++)
    CHECK(!(e->weights >> i & 1) || !ad_grad(s.leaf[i]) || s.output[i] == s.leaf[i]);
  if (in_two) CHECK_OK(ad_backward_weights(s.tape));
  add_gradients(&s, gradient);
  for (int i = 0; i < s.count; i++) free(a.array[i].data);
  ad_tape_destroy(s.tape);
}

static void check_kinds(const experiment *e, order when) {
  static double one[OPERANDS][ELEMENTS_MAX], two[OPERANDS][ELEMENTS_MAX];
  memset(one, 0, sizeof one);
  memset(two, 0, sizeof two);
  run_passes(e, when, 0, one);
  run_passes(e, when, 1, two);
  for (int i = 0; i < OPERANDS; i++)
    for (size_t k = 0; k < ELEMENTS_MAX; k++)
      if (one[i][k] != two[i][k]) {
        char words[160];
        snprintf(words, sizeof words, "%s, operand %d, element %zu: %g in two passes is %g (weights: %x, a pool: %d)",
                 ad_dtype_name(e->dtype), i, k, one[i][k], two[i][k], e->weights, e->pool != NULL);
        rank_check_failed(e->of->name, (int)when, words);
      }
}

/* Tries every operand that carries a gradient as an input and as a parameter, in all combinations. */
static void check_passes(experiment *e) {
  unsigned carry = 0;
  for (int i = 0; i < OPERANDS && e->of->operands[i].kind; i++)
    carry |= (unsigned)(e->of->operands[i].kind != INDEX && e->of->operands[i].kind != TARGET) << i;
  for (int pooled = 0; pooled < 2; pooled++) {
    if (pooled) CHECK_OK(ad_tape_pool_create(0, &e->pool));
    for (unsigned weights = carry;; weights = (weights - 1) & carry) {
      e->weights = weights;
      check_kinds(e, USERS_BEFORE);
      check_kinds(e, USERS_AFTER);
      if (!weights) break;
    }
    ad_tape_pool_destroy(e->pool);
  }
}

static ad_array value_of(const experiment *e, int i) {
  const operand *of = &e->of->operands[i];
  ad_layout layout;
  CHECK_OK(ad_layout_parse(e->mesh, of->layout ? of->layout : "tp=I", &layout));
  ad_dtype dtype = of->kind == INDEX || of->kind == TARGET ? AD_I32
                   : of->kind == WIDE                      ? ad_dtype_wide(e->dtype)
                                                           : e->dtype;
  ad_array array = ad_array_describe(e->comm, dtype, &of->shape, &layout);
  CHECK(array.data = malloc(ad_array_bytes(&array) + 1));
  int is_own = ad_layout_axes_of(&layout, AD_V) != 0; /* V: each rank has other rows */
  fill(&array, 10 * (uint64_t)(is_own ? ad_comm_rank(e->comm) : 0) + (uint64_t)i);
  for (size_t k = 1; of->kind == TARGET && k < ad_array_numel(&array); k += 2) ((int32_t *)array.data)[k] = -1;
  return array;
}

static ad_bridge *bridge; /* the bridge of the composition that is being tested */

static void open_bridge(const experiment *e, ad_mesh **to_mesh) {
  ad_layout to;
  CHECK_OK(ad_mesh_create(e->of->to_mesh, to_mesh));
  CHECK_OK(ad_layout_parse(*to_mesh, e->of->to, &to));
  ad_bridge_options options = {.size = sizeof options, .identical = !strcmp(e->of->mesh, e->of->to_mesh)};
  CHECK_OK(ad_bridge_create(e->comm, &e->value[0].layout, &to, &options, &bridge));
}

static void check_composition(ad_comm *comm, const composition *c, ad_dtype dtype) {
  experiment e = {.comm = comm, .of = c, .dtype = dtype};
  CHECK_OK(ad_mesh_create(c->mesh ? c->mesh : "tp=1", &e.mesh));
  for (int i = 0; i < OPERANDS && c->operands[i].kind; i++) e.value[i] = value_of(&e, i);
  ad_mesh *to_mesh = NULL;
  if (c->to) open_bridge(&e, &to_mesh);
  check_order(&e, USERS_BEFORE);
  check_order(&e, USERS_AFTER);
  check_passes(&e);
  if (c->to) ad_bridge_destroy(bridge);
  ad_mesh_destroy(to_mesh);
  for (int i = 0; i < OPERANDS; i++) free(e.value[i].data);
  ad_mesh_destroy(e.mesh);
}

/* ---- the compositions: each applies an operation ---- */

/* A constant in memory that outlives the tape. */
static ad_tensor *constant(ad_tape *t, const ad_tensor *like, ad_dtype dtype, ad_shape shape) {
  static double memory[ELEMENTS_MAX];
  ad_array array = ad_array_describe(ad_tape_comm(t), dtype, &shape, &like->array.layout);
  CHECK(ad_array_numel(&array) <= ELEMENTS_MAX);
  array.data = memory;
  fill(&array, 50);
  return ad_constant(t, &array);
}

static ad_count *step_count, *no_count; /* counts 2 and 5 in two microbatches; and one that counts 0 */

#define OF_ONE(name) \
  static ad_tensor *name(ad_tape *t, ad_tensor *const *x) { return ad_##name(t, x[0]); }
#define OF_TWO(name) \
  static ad_tensor *name(ad_tape *t, ad_tensor *const *x) { return ad_##name(t, x[0], x[1]); }
OF_TWO(add)
OF_TWO(add_row)
OF_TWO(multiply)
OF_TWO(linear)
OF_TWO(linear_transposed)
OF_TWO(embedding)
OF_TWO(swiglu)
OF_TWO(squared_error)
OF_TWO(place)
OF_TWO(scale_rows)
OF_TWO(scale_by)
OF_TWO(repeat)
OF_TWO(cross_entropy)
OF_ONE(sum)
OF_ONE(gelu)
OF_ONE(relu)
static ad_tensor *layer_norm(ad_tape *t, ad_tensor *const *x) { return ad_layer_norm(t, x[0], x[1], x[2], 1e-5); }
static ad_tensor *dropout(ad_tape *t, ad_tensor *const *x) { return ad_dropout(t, x[0], 0.3, 7, "dropped", 2, 0); }
static ad_tensor *transpose(ad_tape *t, ad_tensor *const *x) { return ad_transpose(t, x[0], 1, 0); }
static ad_tensor *reshape(ad_tape *t, ad_tensor *const *x) { return ad_reshape(t, x[0], &(ad_shape){2, {3, 10}}); }
static ad_tensor *sum_over(ad_tape *t, ad_tensor *const *x) { return ad_sum_over(t, x[0], 1); }
static ad_tensor *mean_over(ad_tape *t, ad_tensor *const *x) { return ad_mean_over(t, x[0], 2); }
static ad_tensor *max_over(ad_tape *t, ad_tensor *const *x) { return ad_max_over(t, x[0], 1); }
static ad_tensor *norm_over(ad_tape *t, ad_tensor *const *x) { return ad_norm_over(t, x[0], 1); }
static ad_tensor *hyperbolic_tangent(ad_tape *t, ad_tensor *const *x) { return ad_tanh(t, x[0]); }
static ad_tensor *exponential(ad_tape *t, ad_tensor *const *x) { return ad_exp(t, x[0]); }
static ad_tensor *above_one(ad_tape *t, ad_tensor *x) { return ad_exp(t, ad_multiply(t, x, x)); }
static ad_tensor *logarithm(ad_tape *t, ad_tensor *const *x) { return ad_ln(t, above_one(t, x[0])); }
static ad_tensor *square_root(ad_tape *t, ad_tensor *const *x) { return ad_sqrt(t, above_one(t, x[0])); }
OF_ONE(softmax)
static ad_tensor *shares(ad_tape *t, ad_tensor *const *x) { return ad_shares(t, above_one(t, x[0])); }
OF_ONE(sigmoid)
static ad_tensor *to_wide(ad_tape *t, ad_tensor *const *x) { return ad_to_dtype(t, x[0], AD_F32); }
static ad_tensor *to_narrow(ad_tape *t, ad_tensor *const *x) { return ad_to_dtype(t, x[0], AD_BF16); }
static ad_tensor *scale(ad_tape *t, ad_tensor *const *x) { return ad_scale(t, x[0], -1.75); }
static ad_tensor *divide(ad_tape *t, ad_tensor *const *x) { return ad_divide(t, x[0], step_count); }
static ad_tensor *divide_by_none(ad_tape *t, ad_tensor *const *x) { return ad_divide(t, x[0], no_count); }
static ad_tensor *add_of_one(ad_tape *t, ad_tensor *const *x) { return ad_add(t, x[0], x[0]); }
static ad_tensor *share(ad_tape *t, ad_tensor *const *x) { return ad_share(t, x[0], step_count, 1); }
static ad_tensor *concat(ad_tape *t, ad_tensor *const *x) { return ad_concat(t, x, 3, -1); }
static ad_tensor *concat_of_one(ad_tape *t, ad_tensor *const *x) {
  return ad_concat(t, (ad_tensor *[]){x[0], x[0], x[0]}, 3, -1);
}
static ad_tensor *slice(ad_tape *t, ad_tensor *const *x) { return ad_slice(t, x[0], -1, 2, 3); }
static ad_tensor *rms_norm(ad_tape *t, ad_tensor *const *x) { return ad_rms_norm(t, x[0], x[1], 1e-5); }
static ad_tensor *rms_norm_unweighted(ad_tape *t, ad_tensor *const *x) { return ad_rms_norm_unweighted(t, x[0], 1e-5); }
static ad_tensor *head_norm(ad_tape *t, ad_tensor *const *x) { return ad_head_norm(t, x[0], x[1], 1e-5); }
static ad_tensor *rotary(ad_tape *t, ad_tensor *const *x) { return ad_rotary(t, x[0], 6, 10000); }
static ad_tensor *attention(ad_tape *t, ad_tensor *const *x) { return ad_attention(t, x[0], x[1], x[2], 4); }
static ad_tensor *attention_all(ad_tape *t, ad_tensor *const *x) { return ad_attention_all(t, x[0], x[1], x[2], 4); }
static ad_tensor *self_attention(ad_tape *t, ad_tensor *const *x) { return ad_attention(t, x[0], x[0], x[0], 4); }
static ad_tensor *kl_divergence(ad_tape *t, ad_tensor *const *x) {
  return ad_kl_divergence(t, x[0], constant(t, x[0], x[0]->array.dtype, x[0]->array.shape));
}
static ad_tensor *binary_cross_entropy(ad_tape *t, ad_tensor *const *x) {
  return ad_binary_cross_entropy(t, x[0], constant(t, x[0], x[0]->array.dtype, x[0]->array.shape));
}
static ad_tensor *balance(ad_tape *t, ad_tensor *const *x) {
  return ad_balance(t, x[0], constant(t, x[0], x[0]->array.dtype, (ad_shape){1, {3}}), 2);
}
static ad_tensor *rows_and_back(ad_tape *t, ad_tensor *const *x) { return ad_from_rows(t, ad_to_rows(t, x[0]), x[0]); }
static ad_tensor *view(ad_tape *t, ad_tensor *const *x) { return ad_view(t, x[0], x[0]->array.layout.mesh); }
static ad_tensor *move(ad_tape *t, ad_tensor *const *x) { return ad_convert(t, x[0], "tp", AD_R); }
static ad_tensor *summed(ad_tape *t, ad_tensor *const *x) { return ad_all_reduce(t, x[0], "tp", AD_I); }
static ad_tensor *transfer(ad_tape *t, ad_tensor *const *x) { return ad_transfer_tensor(t, x[0], bridge); }
static ad_tensor *comm_dtype(ad_tape *t, ad_tensor *const *x) {
  return ad_comm_round_at(t, x[0], &(transfer_rounding){.gradient_scale = 1}, AD_HERE);
}
/* Everything that a mixture of experts does with rows: x[0] tokens, x[1] scores, x[2] the experts' matrices. */
static ad_tensor *routed(ad_tape *t, ad_tensor *const *x) {
  ad_routing *routing;
  ad_tensor *chosen = ad_top_k(t, x[1], 2, NULL, &routing);
  ad_tensor *slots = ad_to_slots(t, x[0], routing), *factors = ad_slot_weights(t, chosen, routing);
  slots = ad_grouped_linear(t, ad_dispatch(t, slots, routing, "ep"), x[2], routing);
  return ad_from_slots(t, ad_scale_rows(t, ad_return(t, slots, routing, "ep"), factors), routing);
}

#define SHAPE(n, ...)    \
  {                      \
    (n), { __VA_ARGS__ } \
  }

/* Operations that have all float dtypes. */
static const composition any_float[] = {
    {"add", add, {{SHAPE(2, 3, 5), VALUE, 0}, {SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"add", add, {{SHAPE(2, 3, 5), WIDE, 0}, {SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"add", add, {{SHAPE(2, 3, 5), VALUE, 0}, {SHAPE(2, 3, 5), WIDE, 0}}, 0, 0, 0},
    {"add_row", add_row, {{SHAPE(3, 3, 4, 5), VALUE, 0}, {SHAPE(1, 5), WIDE, 0}}, 0, 0, 0},
    {"multiply", multiply, {{SHAPE(2, 3, 5), VALUE, 0}, {SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"scale", scale, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"scale", scale, {{SHAPE(2, 3, 5), PARAMETER, 0}}, 0, 0, 0},
    {"scale_by", scale_by, {{SHAPE(2, 3, 5), VALUE, 0}, {SHAPE(1, 1), WIDE, 0}}, 0, 0, 0},
    {"divide", divide, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"divide_by_none", divide_by_none, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"add_of_one", add_of_one, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"share", share, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"sum", sum, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"swiglu", swiglu, {{SHAPE(2, 3, 45), VALUE, 0}, {SHAPE(2, 3, 45), VALUE, 0}}, 0, 0, 0},
    {"gelu", gelu, {{SHAPE(2, 3, 45), VALUE, 0}}, 0, 0, 0},
    {"sum_over", sum_over, {{SHAPE(3, 2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"mean_over", mean_over, {{SHAPE(3, 2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"max_over", max_over, {{SHAPE(3, 2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"norm_over", norm_over, {{SHAPE(3, 2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"transpose", transpose, {{SHAPE(3, 2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"reshape", reshape, {{SHAPE(3, 2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"layer_norm",
     layer_norm,
     {{SHAPE(3, 2, 3, 5), VALUE, 0}, {SHAPE(1, 5), WIDE, 0}, {SHAPE(1, 5), WIDE, 0}},
     0,
     0,
     0},
    {"dropout", dropout, {{SHAPE(3, 2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"relu", relu, {{SHAPE(2, 3, 45), VALUE, 0}}, 0, 0, 0},
    {"tanh", hyperbolic_tangent, {{SHAPE(2, 3, 45), VALUE, 0}}, 0, 0, 0},
    {"exp", exponential, {{SHAPE(2, 3, 45), VALUE, 0}}, 0, 0, 0},
    {"ln", logarithm, {{SHAPE(2, 3, 45), VALUE, 0}}, 0, 0, 0},
    {"sqrt", square_root, {{SHAPE(2, 3, 45), VALUE, 0}}, 0, 0, 0},
    {"linear", linear, {{SHAPE(3, 2, 3, 5), VALUE, 0}, {SHAPE(2, 5, 7), VALUE, 0}}, 0, 0, 0},
    {"linear", linear, {{SHAPE(3, 2, 3, 5), VALUE, 0}, {SHAPE(2, 5, 7), PARAMETER, 0}}, 0, 0, 0},
    {"linear_transposed", linear_transposed, {{SHAPE(3, 2, 3, 5), VALUE, 0}, {SHAPE(2, 7, 5), PARAMETER, 0}}, 0, 0, 0},
    {"embedding", embedding, {{SHAPE(2, 3, 5), PARAMETER, 0}, {SHAPE(2, 2, 3), INDEX, 0}}, 0, 0, 0},
    {"embedding", embedding, {{SHAPE(2, 3, 5), VALUE, 0}, {SHAPE(2, 2, 3), INDEX, 0}}, 0, 0, 0},
    {"concat", concat, {{SHAPE(2, 3, 5), VALUE, 0}, {SHAPE(2, 3, 1), VALUE, 0}, {SHAPE(2, 3, 4), VALUE, 0}}, 0, 0, 0},
    {"concat_of_one", concat_of_one, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"slice", slice, {{SHAPE(2, 3, 7), VALUE, 0}}, 0, 0, 0},
    {"rms_norm", rms_norm, {{SHAPE(2, 3, 37), VALUE, 0}, {SHAPE(1, 37), WIDE, 0}}, 0, 0, 0},
    {"rms_norm", rms_norm, {{SHAPE(2, 3, 37), WIDE, 0}, {SHAPE(1, 37), WIDE, 0}}, 0, 0, 0},
    {"rms_norm_unweighted", rms_norm_unweighted, {{SHAPE(2, 3, 37), VALUE, 0}}, 0, 0, 0},
    {"head_norm", head_norm, {{SHAPE(3, 2, 3, 12), VALUE, 0}, {SHAPE(1, 4), WIDE, 0}}, 0, 0, 0},
    {"rotary", rotary, {{SHAPE(3, 2, 5, 12), VALUE, 0}}, 0, 0, 0},
    {"attention",
     attention,
     {{SHAPE(3, 2, 7, 8), VALUE, 0}, {SHAPE(3, 2, 7, 4), VALUE, 0}, {SHAPE(3, 2, 7, 4), VALUE, 0}},
     0,
     0,
     0},
    {"attention_all",
     attention_all,
     {{SHAPE(3, 2, 7, 8), VALUE, 0}, {SHAPE(3, 2, 7, 4), VALUE, 0}, {SHAPE(3, 2, 7, 4), VALUE, 0}},
     0,
     0,
     0},
    {"self_attention", self_attention, {{SHAPE(3, 2, 7, 8), VALUE, 0}}, 0, 0, 0},
    {"cross_entropy", cross_entropy, {{SHAPE(3, 2, 3, 5), VALUE, 0}, {SHAPE(2, 2, 3), TARGET, 0}}, 0, 0, 0},
    {"squared_error", squared_error, {{SHAPE(2, 29, 13), VALUE, 0}, {SHAPE(2, 29, 13), VALUE, 0}}, 0, 0, 0},
    {"kl_divergence", kl_divergence, {{SHAPE(2, 9, 13), VALUE, 0}}, 0, 0, 0},
    {"binary_cross_entropy", binary_cross_entropy, {{SHAPE(2, 29, 13), VALUE, 0}}, 0, 0, 0},
    {"place", place, {{SHAPE(3, 2, 5, 3), VALUE, 0}, {SHAPE(3, 2, 2, 3), VALUE, 0}}, 0, 0, 0},
    {"place", place, {{SHAPE(3, 2, 5, 3), VALUE, 0}, {SHAPE(3, 2, 2, 3), WIDE, 0}}, 0, 0, 0},
    {"scale_rows", scale_rows, {{SHAPE(3, 2, 3, 5), VALUE, 0}, {SHAPE(2, 2, 3), WIDE, 0}}, 0, 0, 0},
    {"rows_and_back", rows_and_back, {{SHAPE(3, 2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"view", view, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"move", move, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"comm_round", comm_dtype, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"routed",
     routed,
     {{SHAPE(2, 7, 5), VALUE, "ep=V"}, {SHAPE(2, 7, 3), WIDE, "ep=V"}, {SHAPE(3, 3, 5, 4), VALUE, "ep=S0"}},
     "ep=1",
     0,
     0},
    {"routed",
     routed,
     {{SHAPE(2, 7, 5), VALUE, "ep=V"}, {SHAPE(2, 7, 3), WIDE, "ep=V"}, {SHAPE(3, 3, 5, 4), PARAMETER, "ep=S0"}},
     "ep=1",
     0,
     0},
    {"cross",
     transfer,
     {{SHAPE(2, 6, 5), VALUE, "dp_shard=S0 tp=I"}},
     "dp_shard=1 tp=1",
     "dp_shard=1 tp=1",
     "dp_shard=S0 tp=I"},
    /* Some experts get no row. */
    {"routed",
     routed,
     {{SHAPE(2, 2, 5), VALUE, "ep=V"}, {SHAPE(2, 2, 5), WIDE, "ep=V"}, {SHAPE(3, 5, 5, 4), VALUE, "ep=S0"}},
     "ep=1",
     0,
     0},
    /* Operations on statistics, which are in the wide dtype. */
    {"softmax", softmax, {{SHAPE(2, 3, 5), WIDE, 0}}, 0, 0, 0},
    {"shares", shares, {{SHAPE(2, 3, 5), WIDE, 0}}, 0, 0, 0},
    {"sigmoid", sigmoid, {{SHAPE(2, 3, 5), WIDE, 0}}, 0, 0, 0},
    {"repeat", repeat, {{SHAPE(2, 3, 5), WIDE, 0}, {SHAPE(2, 4, 3), INDEX, 0}}, 0, 0, 0},
    {"balance", balance, {{SHAPE(2, 7, 3), WIDE, 0}}, 0, 0, 0},
};

/* Conversions, which change dtypes only on a bf16 tape. */
static const composition conversions[] = {
    {"to_wide", to_wide, {{SHAPE(2, 3, 5), VALUE, 0}}, 0, 0, 0},
    {"to_narrow", to_narrow, {{SHAPE(2, 3, 5), WIDE, 0}}, 0, 0, 0},
};

/* Operations that communicate between two ranks. */
static const composition between[] = {
    {"routed",
     routed,
     {{SHAPE(2, 7, 5), VALUE, "ep=V"}, {SHAPE(2, 7, 3), WIDE, "ep=V"}, {SHAPE(3, 3, 5, 4), VALUE, "ep=S0"}},
     "ep=2",
     0,
     0},
    {"move", move, {{SHAPE(2, 3, 5), VALUE, "tp=I"}}, "tp=2", 0, 0},
    {"summed", summed, {{SHAPE(2, 3, 5), VALUE, "tp=P"}}, "tp=2", 0, 0},
    {"attention",
     attention,
     {{SHAPE(3, 2, 8, 8), VALUE, "cp=S1z"}, {SHAPE(3, 2, 8, 4), VALUE, "cp=S1z"}, {SHAPE(3, 2, 8, 4), VALUE, "cp=S1z"}},
     "cp=2",
     0,
     0},
    {"cross_entropy",
     cross_entropy,
     {{SHAPE(3, 2, 3, 5), VALUE, "tp=S2"}, {SHAPE(2, 2, 3), TARGET, "tp=I"}},
     "tp=2",
     0,
     0},
    {"cross",
     transfer,
     {{SHAPE(2, 6, 5), VALUE, "dp_shard=S0 tp=I"}},
     "dp_shard=2 tp=1",
     "dp_shard=1 tp=2",
     "dp_shard=S0 tp=I"},
    {"hand on", transfer, {{SHAPE(2, 3, 7), VALUE, "cp=S1z"}}, "cp=2", "cp=2", "cp=S1z"},
};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static void check_all(ad_comm *comm, const composition *list, size_t count) {
  static const ad_dtype dtypes[] = {AD_F64, AD_F32, AD_BF16};
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; k < COUNT(dtypes); k++) check_composition(comm, &list[i], dtypes[k]);
}

/* ---- every operation of the library is tested ---- */

static size_t seen_of(const char *name) {
  size_t count = 0;
  for (size_t i = 0; i < record_count; i++) count += !strcmp(records[i].op->name, name);
  return count;
}

/* On an f64 tape every dtype is f64, so there is nothing to convert. */
static unsigned wanted_of(const ad_operation *op) {
  return op->dtypes & ~(strcmp(op->name, "to_dtype") ? 0u : 1u << AD_F64);
}

static void check_dtypes(void) {
  for (size_t i = 0; i < record_count; i++)
    if (records[i].dtypes != wanted_of(records[i].op)) rank_check_failed(__FILE__, __LINE__, records[i].op->name);
}

/* The records named in the sources: each must have been tested; those listed in `elsewhere` are tested
 * in another file. */
typedef struct written {
  char name[32];
  size_t count;
} written;

static size_t add_written(const char *path, written *list, size_t count) {
  char line[256];
  int is_record = 0;
  FILE *file = fopen(path, "r");
  CHECK(file);
  while (fgets(line, sizeof line, file)) {
    written found = {.count = 1};
    is_record |= !strncmp(line, "static const ad_operation ", 23);
    const char *name = strstr(line, ".name = \"");
    // an elementwise function, listed in a macro
    int is_listed = sscanf(line, "  X(%31[a-z_], AD_IN", found.name) == 1;
    int is_named = is_record && name && sscanf(name, ".name = \"%31[^\"]", found.name) == 1;
    if (!is_listed && !is_named) continue;
    is_record = 0;
    size_t i = 0;
    while (i < count && strcmp(list[i].name, found.name)) i++;
    CHECK(i < RECORDS_MAX);
    if (i == count) {
      list[i] = (written){.count = 0};
      count++;
    }
    strcpy(list[i].name, found.name);
    list[i].count++;
  }
  fclose(file);
  return count;
}

static void check_all_seen(const char *const *elsewhere, size_t elsewhere_count) {
  static written list[RECORDS_MAX];
  glob_t sources;
  size_t count = 0;
  CHECK(!glob(AD_TEST_SOURCE "/train/tensor/op_*.c", 0, NULL, &sources));
  for (size_t i = 0; i < sources.gl_pathc; i++) count = add_written(sources.gl_pathv[i], list, count);
  globfree(&sources);
  CHECK(count > 40);
  for (size_t i = 0; i < count; i++) {
    for (size_t k = 0; k < elsewhere_count; k++) list[i].count -= !strcmp(list[i].name, elsewhere[k]);
    if (seen_of(list[i].name) != list[i].count) rank_check_failed(__FILE__, __LINE__, list[i].name);
  }
}

static int on_one_rank(ad_comm *comm, void *context) {
  static const char *const between_ranks[] = {"all_to_all", "bridge"};
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("tp=1", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_I);
  CHECK_OK(ad_count_create(comm, &layout, 2, &step_count));
  CHECK_OK(ad_count_post(step_count, (int64_t[]){2, 5}));
  CHECK_OK(ad_count_wait(step_count, NULL));
  CHECK_OK(ad_count_create(comm, &layout, 1, &no_count));
  CHECK_OK(ad_count_post(no_count, (int64_t[]){0}));
  CHECK_OK(ad_count_wait(no_count, NULL));
  check_all(comm, any_float, COUNT(any_float));
  for (size_t i = 0; i < COUNT(conversions); i++) check_composition(comm, &conversions[i], AD_BF16);
  check_dtypes();
  check_all_seen(between_ranks, COUNT(between_ranks));
  ad_count_destroy(step_count);
  ad_count_destroy(no_count);
  ad_mesh_destroy(mesh);
  return 0;
}

static int on_two_ranks(ad_comm *comm, void *context) {
  check_all(comm, between, COUNT(between));
  check_dtypes();
  /* one all_to_all record; two bridge records, of which one moves rows */
  CHECK(seen_of("all_to_all") == 1 && seen_of("bridge") == 2);
  return 0;
}

static void every_operation_adds_to_a_gradient_that_is_there_and_writes_where_none_is(void **state) {
  run_ranks(1, on_one_rank, NULL);
}

static void so_does_what_moves_between_ranks(void **state) { run_ranks(2, on_two_ranks, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_operation_adds_to_a_gradient_that_is_there_and_writes_where_none_is),
      cmocka_unit_test(so_does_what_moves_between_ranks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
