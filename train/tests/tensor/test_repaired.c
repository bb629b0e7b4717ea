/* Tests the repairs that the tape proposes when it refuses a program, on real ranks: with the repair the program runs,
 * and its loss and gradients are those of one rank, or of a formula. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "addend/helpers.h"
#include "bent.h"
#include "layout/sentences.h"
#include "layout/type.h"
#include "ranks.h"
#include "says.h"
#include "tensor/tape.h"
#include "addend/routing.h"
#include "mesh/mesh.h"

enum { NUMEL_MAX = 512, SIDE_MAX = 16, SAID_MAX = 4 };

/* ---- values by type: what each rank holds of a full value ---- */

/* Element i of the full value with the number `stream`. */
static double full_value(uint64_t stream, int64_t i) { return ad_random_normal(stream, 0, (uint64_t)i); }

/* Lists the indices along `dim` of the full value that this rank holds. */
static void list_held(const ad_array *array, int dim, int64_t rank, int64_t out[SIDE_MAX]) {
  ad_span spans[SIDE_MAX];
  int count = ad_layout_spans(&array->layout, dim, array->shape.dim[dim], rank, spans, SIDE_MAX), n = 0;
  for (int i = 0; i < count; i++)
    for (int64_t k = 0; k < spans[i].count; k++) out[n++] = spans[i].first + k;
}

static double index_of(const ad_array *array, ad_axes axes, int64_t rank) {
  ad_group group = ad_mesh_group(array->layout.mesh, axes, rank);
  return (double)ad_group_index(&group, rank);
}

/* The factor by which a rank's copy differs from the full value: rank i of g with addends (P) has 2 (i + 1) / (g (g +
 * 1)) of it, rank i of V has i + 1 times it. */
static double factor_of(const ad_array *array, int64_t rank) {
  ad_axes addends = ad_layout_axes_of(&array->layout, AD_P), own = ad_layout_axes_of(&array->layout, AD_V);
  double g = (double)ad_mesh_ranks_over(array->layout.mesh, addends);
  return 2 * (index_of(array, addends, rank) + 1) / (g * (g + 1)) * (index_of(array, own, rank) + 1);
}

static void fill(ad_comm *comm, const ad_array *array, uint64_t stream) {
  int64_t held[AD_DIMS_MAX][SIDE_MAX], rank = ad_comm_rank(comm);
  for (int d = 0; d < array->shape.ndim; d++) list_held(array, d, rank, held[d]);
  for (size_t i = 0; array->data && i < ad_array_numel(array); i++) {
    int64_t rest = (int64_t)i, index = 0, stride = 1;
    for (int d = array->shape.ndim; d-- > 0; rest /= array->local.dim[d], stride *= array->shape.dim[d])
      index += held[d][rest % array->local.dim[d]] * stride;
    ((double *)array->data)[i] = full_value(stream, index) * factor_of(array, rank);
  }
}

static ad_array value_of(ad_comm *comm, const ad_shape *shape, const ad_layout *layout, uint64_t stream) {
  ad_array array = {0};
  CHECK_OK(ad_array_create(comm, AD_F64, shape, layout, &array));
  fill(comm, &array, stream);
  return array;
}

static void is_near(double a, double b) { CHECK(fabs(a - b) <= 1e-11 * (1 + fabs(a) + fabs(b))); }

/* ---- a tape to be refused and repaired ---- */

typedef struct scene {
  ad_comm *comm;
  ad_mesh *mesh, *view, *other; /* meshes of the same ranks */
  ad_bridge *bridge;            /* from `mesh` to `other` */
  ad_tape *tape;
  ad_array kept[8]; /* arrays that the tape borrows */
  int kept_count;
  int way; /* 0: the refused program; 1, 2: repaired by the first or the second proposal */
} scene;

static void open_scene(scene *s, ad_comm *comm, const char *mesh, const char *view) {
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  *s = (scene){.comm = comm};
  CHECK_OK(ad_mesh_create(mesh, &s->mesh));
  if (view) CHECK_OK(ad_mesh_create_view(s->mesh, view, &s->view));
  CHECK_OK(ad_tape_create(comm, s->mesh, &options, &s->tape));
}

static void begin_again(scene *s) {
  ad_tape_reset(s->tape);
  while (s->kept_count) ad_array_destroy(s->comm, &s->kept[--s->kept_count]);
  ad_bridge_destroy(s->bridge);
  ad_mesh_destroy(s->other);
  s->bridge = NULL;
  s->other = NULL;
}

static void close_scene(scene *s) {
  begin_again(s);
  ad_tape_destroy(s->tape);
  ad_mesh_destroy(s->view);
  ad_mesh_destroy(s->mesh);
}

static const ad_array *keep(scene *s, const ad_shape *shape, const ad_layout *layout, uint64_t stream) {
  s->kept[s->kept_count] = value_of(s->comm, shape, layout, stream);
  return &s->kept[s->kept_count++];
}

static ad_layout layout_called(const scene *s, const char *text) {
  ad_layout layout;
  CHECK_OK(ad_layout_parse(s->mesh, text, &layout));
  return layout;
}

/* Makes a scalar of any types a loss: a replicated copy counts once, ranks' own values (V) are addends. */
static ad_tensor *ended(const scene *s, ad_tensor *x) {
  for (int axis = 0; axis < AD_AXIS_COUNT && ad_tensor_array(x); axis++) {
    ad_layout layout = ad_tensor_array(x)->layout;
    const char *name = ad_axis_name((ad_axis)axis);
    if (!(ad_mesh_named(layout.mesh) & AD_AXES(axis))) continue;
    if (layout.type[axis] == AD_R) x = ad_once(s->tape, x, name);
    if (layout.type[axis] == AD_V) x = ad_declare(s->tape, x, name, AD_P);
  }
  return x;
}

static double total_of(ad_comm *comm, const ad_tensor *loss) {
  double total = NAN;
  ad_array out = {.data = &total};
  CHECK_OK(ad_array_full(comm, ad_tensor_array(loss), &out));
  return total;
}

static void full_of(ad_comm *comm, const ad_array *array, double out[NUMEL_MAX]) {
  ad_array full = {.data = out};
  CHECK(array != NULL);
  CHECK_OK(ad_array_full(comm, array, &full));
}

