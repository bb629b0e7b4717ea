/* Tests ad_check_operation: it accepts right operations, users' and addend's own; and for each promise it refuses an
 * operation that breaks it, naming the promise. */
#include <stdio.h>
#include "base/memory.h"
#include "says.h"
#include "tensor/trial.h"
#include "world.h"

/* ---- a right operation ---- */

typedef struct bend_numbers {
  double factor;
} bend_numbers;

static double factor_of(const ad_tensor *out) { return ((const bend_numbers *)ad_operation_own(out))->factor; }
static size_t width_of(const ad_tensor *out) { return ad_array_numel(ad_operand(out, 1)); }
static size_t bend_saved(const ad_tensor *out) { return width_of(out) * sizeof(double); }

/* y = x * row + factor * row^2; the squares are saved for backward. */
static ad_status bend_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = ad_operand(out, 0), *row = ad_operand(out, 1), *y = ad_tensor_array(out);
  double *squares = ad_operation_saved(out);
  for (size_t i = 0; i < width_of(out); i++) squares[i] = ad_array_get(row, i) * ad_array_get(row, i);
  for (size_t i = 0; i < ad_array_numel(y); i++)
    ad_array_set(
        y, i, ad_array_get(x, i) * ad_array_get(row, i % width_of(out)) + factor_of(out) * squares[i % width_of(out)]);
  return AD_OK;
}

static ad_status bend_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *x = ad_operand(out, 0), *row = ad_operand(out, 1), *grad = ad_result_grad(out);
  double *sums = ad_operation_scratch(out);
  size_t width = width_of(out);
  for (size_t i = 0; i < width; i++) sums[i] = 0;
  for (size_t i = 0; i < ad_array_numel(grad); i++) {
    double g = ad_array_get(grad, i), r = ad_array_get(row, i % width);
    ad_slot_put(&slot[0], i, g * r);
    sums[i % width] += g * (ad_array_get(x, i) + 2 * factor_of(out) * r);
  }
  ad_slot_put_all(&slot[1], 0, sums, AD_F64, width);
  return AD_OK;
}

static const ad_operation bend = {.size = sizeof bend,
                                  .name = "bend",
                                  .dims = "...n,n->...n",
                                  .linearity = AD_NONLINEAR,
                                  .dtypes = AD_IN_ANY_FLOAT,
                                  .own_size = sizeof(bend_numbers),
                                  .saved = bend_saved,
                                  .scratch = bend_saved,
                                  .forward = bend_forward,
                                  .backward = bend_backward};

static const bend_numbers half = {0.5};
static const ad_shape matrix_and_row[] = {{2, {5, 4}}, {1, {4}}};
static const ad_operation_trial on_matrix = {
    .size = sizeof on_matrix, .shapes = matrix_and_row, .count = 2, .own = &half, .seed = 1};

static void holds(ad_status status) {
  if (status) fail_msg("%s: %s", ad_status_name(status), ad_last_error());
}

static void an_operation_that_is_right_holds(void **state) { holds(ad_check_operation(&bend, &on_matrix)); }

/* ---- operations that break a promise ---- */

/* The operation is refused with these facts; the sentence is in the list of the mistake. */
static void breaks_on(const char *mistake, const ad_operation *op, const ad_operation_trial *trial,
                      const char *const *facts) {
  assert_int_equal(ad_check_operation(op, trial), AD_INVALID);
  assert_says_in(mistake, ad_last_error(), facts);
}
#define BREAKS(mistake, op, ...) breaks_on((mistake), (op), &on_matrix, SAYS_FACTS("bend", __VA_ARGS__))

static ad_status scales_its_gradient(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *grad = ad_result_grad(out);
  AD_TRY(bend_backward(tape, out, slot));
  for (size_t i = 0; i < ad_array_numel(grad); i++) ad_array_set(grad, i, 2 * ad_array_get(grad, i));
  return AD_OK;
}

