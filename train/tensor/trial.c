/* ad_check_operation: draws operands, computes the results of one process in f64, and compares all other results with
 * these. */
#include "tensor/trial.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "array/array.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/random.h"

static const char site[] = "ad_check_operation";

/* ---- drawing operands ---- */

/* Rounds the value to the narrowest dtype of the operation, so that all dtypes compute with the same numbers. */
static double representable(const ad_trial *trial, double value) {
  unsigned dtypes = trial->op->dtypes ? trial->op->dtypes : AD_IN_F32_F64;
  ad_dtype narrowest = dtypes >> AD_BF16 & 1 ? AD_BF16 : dtypes >> AD_F32 & 1 ? AD_F32 : AD_F64;
  ad_array one = {.dtype = narrowest, .data = &(double){0}};
  ad_array_set(&one, 0, value);
  return ad_array_get(&one, 0);
}

/* Draws element i of an operand as the trial says: an index, a uniform or a normal number. */
static double drawn(const ad_trial *trial, size_t operand, size_t i) {
  const ad_operation_trial *given = &trial->given;
  uint64_t stream = AD_TRIAL_OPERANDS + operand;
  if (given->below && given->below[operand] > 0)
    return (double)ad_random_below(given->seed, stream, i, given->below[operand]);
  if (given->least < given->most)
    return given->least + (given->most - given->least) * ad_random_uniform(given->seed, stream, i);
  return ad_random_normal(given->seed, stream, i);
}

static ad_status take_doubles(const ad_trial *trial, size_t n, double **out) {
  return (*out = ad_arena_take_zeroed(trial->arena, n * sizeof **out)) ? AD_OK : AD_MEMORY;
}

static ad_status draw_values(ad_trial *trial) {
  for (size_t k = 0; k < trial->given.count; k++) {
    size_t n = ad_trial_numel(trial, k);
    AD_TRY(take_doubles(trial, n, &trial->value[k]));
    AD_TRY(take_doubles(trial, n, &trial->gradient[k]));
    for (size_t i = 0; i < n; i++) trial->value[k][i] = drawn(trial, k, i);
  }
  return AD_OK;
}

static void make_representable(ad_trial *trial) {
  for (size_t k = 0; k < trial->given.count; k++)
    for (size_t i = 0; !ad_trial_is_index(trial, k) && i < ad_trial_numel(trial, k); i++)
      trial->value[k][i] = representable(trial, trial->value[k][i]);
}

/* ---- computing the result in one process ---- */

/* Records the operation once to learn its record and the shape of its result, then draws the arriving gradient. */
static ad_status meet(ad_trial *trial, ad_tape *tape) {
  ad_tried first;
  AD_TRY(ad_trial_record(trial, tape, NULL, &first));
  AD_TRY(ad_tape_status(tape));
  trial->op = first.out->op;
  if (!trial->op)
    return ad_fail(AD_INVALID, "%s: the function under test recorded no operation; apply the operation in it", site);
  if (!first.out->carries) return ad_trial_fail(trial, "no operand of the trial has a gradient");
  trial->constants |= ~ad_operation_fills(trial->op);
  trial->shape = ad_tensor_array(first.out)->shape;
  size_t n = (size_t)ad_shape_numel(&trial->shape);
  AD_TRY(take_doubles(trial, n, &trial->result));
  AD_TRY(take_doubles(trial, n, &trial->arriving));
  for (size_t i = 0; i < n; i++)
    trial->arriving[i] = representable(trial, ad_random_normal(trial->given.seed, AD_TRIAL_ARRIVING, i));
  make_representable(trial);
  return AD_OK;
}

static void copy_numbers(double *to, const ad_array *from) {
  for (size_t i = 0; from && i < ad_array_numel(from); i++) to[i] = ad_array_get(from, i);
}

/* Computes the result and all gradients in one process, in f64. */
static ad_status compute(ad_trial *trial, ad_tape *tape) {
  ad_tried tried;
  ad_tape_reset(tape);
  AD_TRY(ad_trial_record(trial, tape, NULL, &tried));
  AD_TRY(ad_tape_status(tape));
  copy_numbers(trial->result, ad_tensor_array(tried.out));
  ad_layout dual = ad_layout_dual(&tried.out->array.layout);
  ad_array arriving = ad_array_describe(trial->alone, AD_F64, &trial->shape, &dual);
  arriving.data = trial->arriving;
  AD_TRY(ad_backward_from_at(tape, &tried.out, (const ad_array *[]){&arriving}, 1, AD_LAST_START, site));
  for (size_t i = 0; i < trial->given.count; i++) copy_numbers(trial->gradient[i], ad_grad(tried.x[i]));
  return AD_OK;
}