/* ---- operations with two operands ---- */

typedef struct pairing {
  const char *name;
  ad_tensor *(*apply)(ad_tape *t, ad_tensor *a, ad_tensor *b);
  ad_shape shape[2];
} pairing;

static ad_tensor *add(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_add(t, a, b); }
static ad_tensor *multiply(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_multiply(t, a, b); }
static ad_tensor *add_row(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_add_row(t, a, b); }
static ad_tensor *scale_rows(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_scale_rows(t, a, b); }
static ad_tensor *linear(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_linear(t, a, b); }
static ad_tensor *transposed(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_linear_transposed(t, a, b); }
static ad_tensor *swiglu(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_swiglu(t, a, b); }
static ad_tensor *squared(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_squared_error(t, a, b); }
static ad_tensor *rms_norm(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_rms_norm(t, a, b, 1e-5); }
static ad_tensor *place(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_place(t, a, b); }
static ad_tensor *concat(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_concat(t, (ad_tensor *[]){a, b}, 2, -1); }

static const pairing pairings[] = {
    {"add", add, {{2, {6, 7}}, {2, {6, 7}}}},        {"multiply", multiply, {{2, {6, 7}}, {2, {6, 7}}}},
    {"add_row", add_row, {{2, {6, 7}}, {1, {7}}}},   {"scale_rows", scale_rows, {{2, {6, 7}}, {1, {6}}}},
    {"linear", linear, {{2, {6, 7}}, {2, {7, 8}}}},  {"linear_transposed", transposed, {{2, {6, 7}}, {2, {8, 7}}}},
    {"swiglu", swiglu, {{2, {6, 7}}, {2, {6, 7}}}},  {"squared_error", squared, {{2, {6, 7}}, {2, {6, 7}}}},
    {"rms_norm", rms_norm, {{2, {6, 7}}, {1, {7}}}}, {"place", place, {{3, {3, 4, 6}}, {3, {3, 2, 6}}}},
    {"concat", concat, {{2, {6, 7}}, {2, {6, 7}}}},
};
enum { PAIRINGS = sizeof pairings / sizeof *pairings };

static const ad_type kinds[] = {AD_R,    AD_I,           AD_P,           AD_S(0),        AD_S(1),
                                AD_S(2), AD_S_ZIGZAG(0), AD_S_ZIGZAG(1), AD_S_ZIGZAG(2), AD_V};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The loss and both gradients, as full values. */
typedef struct outcome {
  double loss, gradient[2][NUMEL_MAX];
} outcome;

/* Runs backward; each element of y has its own weight, so that a swapped element is noticed. */
static outcome take_outcome(scene *s, ad_tensor *y, ad_tensor *const x[2]) {
  outcome found;
  ad_layout layout = ad_tensor_array(y)->layout;
  ad_axes partial = ad_layout_axes_of(&layout, AD_P);
  if (partial) ad_layout_set(&layout, partial, AD_R);
  const ad_array *weights = keep(s, &ad_tensor_array(y)->shape, &layout, 9);
  ad_tensor *loss = ended(s, ad_sum(s->tape, ad_multiply(s->tape, y, ad_constant(s->tape, weights))));
  CHECK_OK(ad_tape_status(s->tape));
  CHECK_OK(ad_backward(s->tape, loss));
  found.loss = total_of(s->comm, loss);
  for (int i = 0; i < 2; i++) full_of(s->comm, ad_grad(x[i]), found.gradient[i]);
  return found;
}

static void leaves_of(scene *s, const pairing *p, const ad_type type[2], ad_tensor *out[2]) {
  for (int i = 0; i < 2; i++) {
    ad_layout layout = ad_layout_all(s->mesh, AD_R);
    ad_layout_set(&layout, AD_AXES(AD_TP), type[i]);
    out[i] = ad_input(s->tape, keep(s, &p->shape[i], &layout, 1 + (uint64_t)i));
  }
}

static outcome on_one_rank(const pairing *p) {
  scene s;
  ad_comm *alone;
  ad_tensor *x[2];
  CHECK_OK(ad_comm_open_alone(&alone));
  open_scene(&s, alone, "tp=1", NULL);
  leaves_of(&s, p, (ad_type[]){AD_I, AD_I}, x);
  outcome found = take_outcome(&s, p->apply(s.tape, x[0], x[1]), x);
  close_scene(&s);
  ad_comm_close(alone);
  return found;
}

static void compare(const outcome *a, const outcome *b, const pairing *p) {
  is_near(a->loss, b->loss);
  for (int i = 0; i < 2; i++)
    for (int64_t k = 0; k < ad_shape_numel(&p->shape[i]); k++) is_near(a->gradient[i][k], b->gradient[i][k]);
}

static ad_type type_called(const char *text) {
  static const ad_type all[] = {AD_R,    AD_I,    AD_V,           AD_P,           AD_S(0),
                                AD_S(1), AD_S(2), AD_S_ZIGZAG(0), AD_S_ZIGZAG(1), AD_S_ZIGZAG(2)};
  char printed[AD_TYPE_TEXT_MAX];
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!strcmp(ad_type_print(all[i], printed, sizeof printed), text)) return all[i];
  CHECK(!"a type");
  return AD_R;
}

/* Applies one proposed step: "convert operand 2 I->R", or "convert I->R" of operand 1. */
static void do_step(ad_tape *t, const char *step, const char *axes, ad_tensor **x) {
  char name[32], to[16];
  int operand = 1, move = 0;
  CHECK(sscanf(step, "%31s operand %d %*[^>]>%15[^ ,]", name, &operand, to) == 3 ||
        sscanf(step, "%31s %*[^>]>%15[^ ,]", name, to) == 2);
  while (move < AD_MOVE_COUNT && strcmp(ad_move_name((ad_move)move), name) != 0) move++;
  x[operand - 1] = ad_move_at(t, x[operand - 1], (ad_move)move, axes, type_called(to), AD_HERE);
}

static void follow_advice(ad_tape *t, const char *advice, const char *axes, ad_tensor **x) {
  for (const char *step = advice; step; step = strstr(step, ", then "), step = step ? step + strlen(", then ") : NULL)
    do_step(t, step, axes, x);
}