static ad_status uses_up_what_was_saved(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(bend_backward(tape, out, slot));
  ((double *)ad_operation_saved(out))[1] = 0;
  return AD_OK;
}

static ad_status changes_an_operand(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(bend_backward(tape, out, slot));
  ad_array_set(ad_operand(out, 1), 0, 0);
  return AD_OK;
}

static ad_status changes_the_result(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(bend_backward(tape, out, slot));
  ad_array_set(ad_tensor_array(out), 0, 0);
  return AD_OK;
}

/* Mistake: writes operand 2's gradient even if its slot is NULL. */
static ad_status ignores_that_a_slot_is_null(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(bend_backward(tape, out, slot));
  double *first = slot[1].data;
  first[0] += 0;
  return AD_OK;
}

/* Mistake: leaves another gradient of operand 2 if operand 1's slot is NULL. */
static ad_status uses_another_slot(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(bend_backward(tape, out, slot));
  if (!slot[0].data) ad_slot_put(&slot[1], 0, 1);
  return AD_OK;
}

static ad_status fails_without_the_first_slot(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  return slot[0].data ? bend_backward(tape, out, slot) : ad_fail(AD_INVALID, "no slot");
}

static ad_status forgets_an_element(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  for (size_t i = 1; i < ad_array_numel(ad_result_grad(out)); i++) ad_slot_put(&slot[0], i, 1);
  return AD_OK;
}

static ad_status always_overwrites(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  ad_gradient_slot over[2] = {slot[0], slot[1]};
  over[0].adds = 0;
  return bend_backward(tape, out, over);
}

static ad_status needs_more_scratch(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(bend_backward(tape, out, slot));
  if (!slot[0].data) ((double *)ad_operation_scratch(out))[8 + width_of(out)] = 1;
  return AD_OK;
}

static int calls;
static ad_status is_another_each_time(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(bend_backward(tape, out, slot));
  if (slot[0].data) ad_slot_put(&(ad_gradient_slot){slot[0].data, 0, slot[0].dtype}, 0, ++calls);
  return AD_OK;
}

/* Mistake: changes the gradient that arrived if operand 2's slot is NULL. */
static ad_status uses_up_its_gradient(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(bend_backward(tape, out, slot));
  if (!slot[1].data) ad_array_set(ad_result_grad(out), 2, 0);
  return AD_OK;
}

static ad_status uses_up_what_it_saved(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(bend_backward(tape, out, slot));
  if (!slot[0].data) ((double *)ad_operation_saved(out))[2] = 0;
  return AD_OK;
}

