/* Decides when a step's addends and sums are copied for a dump, and when the copies are written to files. */
#include "reduce/dump.h"

#include <math.h>
#include <string.h>
#include "array/array.h"
#include "base/environment.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"

/* ---- starting a dump ---- */

static ad_status open_dump(ad_reducer *reducer, const char *folder, ad_dump *dump) {
  AD_TRY(ad_copy_string(folder, &dump->folder));
  AD_TRY(ad_new(reducer->param_count, &dump->params));
  AD_TRY(ad_dump_mesh_find(reducer, &dump->mesh));
  return ad_dump_check_files(reducer);
}

ad_status ad_reducer_dump(ad_reducer *reducer, const char *folder, uint64_t after, int64_t step) {
  AD_NEED(reducer, folder);
  if (reducer->state != AD_BETWEEN_STEPS)
    return ad_fail(AD_INVALID,
                   "ad_reducer_dump was called inside a step, but must be called between steps; nothing was changed");
  if (ad_reducer_has_leaves(reducer))
    return ad_fail(
        AD_INVALID,
        "a step of a reducer with `leaves` cannot be dumped, since files have one addend for each microbatch; "
        "dump a reducer without `leaves`; nothing was changed");
  if (ad_comm_is_dry(reducer->comm) || !reducer->bucket_count) return AD_OK;  // no rank has a gradient
  ad_dump_destroy(reducer);
  AD_TRY(ad_new(1, &reducer->dump));
  *reducer->dump = (ad_dump){.after = reducer->steps + after, .step = step, .norm = NAN};
  ad_status status = open_dump(reducer, folder, reducer->dump);
  if (status) ad_dump_destroy(reducer);
  return status;
}

ad_status ad_dump_from_environment(ad_reducer *reducer) {
  const char *folder = ad_environment_text("ADDEND_DUMP");
  uint64_t step = ad_environment_number("ADDEND_DUMP_STEP", 0);
  ad_status status = folder ? ad_reducer_dump(reducer, folder, step, (int64_t)step) : AD_OK;
  return status ? ad_fail_in(status, "ADDEND_DUMP") : AD_OK;
}

ad_status ad_reducer_divided_by(ad_reducer *reducer, double divisor) {
  AD_NEED(reducer);
  if (!isfinite(divisor) || divisor < 0)
    return ad_fail(AD_INVALID,
                   "the reducer got %g as the number by which a loss is divided, but this number must be finite and at "
                   "least 0; nothing was changed",
                   divisor);
  if (reducer->dump) reducer->dump->divisor = divisor;
  return AD_OK;
}

/* ---- keeping addends and sums for a dump ---- */

static void release_dumped(const ad_reducer *reducer, ad_dump *dump) {
  for (size_t i = 0; dump->params && i < reducer->param_count; i++) {
    ad_release(dump->params[i].values);
    ad_release(dump->params[i].before);
    dump->params[i] = (ad_dumped_param){0};
  }
  dump->divisor = 0;
}

/* Returns 1 if the step was lost to an error. That error is reported anyway, so a missing dump needs no warning. */
static int is_lost(const ad_reducer *reducer) {
  return reducer->state == AD_SUMS_LOST || ad_comm_health(reducer->comm) != AD_OK;
}

void ad_dump_end(ad_reducer *reducer) {
  const ad_dump *dump = reducer->dump;
  if (dump && !dump->has_sums && !is_lost(reducer) && !ad_dump_rank(reducer))
    ad_log(AD_LOG_WARNING,
           "nothing was dumped to %s, because the run ended before step %lld; dump an earlier step, or run longer",
           dump->folder, (long long)dump->step);
  ad_dump_destroy(reducer);
}

void ad_dump_destroy(ad_reducer *reducer) {
  ad_dump *dump = reducer->dump;
  if (!dump) return;
  release_dumped(reducer, dump);
  ad_release(dump->params);
  ad_release(dump->folder);
  ad_release(dump);
  reducer->dump = NULL;
}