/* Copies what follows "possible repair: " in the tape's error; returns 0 if nothing is proposed. */
static int take_advised(const ad_tape *tape, char *out, size_t size) {
  CHECK(ad_tape_status(tape) != AD_OK);
  const char *may = strstr(ad_last_error(), AD_MAY_REPAIR);
  snprintf(out, size, "%s", may ? may + strlen(AD_MAY_REPAIR) : "");
  return may != NULL;
}

/* Returns 1 if a repair was proposed and its result is right, 0 if the operands fit as they are or
 * nothing is proposed. */
static int is_repaired(scene *s, const pairing *p, const ad_type type[2], const outcome *right) {
  char advice[SAID_MAX][256];
  ad_tensor *leaf[2];
  for (int count = 0; count < SAID_MAX; count++) {
    begin_again(s);
    leaves_of(s, p, type, leaf);
    ad_tensor *x[] = {leaf[0], leaf[1]};
    int shards_later = 0;
    for (int i = 0; i < count; i++) {
      int is_whole = !strcmp(advice[i], "shard the sequence after this call");
      shards_later |= is_whole;
      for (int o = 0; o < 2 && is_whole; o++)
        if (ad_type_dim(type[o]) == 1) x[o] = ad_all_gather(s->tape, x[o], "tp", AD_I);
      if (!is_whole) follow_advice(s->tape, advice[i], "tp", x);
    }
    CHECK_OK(ad_tape_status(s->tape));
    ad_tensor *y = p->apply(s->tape, x[0], x[1]);
    if (shards_later && ad_tensor_array(y) && ad_tensor_array(y)->layout.type[AD_TP] == AD_I)
      y = ad_convert(s->tape, y, "tp", AD_S(1));
    if (ad_tensor_array(y)) {
      if (!count) return 0;
      outcome found = take_outcome(s, y, leaf);
      compare(&found, right, p);
      return 1;
    }
    if (!take_advised(s->tape, advice[count], sizeof *advice)) {
      CHECK(!count);
      return 0;
    }
  }
  CHECK(!"four repairs, and still refused");
  return 0;
}

static int repair_pairs(ad_comm *comm, void *context) {
  scene s;
  open_scene(&s, comm, "tp=3", NULL);
  for (int p = 0; p < PAIRINGS; p++) {
    outcome right = on_one_rank(&pairings[p]);
    int repaired = 0;
    for (int i = 0; i < KINDS * KINDS; i++) {
      ad_type type[] = {kinds[i / KINDS], kinds[i % KINDS]};
      int has_own = type[0] == AD_V || type[1] == AD_V, fits = 1;
      for (int o = 0; o < 2; o++) fits &= ad_type_dim(type[o]) < pairings[p].shape[o].ndim;
      if (fits && !has_own) repaired += is_repaired(&s, &pairings[p], type, &right);
    }
    CHECK(repaired >= 10);
  }
  close_scene(&s);
  return 0;
}

static void operands_that_are_converted_as_is_said_give_what_one_rank_has(void **state) {
  run_ranks(3, repair_pairs, NULL);
}

/* ---- programs with one value ---- */

/* What a program computes from x. */
typedef enum purpose { LINES, SQUARES, TIMES, LOWERED } purpose;

/* Element i's share of the loss and its gradient: 3 x, x^2, x c with a constant c equal to x, or -clamp(x). */
static void expected_of(purpose what, int64_t i, double *loss, double *gradient) {
  double x = full_value(1, i);
  switch (what) {
    case LINES:
      *loss = 3 * x, *gradient = 3;
      return;
    case LOWERED: /* the gradient is 0.01 of what arrives if x is below 0 */
      *loss = -fmin(fmax(x, 0), 1), *gradient = x < 0 ? -0.01 : x > 1 ? 0 : -1;
      return;
    default:
      *loss = x * x, *gradient = what == TIMES ? x : 2 * x;
  }
}

/* Ranks of V each hold the full value times 1, 2, ...: the factor on the loss that follows. */
static double owners(const ad_array *x, purpose what) {
  double g = (double)ad_mesh_ranks_over(x->layout.mesh, ad_layout_axes_of(&x->layout, AD_V)), sum = 0;
  for (double i = 1; i <= g; i++) sum += what == LINES ? i : i * i;
  return sum;
}

static void has_gradient(scene *s, const ad_tensor *x, purpose what) {
  const ad_array *value = ad_tensor_array(x), *grad = ad_grad(x);
  int64_t numel = ad_shape_numel(&value->shape);
  double full[NUMEL_MAX], part, slope;
  int is_own = ad_layout_axes_of(&value->layout, AD_V) != 0;
  if (!is_own) full_of(s->comm, grad, full);
  ad_array summed = {0};
  ad_axes partial = ad_layout_axes_of(&grad->layout, AD_P);
  if (partial && is_own) {
    ad_layout layout = grad->layout;
    ad_layout_set(&layout, partial, AD_R);
    CHECK_OK(ad_array_create(s->comm, AD_F64, &grad->shape, &layout, &summed));
    CHECK_OK(ad_array_move(s->comm, grad, AD_MOVE_ALL_REDUCE, partial, AD_R, AD_F64, &summed));
    grad = &summed;
  }
  for (int64_t i = 0; i < numel && !is_own; i++) {
    expected_of(what, i, &part, &slope);
    is_near(full[i], slope);
  }
  CHECK(!is_own || what == LINES || what == SQUARES);
  for (size_t i = 0; i < ad_array_numel(value) && is_own; i++)
    is_near(((double *)grad->data)[i], what == LINES ? 3 : 2 * ((double *)value->data)[i]);
  ad_array_destroy(s->comm, &summed);
}

static void is_right(scene *s, const ad_tensor *x, const ad_tensor *loss, purpose what) {
  const ad_array *value = ad_tensor_array(x);
  int64_t numel = ad_shape_numel(&value->shape);
  double total = 0, part, slope;
  for (int64_t i = 0; i < numel; i++) {
    expected_of(what, i, &part, &slope);
    total += part;
  }
  is_near(total_of(s->comm, loss), total * owners(value, what));
  has_gradient(s, x, what);
}

static ad_tensor *lines(scene *s, ad_tensor *y) { return ended(s, ad_scale(s->tape, ad_sum(s->tape, y), 3)); }
static ad_tensor *square_sum(scene *s, ad_tensor *y) { return ad_sum(s->tape, ad_multiply(s->tape, y, y)); }
static ad_tensor *squares(scene *s, ad_tensor *y) { return ended(s, square_sum(s, y)); }