/* Runs the five parts of the check. */
static ad_status run_parts(ad_trial *trial) {
  ad_tape *tape;
  AD_TRY(draw_values(trial));
  AD_TRY(ad_trial_tape(trial, AD_F64, &tape));
  ad_status status = meet(trial, tape);
  if (!status) status = ad_trial_promises(trial);
  if (!status) status = compute(trial, tape);
  ad_tape_destroy(tape);
  AD_TRY(status);
  AD_TRY(ad_trial_differences(trial));
  AD_TRY(ad_trial_dtypes(trial));
  AD_TRY(ad_trial_types(trial));
  return ad_trial_linear(trial);
}

/* ---- the public functions ---- */

static ad_status check_shapes(const ad_operation_trial *given) {
  if (!given->shapes || !given->count || given->count > AD_OPERANDS_MAX)
    return ad_fail(AD_INVALID, "%s: the trial has shapes for %zu operands, but must have them for 1 to %d", site,
                   given->shapes ? given->count : 0, AD_OPERANDS_MAX);
  for (size_t i = 0; i < given->count; i++)
    if (given->shapes[i].ndim < 0 || given->shapes[i].ndim > AD_DIMS_MAX || ad_shape_numel(&given->shapes[i]) <= 0)
      return ad_fail(AD_INVALID, "%s: the shape of operand %zu has no elements; give a shape with elements", site,
                     i + 1);
  return AD_OK;
}

static uint64_t indices_of(const ad_operation_trial *given) {
  uint64_t indices = 0;
  for (size_t i = 0; given->below && i < given->count; i++) indices |= (uint64_t)(given->below[i] > 0) << i;
  return indices;
}

static ad_status open_trial(ad_trial *trial) {
  AD_TRY(ad_arena_create(0, &trial->arena));
  AD_TRY(ad_comm_open_alone(&trial->alone));
  AD_TRY(ad_mesh_create("tp=1", &trial->mesh));
  return ad_layout_parse(trial->mesh, "tp=I", &trial->same);
}

static void close_trial(ad_trial *trial) {
  ad_mesh_destroy(trial->mesh);
  if (trial->alone) ad_comm_close(trial->alone);
  ad_arena_destroy(trial->arena);
}

/* Runs the trial. `fills` has a bit for each operand whose gradient backward fills, as in the record; UINT64_MAX if the
 * record is not known before the operation is recorded. */
static ad_status run_trial(ad_trial_apply apply, const void *context, uint64_t fills, const ad_operation_trial *given) {
  ad_trial trial = {.apply = apply, .context = context};
  AD_TRY(ad_options_take(&trial.given, sizeof trial.given, given, "ad_operation_trial"));
  AD_TRY(check_shapes(&trial.given));
  trial.constants = trial.given.constants | indices_of(&trial.given) | ~fills;
  ad_status status = open_trial(&trial);
  if (!status) status = run_parts(&trial);
  close_trial(&trial);
  return status;
}

ad_status ad_check_applied(ad_trial_apply apply, const void *context, const ad_operation_trial *given) {
  return run_trial(apply, context, UINT64_MAX, given);
}

typedef struct record_on_trial {
  const ad_operation *op;
  const ad_operation_trial *given;
} record_on_trial;

static ad_tensor *apply_record(ad_tape *tape, ad_tensor *const *x, const void *context) {
  const record_on_trial *of = context;
  return ad_operation_apply_at(tape, of->op, x, of->given->count, of->given->own, site);
}

ad_status ad_check_operation(const ad_operation *operation, const ad_operation_trial *trial) {
  AD_NEED(operation, trial);
  ad_operation complete;
  ad_operation_trial given;
  AD_TRY(ad_options_take(&complete, sizeof complete, operation, "ad_operation"));
  AD_TRY(ad_options_take(&given, sizeof given, trial, "ad_operation_trial"));
  return run_trial(apply_record, &(record_on_trial){&complete, &given}, ad_operation_fills(&complete), &given);
}