#define WITH_BACKWARD(function, ...)        \
  do {                                      \
    ad_operation other = bend;              \
    other.backward = (function);            \
    BREAKS(#function, &other, __VA_ARGS__); \
  } while (0)

static void what_backward_must_leave_as_it_is(void **state) {
  WITH_BACKWARD(scales_its_gradient, NULL);
  WITH_BACKWARD(uses_up_what_was_saved, NULL);
  WITH_BACKWARD(changes_an_operand, "operand 2");
  WITH_BACKWARD(changes_the_result, NULL);
  WITH_BACKWARD(uses_up_its_gradient, NULL);
  WITH_BACKWARD(uses_up_what_it_saved, NULL);
}

static void what_a_slot_says(void **state) {
#if defined(AD_SANITIZED) /* with a sanitizer the child ends by an exit status, and may end before */
  ad_operation ends = bend;
  ends.backward = ignores_that_a_slot_is_null;
  assert_int_equal(ad_check_operation(&ends, &on_matrix), AD_INVALID);
  assert_facts(ad_last_error(), "bend", "NULL", "operand 1", "1");
  ends.backward = needs_more_scratch;
  assert_int_equal(ad_check_operation(&ends, &on_matrix), AD_INVALID);
  assert_facts(ad_last_error(), "bend", "operand 2");
#else
  WITH_BACKWARD(ignores_that_a_slot_is_null, "NULL", "operand 1", "signal 11");
  WITH_BACKWARD(needs_more_scratch, "operand 2", "ad_operation");
#endif
  WITH_BACKWARD(uses_another_slot, "operand 2", "NULL");
  WITH_BACKWARD(fails_without_the_first_slot, "operand 2");
  WITH_BACKWARD(always_overwrites, "adds", "element 0", "operand 1");
  WITH_BACKWARD(is_another_each_time, NULL);
}

static void every_element_is_filled_and_no_other_operands(void **state) {
  ad_operation of_one = bend;
  of_one.fills = 1u << 0;
  BREAKS("fills operand 1 alone", &of_one, "operand 2", "ad_operation");
  of_one.backward = forgets_an_element;
  BREAKS("forgets_an_element", &of_one, "1", "20", "operand 1");
}

static ad_status counts_calls(ad_tape *tape, ad_tensor *out) {
  AD_TRY(bend_forward(tape, out));
  ad_array_set(ad_tensor_array(out), 3, ++calls);
  return AD_OK;
}

static ad_status saves_a_count(ad_tape *tape, ad_tensor *out) {
  AD_TRY(bend_forward(tape, out));
  ((double *)ad_operation_saved(out))[0] = ++calls;
  return AD_OK;
}

static ad_status works_in_place(ad_tape *tape, ad_tensor *out) {
  AD_TRY(bend_forward(tape, out));
  ad_array_set(ad_operand(out, 0), 0, 0);
  return AD_OK;
}

static void forward_may_be_called_again(void **state) {
  ad_operation other = bend;
  other.forward = counts_calls;
  BREAKS("counts_calls", &other, NULL);
  other.forward = saves_a_count;
  BREAKS("saves_a_count", &other, NULL);
  other.forward = works_in_place;
  BREAKS("works_in_place", &other, "operand 1");
}

static ad_status clears_first(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  for (size_t i = 0; !slot[0].adds && i < ad_array_numel(ad_result_grad(out)); i++) ad_slot_put(&slot[0], i, 0);
  return bend_backward(tape, out, slot);
}

static void what_is_unread_is_not_read(void **state) {
  ad_operation other = bend;
  other.unread = 1u << 0;
  BREAKS("reads what is unread", &other, "ad_operation", "unread");
  other.unread = 0;
  other.passes_gradient_on = 1;
  other.backward = clears_first;
  BREAKS("clears_first", &other, "passes_gradient_on");
}

/* ---- linearity that is declared wrongly ---- */

/* y = a b c, element by element. */
static ad_status product_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *a = ad_operand(out, 0), *b = ad_operand(out, 1), *c = ad_operand(out, 2), *y = ad_tensor_array(out);
  for (size_t i = 0; i < ad_array_numel(y); i++)
    ad_array_set(y, i, ad_array_get(a, i) * (ad_array_get(b, i) * ad_array_get(c, i)));
  return AD_OK;
}

static ad_status product_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *grad = ad_result_grad(out);
  for (size_t k = 0; k < 3; k++) {
    const ad_array *a = ad_operand(out, (k + 1) % 3), *b = ad_operand(out, (k + 2) % 3);
    for (size_t i = 0; i < ad_array_numel(grad); i++)
      ad_slot_put(&slot[k], i, ad_array_get(grad, i) * (ad_array_get(a, i) * ad_array_get(b, i)));
  }
  return AD_OK;
}

/* Mistake: computes the gradient of a as y / a, which fails for a = 0. */
static ad_status divides_the_result(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *grad = ad_result_grad(out), *a = ad_operand(out, 0), *y = ad_tensor_array(out);
  const ad_gradient_slot others[3] = {{NULL, 0, 0}, slot[1], slot[2]};
  AD_TRY(product_backward(tape, out, others));
  for (size_t i = 0; i < ad_array_numel(grad); i++)
    ad_slot_put(&slot[0], i, ad_array_get(grad, i) * ad_array_get(y, i) / ad_array_get(a, i));
  return AD_OK;
}