/* x is P on dp_shard and R on tp, so summing it over tp as well is refused. */
static ad_tensor *reduced_already(scene *s, ad_tensor *x) {
  return squares(s, ad_all_reduce(s->tape, x, s->way ? "dp_shard" : "dp_shard,tp", AD_R));
}

static ad_tensor *counted_once(scene *s, ad_tensor *x) {
  ad_tensor *sum = square_sum(s, x);
  if (s->way == 0) return ad_once(s->tape, sum, "tp");
  return s->way == 2 ? sum : ad_once(s->tape, ad_convert(s->tape, sum, "tp", AD_R), "tp");
}

static ad_tensor *gathered_addends(scene *s, ad_tensor *x) {
  if (s->way == 0) return ad_all_gather(s->tape, x, "tp", AD_R);
  return lines(s, s->way == 2 ? x : ad_all_reduce(s->tape, x, "tp", AD_R));
}

/* Dimension 0 is sharded on dp_shard and, inside that, on tp: the outer cut cannot be gathered first. */
static ad_tensor *outer_sharding_undone(scene *s, ad_tensor *x) {
  if (s->way == 1) x = ad_all_gather(s->tape, x, "tp", AD_R);
  return squares(s, ad_all_gather(s->tape, x, s->way == 2 ? "dp_shard,tp" : "dp_shard", AD_R));
}

static ad_tensor *nested_otherwise(scene *s, ad_tensor *x) {
  ad_layout layout = layout_called(s, "dp_shard=S0 tp=S0");
  ad_tensor *c = ad_constant(s->tape, keep(s, &ad_tensor_array(x)->shape, &layout, 1));
  if (s->way) x = ad_convert(s->tape, ad_all_gather(s->tape, x, "dp_shard,tp", AD_I), "dp_shard", AD_S(0));
  if (s->way) x = ad_convert(s->tape, x, "tp", AD_S(0));
  return ended(s, ad_sum(s->tape, ad_multiply(s->tape, c, x)));
}

static ad_tensor *on_two_views(scene *s, ad_tensor *x) {
  ad_layout layout = layout_called(s, "dp_shard=I tp=I");
  ad_tensor *c = ad_constant(s->tape, keep(s, &ad_tensor_array(x)->shape, &layout, 1));
  x = ad_view(s->tape, x, s->view);
  if (s->way == 1) x = ad_view(s->tape, x, s->mesh);
  if (s->way == 2) c = ad_view(s->tape, c, s->view);
  return ended(s, ad_sum(s->tape, ad_multiply(s->tape, c, x)));
}

static ad_tensor *loss_of_replicas(scene *s, ad_tensor *x) {
  ad_tensor *sum = ad_all_reduce(s->tape, square_sum(s, x), "dp_shard", s->way == 2 ? AD_I : AD_R);
  return s->way == 1 ? ad_once(s->tape, sum, "dp_shard") : sum;
}

static ad_tensor *loss_of_each(scene *s, ad_tensor *x) {
  ad_tensor *sum = square_sum(s, x);
  return s->way ? ad_declare(s->tape, sum, "dp_shard", AD_P) : sum;
}

/* Each tp rank's own ones (V): one for each row of x, or one for each element. */
static ad_tensor *own_ones(scene *s, const ad_shape *shape) {
  ad_layout layout = layout_called(s, "dp_shard=I tp=V");
  const ad_array *ones = keep(s, shape, &layout, 1);
  for (size_t i = 0; ones->data && i < ad_array_numel(ones); i++) ((double *)ones->data)[i] = 1;
  return ad_constant(s->tape, ones);
}

static ad_tensor *own_factors(scene *s, ad_tensor *x) {
  ad_shape shape = ad_tensor_array(x)->shape;
  ad_tensor *factors = own_ones(s, &(ad_shape){1, {shape.dim[0]}});
  if (s->way) x = ad_declare(s->tape, x, "tp", AD_V);
  return squares(s, ad_scale_rows(s->tape, x, factors));
}

/* In the repaired program both tp ranks have the whole of x. */
static ad_tensor *own_numbers(scene *s, ad_tensor *x) {
  ad_tensor *operands[] = {own_ones(s, &ad_tensor_array(x)->shape), x};
  int is_sharded = ad_type_is_sharded(ad_tensor_array(x)->layout.type[AD_TP]);
  if (s->way && is_sharded) operands[1] = ad_all_gather(s->tape, x, "tp", AD_R);
  if (s->way && !is_sharded) operands[1] = ad_all_reduce(s->tape, x, "tp", AD_R);
  return ad_scale(s->tape, squares(s, ad_multiply(s->tape, operands[0], operands[1])), 0.5);
}

static ad_tensor *own_beside_addends(scene *s, ad_tensor *x) {
  ad_layout layout = layout_called(s, "dp_shard=I tp=P");
  const ad_array *none = keep(s, &ad_tensor_array(x)->shape, &layout, 1);
  if (none->data) memset(none->data, 0, ad_array_bytes(none));
  if (s->way) x = ad_declare(s->tape, x, "tp", AD_P);
  return lines(s, ad_add(s->tape, x, ad_constant(s->tape, none)));
}

/* Each tp rank routes its own three tokens, each to two of three experts. */
static ad_routing *routing_of(scene *s) {
  ad_layout layout = layout_called(s, "dp_shard=I tp=V");
  ad_routing *routing;
  ad_top_k(s->tape, ad_constant(s->tape, keep(s, &(ad_shape){2, {3, 3}}, &layout, 5)), 2, NULL, &routing);
  return routing;
}

static ad_tensor *slots_of_parts(scene *s, ad_tensor *x) {
  const ad_routing *routing = routing_of(s);
  if (s->way) x = ad_declare(s->tape, x, "tp", AD_V);
  return ad_scale(s->tape, squares(s, ad_to_slots(s->tape, x, routing)), 0.5);
}

static ad_tensor *parts_as_slots(scene *s, ad_tensor *x) {
  const ad_routing *routing = routing_of(s);
  if (s->way) x = ad_declare(s->tape, x, "tp", AD_V);
  return lines(s, ad_from_slots(s->tape, x, routing));
}

