/* Records an operation on trial on a tape, with each rank's parts of the operands; and the message of a trial that
 * fails. */
#include "tensor/trial.h"

#include <stdarg.h>
#include <stdio.h>
#include "array/array.h"
#include "array/part.h"
#include "addend/helpers.h"

static const char site[] = "ad_check_operation";
enum { ADDENDS = 64 }; /* streams of random numbers for the addends of one value */

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

static ad_dtype dtype_of(const ad_trial *trial, const ad_tape *tape, size_t i) {
  if (ad_trial_is_index(trial, i)) return AD_I32;
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
    if (!tape->dry) AD_TRY(ad_trial_part(trial, tape, trial->value[i], AD_TRIAL_OPERANDS + i, &out->array[i]));
    out->x[i] = leaf_of(trial, tape, i, &out->array[i]);
  }
  out->out = trial->apply(tape, out->x, trial->context);
  return AD_OK;
}