/* Mistake: wrong only if gradients of b and c are asked for and of a not. */
static ad_status mixes_up_two_of_three(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(product_backward(tape, out, slot));
  if (!slot[0].data && slot[1].data && slot[2].data) ad_slot_put(&slot[1], 0, 0.5);
  return AD_OK;
}

static ad_status writes_a_third(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  static ad_gradient_slot seen;
  AD_TRY(product_backward(tape, out, slot));
  if (slot[2].data) seen = slot[2];
  if (!slot[2].data && slot[1].data) ad_slot_put(&seen, 0, 0.5);
  return AD_OK;
}

static void what_is_linear_is_made_of_the_others(void **state) {
  static const ad_shape three[] = {{2, {5, 4}}, {2, {5, 4}}, {2, {5, 4}}};
  static const ad_operation_trial on_three = {.size = sizeof on_three, .shapes = three, .count = 3, .seed = 1};
  ad_operation product = {.size = sizeof product,
                          .name = "product",
                          .dims = "...,...,...->...",
                          .linearity = AD_MULTILINEAR,
                          .forward = product_forward,
                          .backward = product_backward};
  holds(ad_check_operation(&product, &on_three));
  product.backward = divides_the_result;
  breaks_on("divides_the_result", &product, &on_three, SAYS_FACTS("product"));
  product.linearity = AD_NONLINEAR;
  product.backward = mixes_up_two_of_three;
  breaks_on("mixes_up_two_of_three", &product, &on_three, SAYS_FACTS("product", "operand 2", "NULL"));
  product.backward = writes_a_third;
  breaks_on("writes_a_third", &product, &on_three, SAYS_FACTS("product", "operand 2", "operand 3"));
}

/* ---- wrong numbers ---- */

static ad_status half_of_it(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *grad = ad_result_grad(out);
  double kept[64];
  for (size_t i = 0; i < ad_array_numel(grad); i++) kept[i] = ad_array_get(grad, i);
  for (size_t i = 0; i < ad_array_numel(grad); i++) ad_array_set(grad, i, 0.5 * kept[i]);
  ad_status status = bend_backward(tape, out, slot);
  for (size_t i = 0; i < ad_array_numel(grad); i++) ad_array_set(grad, i, kept[i]);
  return status;
}

/* Mistake: in f32 alone the result is rounded to three digits. */
static ad_status rounds_in_f32(ad_tape *tape, ad_tensor *out) {
  AD_TRY(bend_forward(tape, out));
  const ad_array *y = ad_tensor_array(out);
  for (size_t i = 0; y->dtype == AD_F32 && i < ad_array_numel(y); i++)
    ad_array_set(y, i, 1e-3 * round(1e3 * ad_array_get(y, i)));
  return AD_OK;
}

static void backward_is_the_derivative_of_forward_in_every_dtype(void **state) {
  WITH_BACKWARD(half_of_it, "element 0", "operand 1");
  ad_operation other = bend;
  other.forward = rounds_in_f32;
  BREAKS("rounds_in_f32", &other, "f32", "f64");
  other = bend;
  other.backward = half_of_it;
  other.not_linear = 1;  // linearity is then not tested
  holds(ad_check_operation(&other, &on_matrix));
}

/* An operation that is off in element 0 by a share of what the comparison allows for: of the largest element that one
 * process computes in f64, which for results counts one more. */
static struct {
  ad_dtype in;              /* the dtype in which it is off, */
  int if_sharded, gradient; /* if the result is sharded; whether the gradient of operand 1 is off, or the result */
  double share, largest;
} off;

static int is_off(const ad_array *y) {
  int is_sharded = ad_layout_sharded_axes(&y->layout) != 0, is_addend = ad_layout_axes_of(&y->layout, AD_P) != 0;
  return y->dtype == off.in && is_sharded == off.if_sharded && !is_addend && ad_array_numel(y) > 0;
}