static ad_tensor *lowered(scene *s, ad_tensor *x) {
  ad_move move = ad_tensor_array(x)->layout.type[AD_TP] == AD_P ? AD_MOVE_ALL_REDUCE : AD_MOVE_ALL_GATHER;
  x = bent(s->tape, ad_move_at(s->tape, x, move, "tp", s->way ? AD_I : AD_R, AD_HERE));
  return ended(s, ad_scale(s->tape, ad_sum(s->tape, x), -1));
}

/* x crosses a bridge to four ranks of dp_shard. */
static ad_tensor *transferred(scene *s, ad_tensor *x) {
  CHECK_OK(ad_mesh_create("dp_shard=4", &s->other));
  if (!ad_tensor_array(x)) return x;
  ad_layout from = ad_tensor_array(x)->layout, to = ad_layout_all(s->other, AD_R);
  ad_layout_set(&to, AD_AXES(AD_DP_SHARD), AD_S(0));
  ad_status status = ad_bridge_create(s->comm, &from, &to, NULL, &s->bridge);
  return status ? ad_tape_fail(s->tape, status) : ad_transfer_tensor(s->tape, x, s->bridge);
}

/* x is I on tp, and tp ranks use copies of it (R) besides. */
static ad_tensor *replicas_transfer(scene *s, ad_tensor *x) {
  ad_tensor *replicas = ad_convert(s->tape, x, "tp", AD_R), *besides = lines(s, ad_scale(s->tape, replicas, 0));
  ad_tensor *loss = squares(s, transferred(s, s->way ? x : replicas));
  return ad_add(s->tape, loss, ad_view(s->tape, besides, s->other ? s->other : s->mesh));
}

static ad_tensor *gathered_replicas_transfer(scene *s, ad_tensor *x) {
  return squares(s, transferred(s, ad_all_gather(s->tape, x, "tp", s->way ? AD_I : AD_R)));
}

static ad_tensor *parts_transfer(scene *s, ad_tensor *x) {
  return squares(s, transferred(s, s->way ? ad_all_gather(s->tape, x, "tp", AD_I) : x));
}

static ad_tensor *addends_transfer(scene *s, ad_tensor *x) {
  return squares(s, transferred(s, s->way ? ad_all_reduce(s->tape, x, "tp", AD_I) : x));
}

typedef struct refusal {
  ad_tensor *(*loss)(scene *s, ad_tensor *x);
  const char *layout; /* layout of x on dp_shard=2 tp=2 */
  ad_shape shape;
  purpose what;
  int ways;
  const char *advice;
} refusal;

static const refusal refusals[] = {
    {reduced_already, "dp_shard=P tp=R", {2, {6, 4}}, SQUARES, 1, "leave `tp` out of this all_reduce"},
    {counted_once,
     "dp_shard=I tp=I",
     {2, {6, 4}},
     SQUARES,
     2,
     "convert I->R, then once R->P, or leave `tp` out of this once"},
    {gathered_addends,
     "dp_shard=I tp=P",
     {2, {6, 4}},
     LINES,
     2,
     "all_reduce P->R, or leave `tp` out of this all_gather"},
    {outer_sharding_undone,
     "dp_shard=S0 tp=S0",
     {2, {6, 4}},
     SQUARES,
     2,
     "undo `tp` first, or undo the two axes together"},
    {nested_otherwise, "tp=S0 dp_shard=S0", {2, {6, 4}}, TIMES, 1, "shard operand 2 in the order of operand 1"},
    {on_two_views, "dp_shard=I tp=I", {2, {6, 4}}, TIMES, 2, "change the view of one operand"},
    {loss_of_replicas,
     "dp_shard=S0 tp=I",
     {2, {6, 4}},
     SQUARES,
     2,
     "once R->P, or all_reduce P->I instead of P->R where it is made"},
    {loss_of_each,
     "dp_shard=V tp=I",
     {2, {6, 4}},
     SQUARES,
     1,
     "declare V->P, if each rank's value is an addend of the loss"},
    {own_factors, "dp_shard=I tp=S1", {2, {6, 4}}, SQUARES, 1, "declare operand 1 S(1)->V"},
    {own_numbers, "dp_shard=I tp=S0", {2, {6, 4}}, SQUARES, 1, "all_gather operand 2 S(0)->R"},
    {own_numbers, "dp_shard=I tp=P", {2, {6, 4}}, SQUARES, 1, "all_reduce operand 2 P->R"},
    {own_beside_addends, "dp_shard=I tp=V", {2, {6, 4}}, LINES, 1, "declare operand 1 V->P"},
    {slots_of_parts, "dp_shard=I tp=S0", {2, {6, 4}}, SQUARES, 1, "declare them V"},
    {parts_as_slots, "dp_shard=I tp=S0", {2, {12, 4}}, LINES, 1, "declare them V"},
    {lowered,
     "dp_shard=I tp=P",
     {2, {6, 4}},
     LOWERED,
     1,
     "all_reduce P->I or all_gather S->I, so that its operands are I there"},
    {lowered,
     "dp_shard=I tp=S0",
     {2, {6, 4}},
     LOWERED,
     1,
     "all_reduce P->I or all_gather S->I, so that its operands are I there"},
    {replicas_transfer,
     "dp_shard=S0 tp=I",
     {2, {8, 4}},
     SQUARES,
     1,
     "convert I->R after the bridge, or gather S->I before the bridge"},
    {gathered_replicas_transfer,
     "dp_shard=S0 tp=S1",
     {2, {8, 4}},
     SQUARES,
     1,
     "convert I->R after the bridge, or gather S->I before the bridge"},
    {parts_transfer,
     "dp_shard=S0 tp=S1",
     {2, {8, 4}},
     SQUARES,
     1,
     "all_gather S->I or all_reduce P->I before the bridge"},
    {addends_transfer,
     "dp_shard=S0 tp=P",
     {2, {8, 4}},
     SQUARES,
     1,
     "all_gather S->I or all_reduce P->I before the bridge"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals, WORLD = 4 };

static ad_tensor *take_loss(scene *s, const refusal *r, ad_tensor **x) {
  ad_layout layout = layout_called(s, r->layout);
  *x = ad_input(s->tape, keep(s, &r->shape, &layout, 1));
  return r->loss(s, *x);
}

/* On backend dry, since a refused transition ends the group's communication. */
static void is_refused(const refusal *r, int64_t rank) {
  scene s;
  ad_comm *dry;
  ad_tensor *x;
  CHECK_OK(ad_comm_open_dry(rank, WORLD, &dry));
  open_scene(&s, dry, "dp_shard=2 tp=2", "efsdp=2 etp=2");
  ad_tensor *loss = take_loss(&s, r, &x);
  ad_status status = ad_tape_status(s.tape);
  if (!status) status = ad_backward(s.tape, loss);
  CHECK(status == AD_TYPE);
  const char *may = strstr(ad_last_error(), AD_MAY_REPAIR);
  if (!may || strcmp(may + strlen(AD_MAY_REPAIR), r->advice) != 0) CHECK_FACTS(r->advice);
  CHECK(may != NULL);
  close_scene(&s);
  ad_comm_close(dry);
}

static int repair_refusals(ad_comm *comm, void *context) {
  scene s;
  open_scene(&s, comm, "dp_shard=2 tp=2", "efsdp=2 etp=2");
  for (int i = 0; i < REFUSALS; i++) {
    is_refused(&refusals[i], ad_comm_rank(comm));
    for (s.way = 1; s.way <= refusals[i].ways; s.way++) {
      ad_tensor *x;
      begin_again(&s);
      ad_tensor *loss = take_loss(&s, &refusals[i], &x);
      CHECK_OK(ad_tape_status(s.tape));
      CHECK_OK(ad_backward(s.tape, loss));
      is_right(&s, x, loss, refusals[i].what);
    }
  }
  close_scene(&s);
  return 0;
}

static void programs_that_do_what_is_said_give_what_the_formula_has(void **state) {
  run_ranks(WORLD, repair_refusals, NULL);
}

/* ---- changes of view ---- */

/* Follows an error such as "but the value is I on `tp`; possible repair: convert I->R there, so that ...": the axis is
 * the last name before the proposal. */
static void do_there(scene *s, const char *advice, ad_tensor **x) {
  char axis[16];
  const char *may = strstr(advice, AD_MAY_REPAIR), *at = may;
  CHECK(may != NULL);
  for (int quotes = 0; at > advice && quotes < 2; quotes += *at == '`') at--;
  CHECK(sscanf(at, "`%15[^`]", axis) == 1);
  follow_advice(s->tape, may + strlen(AD_MAY_REPAIR), axis, x);
}

static ad_tensor *leaf_of(scene *s, const ad_type type[2]) {
  ad_layout layout = ad_layout_all(s->mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), type[0]);
  ad_layout_set(&layout, AD_AXES(AD_TP), type[1]);
  return ad_input(s->tape, keep(s, &(ad_shape){2, {8, 8}}, &layout, 1));
}

