/* ad_check_operation: draws operands, computes the results of one process in f64, and compares all other results with
 * these. */
#include "tensor/trial.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "array/array.h"
#include "array/part.h"
#include "base/memory.h"
#include "base/options.h"
#include "addend/random.h"

static const char site[] = "ad_check_operation";
/* streams of random numbers; each value has ADDENDS streams for its addends */
enum { OF_OPERANDS = 1000, OF_ARRIVING = 2000, ADDENDS = 64 };

ad_status ad_trial_fail(const ad_trial *trial, const char *format, ...) {
  char text[AD_MESSAGE_MAX];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return ad_fail(AD_INVALID, "%s: %s", trial->op ? trial->op->name : "operation", text);
}

ad_status ad_trial_tape(const ad_trial *trial, ad_dtype dtype, ad_tape **out) {
  ad_tape_options options = {.size = sizeof options, .dtype = dtype};
  return ad_tape_create(trial->alone, trial->mesh, &options, out);
}

/* ---- laying operands out on one rank ---- */

/* Returns which addend of a P value this rank has. Sets *count to the number of addends. */
static size_t addend_of(const ad_layout *layout, int64_t rank, size_t *count) {
  ad_group group = ad_mesh_group(layout->mesh, ad_layout_axes_of(layout, AD_P), rank);
  *count = (size_t)ad_group_size(&group);
  return (size_t)ad_group_index(&group, rank);
}

/* Returns an element of one addend. All addends but the last are random; the last is the full value minus all
 * others. */
static double addend(const ad_trial *trial, double full, uint64_t stream, size_t element, size_t which, size_t count) {
  if (which + 1 < count) return ad_random_normal(trial->given.seed, stream * ADDENDS + which, element);
  for (size_t i = 0; i + 1 < count; i++) full -= ad_random_normal(trial->given.seed, stream * ADDENDS + i, element);
  return full;
}

ad_status ad_trial_part(const ad_trial *trial, ad_tape *tape, const double *full, uint64_t stream, ad_array *out) {
  size_t count, n = (size_t)ad_shape_numel(&out->shape), own = ad_array_numel(out);
  int64_t rank = ad_comm_rank(ad_tape_comm(tape));
  size_t which = addend_of(&out->layout, rank, &count);
  double *addends, *part;
  AD_TRY(ad_tape_take(tape, n * sizeof *addends, (void **)&addends));
  AD_TRY(ad_tape_take(tape, own * sizeof *part, (void **)&part));
  AD_TRY(ad_tape_take(tape, ad_array_bytes(out), &out->data));
  for (size_t i = 0; i < n; i++) addends[i] = addend(trial, full[i], stream, i, which, count);
  ad_layout everywhere = ad_layout_all(out->layout.mesh, AD_R);
  ad_part all, mine;
  ad_part_of(&everywhere, &out->shape, rank, &all);
  ad_part_of(&out->layout, &out->shape, rank, &mine);
  ad_part_copy(part, &mine, addends, &all, &mine, sizeof *part);
  for (size_t i = 0; i < own; i++) ad_array_set(out, i, part[i]);
  return AD_OK;
}

/* Returns 1 if operand i consists of indices. */
static int is_index(const ad_trial *trial, size_t i) {
  return trial->op ? trial->op->indices >> i & 1 : trial->given.below && trial->given.below[i] > 0;
}

static ad_dtype dtype_of(const ad_trial *trial, const ad_tape *tape, size_t i) {
  if (is_index(trial, i)) return AD_I32;
  ad_dtype dtype = ad_tape_dtype(tape);
  return trial->op && trial->op->wide >> i & 1 ? ad_dtype_wide(dtype) : dtype;
}

/* Records operand i as a constant or an input. If the trial says so, an input whose gradient may have another dtype
 * (`raw`) has a gradient of the wide dtype, as a parameter does. */
static ad_tensor *leaf_of(const ad_trial *trial, ad_tape *tape, size_t i, const ad_array *value) {
  if (!ad_trial_carries(trial, i)) return ad_constant_at(tape, value, site);
  int is_raw = trial->as_parameters && trial->op->raw >> i & 1;
  return is_raw ? ad_input_with(tape, value, ad_dtype_wide(value->dtype), site) : ad_input_at(tape, value, site);
}

ad_status ad_trial_record(const ad_trial *trial, ad_tape *tape, const ad_layout *layouts, ad_tried *out) {
  for (size_t i = 0; i < trial->given.count; i++) {
    const ad_layout *layout = layouts ? &layouts[i] : &trial->same;
    out->array[i] = ad_array_describe(ad_tape_comm(tape), dtype_of(trial, tape, i), &trial->given.shapes[i], layout);
    if (!tape->dry) AD_TRY(ad_trial_part(trial, tape, trial->value[i], OF_OPERANDS + i, &out->array[i]));
    out->x[i] = leaf_of(trial, tape, i, &out->array[i]);
  }
  out->out = trial->apply(tape, out->x, trial->context);
  return AD_OK;
}

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
  uint64_t stream = OF_OPERANDS + operand;
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
    for (size_t i = 0; !is_index(trial, k) && i < ad_trial_numel(trial, k); i++)
      trial->value[k][i] = representable(trial, trial->value[k][i]);
}

/* ---- computing the result in one process ---- */

/* Records the operation once to learn its record and the shape of its result, then draws the arriving gradient. */
static ad_status meet(ad_trial *trial, ad_tape *tape) {
  ad_tried first;
  AD_TRY(ad_trial_record(trial, tape, NULL, &first));
  AD_TRY(ad_tape_status(tape));
  trial->op = first.out->op;
  if (!trial->op) return ad_fail(AD_INVALID, "%s: the function under test recorded no operation", site);
  trial->constants |= ~ad_operation_fills(trial->op);
  trial->shape = ad_tensor_array(first.out)->shape;
  size_t n = (size_t)ad_shape_numel(&trial->shape);
  AD_TRY(take_doubles(trial, n, &trial->result));
  AD_TRY(take_doubles(trial, n, &trial->arriving));
  for (size_t i = 0; i < n; i++)
    trial->arriving[i] = representable(trial, ad_random_normal(trial->given.seed, OF_ARRIVING, i));
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
  if (!tried.out->carries) return ad_trial_fail(trial, "no operand of the trial carries a gradient");
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
    return ad_fail(AD_INVALID, "%s: the trial has shapes of %zu operands; 1 to %d are allowed", site,
                   given->shapes ? given->count : 0, AD_OPERANDS_MAX);
  for (size_t i = 0; i < given->count; i++)
    if (given->shapes[i].ndim < 0 || given->shapes[i].ndim > AD_DIMS_MAX || ad_shape_numel(&given->shapes[i]) <= 0)
      return ad_fail(AD_INVALID, "%s: the shape of operand %zu has no elements", site, i + 1);
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

/* Runs the trial. `fills` is the record's field; UINT64_MAX if the record is not known before the operation is
 * recorded. */
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