/* Whether this is the one process that computes in f64. */
static int is_alone(ad_tape *tape, const ad_array *y) {
  return y->dtype == AD_F64 && ad_comm_size(ad_tape_comm(tape)) == 1;
}

static ad_status forward_is_off(ad_tape *tape, ad_tensor *out) {
  const ad_array *y = ad_tensor_array(out);
  AD_TRY(bend_forward(tape, out));
  if (off.gradient) return AD_OK;
  if (is_alone(tape, y)) off.largest = 0;
  for (size_t i = 0; is_alone(tape, y) && i < ad_array_numel(y); i++)
    off.largest = fmax(off.largest, fabs(ad_array_get(y, i)));
  if (is_off(y)) ad_array_set(y, 0, ad_array_get(y, 0) + off.share * (1 + off.largest));
  return AD_OK;
}

/* In f64 all elements are off, each by its own share, so that addends of ranks still sum up to one process's. */
static ad_status backward_is_off(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *y = ad_tensor_array(out), *grad = ad_result_grad(out), *row = ad_operand(out, 1);
  AD_TRY(bend_backward(tape, out, slot));
  if (!off.gradient || !slot[0].data) return AD_OK;
  const ad_gradient_slot adding = {slot[0].data, 1, slot[0].dtype};
  if (is_alone(tape, y)) off.largest = 0;
  for (size_t i = 0; y->dtype == AD_F64 && i < ad_array_numel(grad); i++) {
    double own = ad_array_get(grad, i) * ad_array_get(row, i % width_of(out));
    if (is_alone(tape, y)) off.largest = fmax(off.largest, fabs(own));
    if (off.in == AD_F64) ad_slot_put(&adding, i, off.share * own);
  }
  if (y->dtype != AD_F64 && is_off(y)) ad_slot_put(&adding, 0, off.share * off.largest);
  return AD_OK;
}

/* One just within each number that a comparison allows for, and one just beyond. */
static void a_comparison_allows_for_roundings_alone(void **state) {
  static const struct {
    const char *name;
    ad_dtype in;
    int if_sharded, gradient;
    double allowed;
    const char *facts[6];
  } comparisons[] = {
      {"a result in f32", AD_F32, 0, 0, 2e-5, {"bend", "f32", "element 0", "f64"}},
      {"a result in bf16", AD_BF16, 0, 0, 0.03, {"bend", "bf16", "element 0", "f64"}},
      {"a gradient in f32", AD_F32, 0, 1, 2e-5, {"bend", "f32", "element 0", "operand 1", "f64"}},
      {"a gradient in bf16", AD_BF16, 0, 1, 0.03, {"bend", "bf16", "element 0", "operand 1", "f64"}},
      {"a gradient in f64", AD_F64, 0, 1, 1e-6, {"bend", "operand 1"}},
      {"a part of a result", AD_F64, 1, 0, 1e-10, {"bend", "element 0", "tp=3"}},
  };
  ad_operation other = bend;
  other.forward = forward_is_off;
  other.backward = backward_is_off;
  for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++) {
    off.in = comparisons[i].in, off.if_sharded = comparisons[i].if_sharded, off.gradient = comparisons[i].gradient;
    off.share = 0.8 * comparisons[i].allowed;
    holds(ad_check_operation(&other, &on_matrix));
    off.share = 1.2 * comparisons[i].allowed;
    breaks_on(comparisons[i].name, &other, &on_matrix, comparisons[i].facts);
  }
}

/* ---- wrong types ---- */

static void the_rule_is_held_to_what_ranks_make(void **state) {
  ad_operation other = bend;
  other.linearity = AD_MULTILINEAR; /* false: it is not linear in the row */
  BREAKS("no linearity", &other, "tp=P", "tp=3");
  other.linearity = AD_ADDITIVE;
  BREAKS("no additivity", &other, "\"tp=P\", \"tp=P\"", "tp=3");
}