/* Returns how many repairs it took until the change of view was accepted. */
static int view_as_advised(scene *s, const ad_type type[2]) {
  char advice[SAID_MAX][512];
  for (int count = 0; count < SAID_MAX; count++) {
    begin_again(s);
    ad_tensor *leaf = leaf_of(s, type), *x = leaf;
    for (int i = 0; i < count; i++) do_there(s, advice[i], &x);
    CHECK_OK(ad_tape_status(s->tape));
    ad_tensor *y = ad_view(s->tape, x, s->view);
    if (ad_tensor_array(y)) {
      purpose what = ad_layout_axes_of(&ad_tensor_array(y)->layout, AD_P) ? LINES : SQUARES;
      ad_tensor *loss = what == LINES ? lines(s, y) : squares(s, y);
      CHECK_OK(ad_backward(s->tape, loss));
      is_right(s, leaf, loss, what);
      return count;
    }
    CHECK(ad_tape_status(s->tape) == AD_TYPE);
    snprintf(advice[count], sizeof *advice, "%s", ad_last_error());
  }
  CHECK(!"four repairs, and still refused");
  return 0;
}

static int repair_views(ad_comm *comm, void *context) {
  static const ad_type types[] = {AD_R, AD_I, AD_V, AD_P, AD_S(0), AD_S(1), AD_S_ZIGZAG(0)};
  enum { TYPES = sizeof types / sizeof *types };
  int repaired = 0;
  scene s;
  open_scene(&s, comm, "dp_shard=2 tp=2", "ep=4");
  for (int i = 0; i < TYPES * TYPES; i++)
    repaired += view_as_advised(&s, (ad_type[]){types[i / TYPES], types[i % TYPES]}) > 0;
  CHECK(repaired == TYPES * TYPES - 4); /* all but those in which both types are the same one of R, I, V, P */
  close_scene(&s);
  return 0;
}

static void views_that_are_changed_as_is_said_give_what_the_formula_has(void **state) {
  run_ranks(WORLD, repair_views, NULL);
}

/* ---- values that leave and enter the tape (ad_to_local, ad_from_local) ---- */

static const char *const own_types[] = {"tp=R", "tp=I", "tp=V", "tp=P", "tp=S0"};
enum { OWN_TYPES = sizeof own_types / sizeof *own_types };

static ad_tensor *leaf_called(scene *s, const char *layout_text) {
  ad_layout layout = layout_called(s, layout_text);
  begin_again(s);
  return ad_input(s->tape, keep(s, &(ad_shape){2, {8, 4}}, &layout, 1));
}

/* Code outside the tape computes the sum of 3 x and returns the gradient in the stated layout. */
static void compute_outside(scene *s, const ad_tensor *leaf, ad_tensor *local) {
  CHECK_OK(ad_tape_status(s->tape));
  ad_layout layout = ad_layout_dual(&ad_tensor_array(local)->layout);
  const ad_array *gradient = keep(s, &ad_tensor_array(local)->shape, &layout, 1);
  double own = index_of(gradient, ad_layout_axes_of(&layout, AD_V), ad_comm_rank(s->comm)) + 1;
  for (size_t i = 0; i < ad_array_numel(gradient); i++)
    ((double *)gradient->data)[i] = 3 * factor_of(gradient, ad_comm_rank(s->comm)) / own;
  CHECK_OK(ad_backward_from(s->tape, &local, &gradient, 1, AD_LAST_START));
  has_gradient(s, leaf, LINES);
}