static int is_in_flight(const ad_reducer *reducer) {
  return reducer->dump && reducer->dump->in_flight && !reducer->dump->has_sums;
}

static ad_status copy(const void *values, size_t bytes, void **out) {
  AD_TRY(ad_new_bytes(bytes, 1, out));
  if (bytes) memcpy(*out, values, bytes);
  return AD_OK;
}

/* If a backward may add to the parameter's values in its bucket in place: copies these values before the backward. The
 * addend is later computed as the values after the backward minus this copy. */
static ad_status keep_sum(const ad_reducer *reducer, size_t i) {
  const ad_reduced_param *param = &reducer->params[i];
  if (!param->filled || !ad_reducer_writes_in_place(reducer, i)) return AD_OK;
  const ad_array *target = ad_bucket_target(&reducer->buckets[param->bucket]);
  return copy(ad_param_in(param, target), param->numel * ad_dtype_size(target->dtype),
              &reducer->dump->params[i].before);
}

ad_status ad_dump_begin_microbatch(ad_reducer *reducer, int begins_step) {
  if (begins_step && reducer->dump && reducer->dump->has_sums) ad_dump_destroy(reducer);
  ad_dump *dump = reducer->dump;
  if (dump && begins_step) {
    dump->in_flight = reducer->steps == dump->after;
    dump->microbatch = -1;
  }
  if (!is_in_flight(reducer)) return AD_OK;
  release_dumped(reducer, dump);
  dump->microbatch++;
  for (size_t i = 0; i < reducer->param_count; i++) AD_TRY(keep_sum(reducer, i));
  return AD_OK;
}

static void subtract(void *values, const void *before, ad_dtype dtype, size_t numel) {
  size_t size = ad_dtype_size(dtype);
  for (size_t i = 0; i < numel; i++) {
    double now, then;
    ad_cast(&now, AD_F64, (const char *)values + i * size, dtype, 1);
    ad_cast(&then, AD_F64, (const char *)before + i * size, dtype, 1);
    now -= then;
    ad_cast((char *)values + i * size, dtype, &now, AD_F64, 1);
  }
}

ad_status ad_dump_addend(ad_reducer *reducer, size_t param, const ad_array *grad) {
  if (!is_in_flight(reducer)) return AD_OK;
  const ad_reduced_param *p = &reducer->params[param];
  ad_dumped_param *kept = &reducer->dump->params[param];
  AD_TRY(copy(grad->data, p->numel * ad_dtype_size(grad->dtype), &kept->values));
  kept->dtype = grad->dtype;
  int in_place = grad->data == ad_param_in(p, ad_bucket_target(&reducer->buckets[p->bucket]));
  if (kept->before && in_place) subtract(kept->values, kept->before, kept->dtype, p->numel);
  return AD_OK;
}

/* ---- writing the dump of a step ---- */

ad_status ad_dump_end_microbatch(ad_reducer *reducer) {
  return is_in_flight(reducer) ? ad_dump_write_addends(reducer) : AD_OK;
}

ad_status ad_dump_sums(ad_reducer *reducer) {
  if (!is_in_flight(reducer)) return AD_OK;
  AD_TRY(ad_dump_write_sums(reducer));
  release_dumped(reducer, reducer->dump);
  reducer->dump->has_sums = 1;
  return AD_OK;
}

ad_status ad_reducer_reported(ad_reducer *reducer, double norm) {
  AD_NEED(reducer);
  if (reducer->state != AD_BETWEEN_STEPS)
    return ad_fail(
        AD_INVALID,
        "ad_reducer_reported was called inside a step, but must be called between steps; nothing was changed");
  if (!reducer->dump || !reducer->dump->has_sums || !isfinite(norm)) return AD_OK;
  reducer->dump->norm = norm;
  return ad_dump_write_sums(reducer);
}