static ad_status fails_where_it_is_sharded(ad_tape *tape, ad_tensor *out) {
  int is_sharded = ad_layout_sharded_axes(&ad_tensor_array(out)->layout) != 0;
  return is_sharded ? ad_fail(AD_TYPE, "mine.c: it is cut") : bend_forward(tape, out);
}

/* Mistake: the result is off only where it is sharded over two axes. */
static ad_status is_off_where_it_is_sharded_twice(ad_tape *tape, ad_tensor *out) {
  ad_axes sharded = ad_layout_sharded_axes(&ad_tensor_array(out)->layout);
  AD_TRY(bend_forward(tape, out));
  if ((sharded & AD_AXES(AD_DP_SHARD)) && (sharded & AD_AXES(AD_TP))) ad_array_set(ad_tensor_array(out), 0, 1e3);
  return AD_OK;
}

/* Mistake: the result is off only where operands have the type I over two axes. */
static ad_status is_off_where_it_is_full_twice(ad_tape *tape, ad_tensor *out) {
  ad_axes full = ad_layout_axes_of(&ad_tensor_array(out)->layout, AD_I);
  AD_TRY(bend_forward(tape, out));
  if ((full & AD_AXES(AD_DP_SHARD)) && (full & AD_AXES(AD_TP))) ad_array_set(ad_tensor_array(out), 0, 1e3);
  return AD_OK;
}

static void operands_are_laid_out_on_two_axes(void **state) {
  ad_operation other = bend;
  other.forward = is_off_where_it_is_sharded_twice;
  BREAKS("is_off_where_it_is_sharded_twice", &other, "dp_shard=2 tp=3", "element 0");
  other.forward = is_off_where_it_is_full_twice;
  BREAKS("is_off_where_it_is_full_twice", &other, "dp_shard=I tp=I", "dp_shard=2 tp=3", "element 0");
}

/* Where the type rule accepts operands, forward must work. */
static void a_forward_that_fails_is_no_refusal(void **state) {
  ad_operation other = bend;
  other.forward = fails_where_it_is_sharded;
  assert_int_equal(ad_check_operation(&other, &on_matrix), AD_TYPE);
  assert_says("tp=3", "rank 0", "mine.c");
}

/* Each row minus its mean: needs whole rows. */
static ad_status centre_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = ad_operand(out, 0), *y = ad_tensor_array(out);
  size_t width = (size_t)y->local.dim[1];
  for (size_t row = 0; row < (size_t)y->local.dim[0]; row++) {
    double mean = 0;
    for (size_t i = 0; i < width; i++) mean += ad_array_get(x, row * width + i) / (double)width;
    for (size_t i = 0; i < width; i++) ad_array_set(y, row * width + i, ad_array_get(x, row * width + i) - mean);
  }
  return AD_OK;
}

static ad_status centre_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *grad = ad_result_grad(out);
  size_t width = (size_t)grad->local.dim[1];
  for (size_t row = 0; row < (size_t)grad->local.dim[0]; row++) {
    double mean = 0;
    for (size_t i = 0; i < width; i++) mean += ad_array_get(grad, row * width + i) / (double)width;
    for (size_t i = 0; i < width; i++) ad_slot_put(slot, row * width + i, ad_array_get(grad, row * width + i) - mean);
  }
  return AD_OK;
}

static const ad_operation centre = {.size = sizeof centre,
                                    .name = "centre",
                                    .dims = "mn->mn",
                                    .linearity = AD_MULTILINEAR,
                                    .full = "n",
                                    .unread = 1,
                                    .forward = centre_forward,
                                    .backward = centre_backward};

static void a_dimension_that_must_be_full_is_found(void **state) {
  ad_operation_trial trial = on_matrix;
  trial.count = 1;
  holds(ad_check_operation(&centre, &trial));
  ad_operation other = centre;
  other.full = NULL;
  breaks_on("a dimension that must be whole", &other, &trial, SAYS_FACTS("centre", "tp=S1"));
  other = centre;
  other.full = "nm";  // declaring more dimensions whole than needed is no mistake
  holds(ad_check_operation(&other, &trial));
}