/* Reads "state S(0)" as the layout "tp=S0". */
static void read_stated(const char *advice, char layout[32]) {
  char type[16];
  CHECK(advice && sscanf(advice, "state %15s", type) == 1);
  int dim = ad_type_dim(type_called(type));
  if (dim >= 0) snprintf(type, sizeof type, "S%d", dim);
  snprintf(layout, 32, "tp=%s", type);
}

/* Follows "all_reduce P->I, or state R" in both ways, or a proposal that has only the second; returns 1 if it was
 * refused first. */
static int leave_as_advised(scene *s, const char *is, const char *stated) {
  char advice[128], layout[32];
  ad_tensor *leaf = leaf_called(s, is), *x = leaf;
  if (ad_tensor_array(ad_to_local(s->tape, leaf, stated))) return 0;
  CHECK(ad_tape_status(s->tape) == AD_TYPE && take_advised(s->tape, advice, sizeof advice));
  const char *state = strstr(advice, "state ");
  read_stated(state, layout);
  if (state > advice) {
    leaf = x = leaf_called(s, is);
    follow_advice(s->tape, advice, "tp", &x);
    compute_outside(s, leaf, ad_to_local(s->tape, x, stated));
  }
  leaf = leaf_called(s, is);
  compute_outside(s, leaf, ad_to_local(s->tape, leaf, layout));
  return 1;
}

/* Follows "sum the value first, or state its gradient's layout (R on that axis ...)" in both ways. */
static void leave_unstated(scene *s) {
  char advice[128];
  CHECK(!ad_tensor_array(ad_to_local(s->tape, leaf_called(s, "tp=P"), NULL)));
  CHECK(take_advised(s->tape, advice, sizeof advice));
  CHECK_TEXT_SAYS(advice, "R");
  for (int i = 0; i < 2; i++) {
    ad_tensor *leaf = leaf_called(s, "tp=P");
    compute_outside(s, leaf, ad_to_local(s->tape, ad_all_reduce(s->tape, leaf, "tp", i ? AD_I : AD_R), NULL));
  }
  ad_tensor *leaf = leaf_called(s, "tp=P");
  compute_outside(s, leaf, ad_to_local(s->tape, leaf, "tp=R"));
}

static int come_in_as_advised(scene *s, const char *is, const char *stated) {
  char advice[128], layout[32];
  ad_tensor *leaf;
  const ad_array *value = ad_tensor_array(leaf_called(s, is));
  if (ad_tensor_array(ad_from_local(s->tape, value, stated, &leaf))) return 0;
  if (ad_tape_status(s->tape) != AD_TYPE) return 0; /* a wrong shape has no repair */
  CHECK(take_advised(s->tape, advice, sizeof advice) && !strncmp(advice, "state ", 6));
  read_stated(advice, layout);
  value = ad_tensor_array(leaf_called(s, is));
  ad_tensor *loss = lines(s, ad_from_local(s->tape, value, layout, &leaf));
  CHECK_OK(ad_backward(s->tape, loss));
  is_right(s, leaf, loss, LINES);
  return 1;
}

static int repair_edges(ad_comm *comm, void *context) {
  scene s;
  int left = 0, came = 0;
  open_scene(&s, comm, "tp=4", NULL);
  for (int i = 0; i < OWN_TYPES * OWN_TYPES; i++) {
    left += leave_as_advised(&s, own_types[i / OWN_TYPES], own_types[i % OWN_TYPES]);
    came += come_in_as_advised(&s, own_types[i / OWN_TYPES], own_types[i % OWN_TYPES]);
  }
  CHECK(left > 10 && came > 5);
  leave_unstated(&s);
  close_scene(&s);
  return 0;
}

static void values_that_cross_the_tapes_edge_as_is_said_have_their_gradients(void **state) {
  run_ranks(WORLD, repair_edges, NULL);
}

/* ---- arrays without a tape ---- */

static ad_array moved(scene *s, const ad_array *from, ad_move move, ad_type to) {
  ad_array out;
  CHECK_OK(ad_array_after(s->comm, from, move, AD_AXES(AD_TP), to, &out));
  ad_shape shape = out.shape;
  ad_layout layout = out.layout;
  CHECK_OK(ad_array_create(s->comm, AD_F64, &shape, &layout, &out));
  CHECK_OK(ad_array_move(s->comm, from, move, AD_AXES(AD_TP), to, AD_F64, &out));
  s->kept[s->kept_count++] = out;
  return out;
}

/* Follows "declare V->S(d) or V->P first": the ranks' values become parts of one value, or its addends. */
static void make_full(scene *s) {
  double out[NUMEL_MAX];
  ad_array full = {.data = out};
  ad_layout layout = layout_called(s, "tp=V");
  const ad_array *own = keep(s, &(ad_shape){1, {8}}, &layout, 1);
  CHECK_STATUS(ad_array_full(s->comm, own, &full), AD_TYPE);
  CHECK_SAYS("V-");
  ad_array parts = moved(s, own, AD_MOVE_DECLARE, AD_S(0)), addends = moved(s, own, AD_MOVE_DECLARE, AD_P);
  full_of(s->comm, &parts, out);
  for (int i = 0; i < 8 * WORLD; i++) is_near(out[i], full_value(1, i % 8) * (i / 8 + 1));
  full_of(s->comm, &addends, out);
  for (int i = 0; i < 8; i++) is_near(out[i], full_value(1, i) * (1 + 2 + 3 + 4));
}

/* Follows "reduce it first" and "convert one of the two first". */
static void reduce_first(scene *s) {
  double sum = NAN, expected = 0, out[NUMEL_MAX];
  ad_layout partial = layout_called(s, "tp=P"), full = layout_called(s, "tp=R");
  const ad_array *addends = keep(s, &(ad_shape){1, {8}}, &partial, 1);
  ad_array to = *keep(s, &(ad_shape){1, {8}}, &full, 1);
  ad_group group = ad_mesh_group(s->mesh, AD_AXES(AD_TP), ad_comm_rank(s->comm));
  CHECK_STATUS(ad_array_square_sum(s->comm, &group, &addends, 1, &sum), AD_TYPE);
  CHECK_LISTED();
  CHECK_STATUS(ad_array_add(&to, addends), AD_TYPE);
  CHECK_LISTED();
  ad_array reduced = moved(s, addends, AD_MOVE_ALL_REDUCE, AD_R);
  CHECK_OK(ad_array_square_sum(s->comm, &group, (const ad_array *[]){&reduced}, 1, &sum));
  CHECK_OK(ad_array_add(&to, &reduced));
  full_of(s->comm, &to, out);
  for (int i = 0; i < 8; i++) expected += full_value(1, i) * full_value(1, i);
  is_near(sum, expected);
  for (int i = 0; i < 8; i++) is_near(out[i], 2 * full_value(1, i));
}