/* Passes on gradients clipped to 1, so the sum of addends' gradients is another number. */
static ad_status clip_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  for (size_t i = 0; i < ad_array_numel(ad_result_grad(out)); i++)
    ad_slot_put(slot, i, fmin(fmax(ad_array_get(ad_result_grad(out), i), -1), 1));
  return AD_OK;
}

static ad_status same_forward(ad_tape *tape, ad_tensor *out) {
  for (size_t i = 0; i < ad_array_numel(ad_tensor_array(out)); i++)
    ad_array_set(ad_tensor_array(out), i, ad_array_get(ad_operand(out, 0), i));
  return AD_OK;
}

static void a_backward_that_is_not_linear_says_so(void **state) {
  ad_operation clip = centre;
  ad_operation_trial trial = on_matrix;
  trial.count = 1;
  clip.name = "clip";
  clip.full = NULL;
  clip.forward = same_forward;
  clip.backward = clip_backward;
  clip.not_linear = 1;
  holds(ad_check_operation(&clip, &trial));
  clip.not_linear = 0;
  breaks_on("clip_backward", &clip, &trial, SAYS_FACTS("clip", "operand 1"));
}

/* ---- what a trial must have ---- */

static void a_trial_that_means_nothing_is_refused(void **state) {
  ad_operation_trial trial = on_matrix;
  trial.size = 0;
  breaks_on("size 0", &bend, &trial, SAYS_FACTS("ad_operation_trial", "size", "0"));
  trial = on_matrix;
  trial.count = 0;
  breaks_on("no shapes", &bend, &trial, SAYS_FACTS("ad_check_operation", "0"));
  trial.count = 1;
  breaks_on("too few shapes", &bend, &trial, SAYS_FACTS("bend", "...n,n->...n"));
  ad_shape none[] = {{2, {0, 4}}, {1, {4}}};
  trial = on_matrix;
  trial.shapes = none;
  breaks_on("an empty shape", &bend, &trial, SAYS_FACTS("ad_check_operation", "operand 1"));
  trial = on_matrix;
  trial.constants = 3;
  breaks_on("constants alone", &bend, &trial, SAYS_FACTS("bend"));
  breaks_on("no operation", NULL, &trial, SAYS_FACTS("operation", "NULL"));
  breaks_on("no trial", &bend, NULL, SAYS_FACTS("trial", "NULL"));
}

/* Fails every allocation once: the call ends with AD_MEMORY, or does without the memory, as the reset of a tape can. */
static void without_memory_it_says_so(void **state) {
  ad_status status = AD_MEMORY;
  long n = 0;
  do {
    ad_memory_fail_at(++n);
    status = ad_check_operation(&bend, &on_matrix);
    if (status != AD_MEMORY) holds(status);
  } while (ad_memory_fail_at(0) >= n);
  holds(status);
  assert_true(n > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_operation_that_is_right_holds),
      cmocka_unit_test(what_backward_must_leave_as_it_is),
      cmocka_unit_test(what_a_slot_says),
      cmocka_unit_test(every_element_is_filled_and_no_other_operands),
      cmocka_unit_test(forward_may_be_called_again),
      cmocka_unit_test(what_is_unread_is_not_read),
      cmocka_unit_test(what_is_linear_is_made_of_the_others),
      cmocka_unit_test(backward_is_the_derivative_of_forward_in_every_dtype),
      cmocka_unit_test(a_comparison_allows_for_roundings_alone),
      cmocka_unit_test(the_rule_is_held_to_what_ranks_make),
      cmocka_unit_test(operands_are_laid_out_on_two_axes),
      cmocka_unit_test(a_forward_that_fails_is_no_refusal),
      cmocka_unit_test(a_dimension_that_must_be_full_is_found),
      cmocka_unit_test(a_backward_that_is_not_linear_says_so),
      cmocka_unit_test(a_trial_that_means_nothing_is_refused),
      cmocka_unit_test(without_memory_it_says_so),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