static int repair_arrays(ad_comm *comm, void *context) {
  scene s;
  open_scene(&s, comm, "tp=4", NULL);
  make_full(&s);
  begin_again(&s);
  reduce_first(&s);
  close_scene(&s);
  return 0;
}

static void arrays_that_are_brought_where_is_said_have_their_numbers(void **state) {
  run_ranks(WORLD, repair_arrays, NULL);
}

/* ---- dtypes, scales, and losses that are no scalar ---- */

/* On a bf16 tape: follows "convert the parameter to f32 first (ad_to_dtype), ..." for the sum of w^2. */
static int repair_dtypes(ad_comm *comm, void *context) {
  static const double numbers[] = {0.5, 1, 1.5, -2};
  ad_tape_options options = {.size = sizeof options, .dtype = AD_BF16};
  scene s;
  open_scene(&s, comm, "tp=1", NULL);
  ad_tape_destroy(s.tape);
  CHECK_OK(ad_tape_create(comm, s.mesh, &options, &s.tape));
  ad_layout layout = layout_called(&s, "tp=I");
  for (s.way = 0; s.way <= 2; s.way++) {
    ad_array value;
    CHECK_OK(ad_array_create(comm, s.way == 2 ? AD_F32 : AD_BF16, &(ad_shape){1, {4}}, &layout, &value));
    for (size_t i = 0; i < 4; i++) ad_set_element(value.dtype, value.data, i, numbers[i]);
    ad_parameters from = {.size = sizeof from, .values = (const ad_array *[]){&value}, .count = 1};
    ad_tape_reset(s.tape);
    ad_tensor *leaf = ad_parameter(s.tape, &from, 0), *w = s.way == 1 ? ad_to_dtype(s.tape, leaf, AD_F32) : leaf;
    ad_tensor *loss = ad_sum(s.tape, ad_multiply(s.tape, w, w));
    CHECK_STATUS(ad_tape_status(s.tape), s.way ? AD_OK : AD_INVALID);
    if (!s.way) CHECK_SAYS("ad_to_dtype", "f32", "wide");
    if (s.way) CHECK_OK(ad_backward(s.tape, loss));
    for (size_t i = 0; i < 4 && s.way; i++) CHECK(ad_element(AD_F32, ad_grad(leaf)->data, i) == 2 * numbers[i]);
    CHECK(!s.way || ad_grad(leaf)->dtype == AD_F32);
    ad_array_destroy(comm, &value);
  }
  close_scene(&s);
  return 0;
}

/* Follows "its scale must be 0" for a leaf whose data is its value times 2^-2. */
static int repair_scale(ad_comm *comm, void *context) {
  static const double numbers[] = {0.5, 1, 1.5, -2};
  scene s;
  open_scene(&s, comm, "tp=1", NULL);
  ad_layout layout = layout_called(&s, "tp=I");
  ad_array value;
  CHECK_OK(ad_array_create(comm, AD_F64, &(ad_shape){1, {4}}, &layout, &value));
  for (size_t i = 0; i < 4; i++) ad_set_element(AD_F64, value.data, i, numbers[i] / 4);
  ad_parameters from = {.size = sizeof from, .values = (const ad_array *[]){&value}, .count = 1};
  for (value.scale = 2; value.scale >= 0; value.scale -= 2) {
    for (size_t i = 0; i < 4 && !value.scale; i++) ad_set_element(AD_F64, value.data, i, numbers[i]);
    ad_tape_reset(s.tape);
    ad_tensor *leaf = ad_parameter(s.tape, &from, 0), *loss = ad_sum(s.tape, ad_multiply(s.tape, leaf, leaf));
    CHECK_STATUS(ad_tape_status(s.tape), value.scale ? AD_TYPE : AD_OK);
    if (value.scale) CHECK_SAYS("2", "-2", "0");
    if (!value.scale) CHECK_OK(ad_backward(s.tape, loss));
    for (size_t i = 0; i < 4 && !value.scale; i++) CHECK(ad_element(AD_F64, ad_grad(leaf)->data, i) == 2 * numbers[i]);
  }
  ad_array_destroy(comm, &value);
  close_scene(&s);
  return 0;
}

/* Follows "must be a scalar; sum it first". */
static int sum_first(ad_comm *comm, void *context) {
  scene s;
  ad_comm *dry;
  CHECK_OK(ad_comm_open_dry(0, WORLD, &dry));
  open_scene(&s, dry, "tp=4", NULL);
  CHECK_STATUS(ad_backward(s.tape, ad_scale(s.tape, leaf_called(&s, "tp=S0"), 3)), AD_INVALID);
  CHECK_LISTED();
  close_scene(&s);
  ad_comm_close(dry);
  open_scene(&s, comm, "tp=4", NULL);
  ad_tensor *leaf = leaf_called(&s, "tp=S0"), *loss = ad_sum(s.tape, ad_scale(s.tape, leaf, 3));
  CHECK_OK(ad_backward(s.tape, loss));
  is_right(&s, leaf, loss, LINES);
  close_scene(&s);
  return 0;
}

static void other_words_that_are_said_are_as_true(void **state) {
  run_ranks(1, repair_dtypes, NULL);
  run_ranks(1, repair_scale, NULL);
  run_ranks(WORLD, sum_first, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(operands_that_are_converted_as_is_said_give_what_one_rank_has),
      cmocka_unit_test(programs_that_do_what_is_said_give_what_the_formula_has),
      cmocka_unit_test(views_that_are_changed_as_is_said_give_what_the_formula_has),
      cmocka_unit_test(values_that_cross_the_tapes_edge_as_is_said_have_their_gradients),
      cmocka_unit_test(arrays_that_are_brought_where_is_said_have_their_numbers),
      cmocka_unit_test(other_words_that_are_said_are_as_true),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
