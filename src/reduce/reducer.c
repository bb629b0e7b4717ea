/* The reducer as its users see it: creation, the steps and microbatches, results. Buckets are laid out in bucket.c and
 * summed in launch.c; what ranks must agree on is compared in roster.c. */
#include <math.h>
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/kernels.h"
#include "base/memory.h"
#include "base/switches.h"
#include "reduce/contract.h"
#include "reduce/reducer.h"

/* ---- creation ---- */

static const size_t DEFAULT_BUCKET_BYTES = (size_t)25 << 20;

static ad_status check_name(const ad_param_spec *params, size_t index) {
  const char *name = params[index].name;
  if (!name || !name[0]) return ad_fail(AD_INVALID, "reducer: parameter %zu has no name", index);
  for (size_t i = 0; i < index; i++) {
    if (!strcmp(params[i].name, name)) {
      return ad_fail(AD_INVALID, "reducer: parameters %zu and %zu are both named `%s`; names are unique", i, index,
                     name);
    }
  }
  return AD_OK;
}

static ad_status take_param(ad_reducer *reducer, const ad_param_spec *spec, ad_reduced_param *param) {
  AD_TRY(ad_copy_string(spec->name, &param->name));
  param->shape = spec->shape;
  param->layout = spec->layout;
  param->storage = spec->storage;
  param->gradient = ad_layout_dual(&spec->layout);
  param->contract = spec->contract;
  ad_status status = ad_contract_complete(&param->contract);
  if (!status) status = ad_contract_check_bucket(&param->contract);
  if (status) return ad_fail_in(status, "parameter `%s`", spec->name);
  int64_t rank = ad_comm_rank(reducer->comm);
  if (!ad_mesh_has_rank(spec->layout.mesh, rank)) {
    return ad_fail(AD_INVALID, "parameter `%s`: rank %lld is not on its mesh \"%s\"", spec->name, (long long)rank,
                   ad_mesh_text(spec->layout.mesh));
  }
  ad_shape local = ad_layout_local_shape(&spec->layout, &spec->shape, rank);
  param->numel = (size_t)ad_shape_numel(&local);
  return AD_OK;
}

static ad_status take_options(const ad_reducer_options *options, ad_reducer *reducer) {
  if (options) {
    if (!options->size || options->size > sizeof *options) {
      return ad_fail(AD_INVALID, "reducer: options.size is %zu; set it to sizeof(ad_reducer_options), %zu",
                     options->size, sizeof *options);
    }
    memcpy(&reducer->options, options, options->size);
  }
  if (!reducer->options.bucket_bytes) reducer->options.bucket_bytes = DEFAULT_BUCKET_BYTES;
  return AD_OK;
}

static ad_status fill(ad_reducer *reducer, const ad_param_spec *params, size_t count,
                      const ad_reducer_options *options) {
  AD_TRY(take_options(options, reducer));
  AD_TRY(ad_new(count, &reducer->params));
  AD_TRY(ad_new(count, &reducer->results));
  for (size_t i = 0; i < count; i++) {
    AD_TRY(check_name(params, i));
    reducer->param_count++;
    reducer->results[i] = &reducer->params[i].result;
    AD_TRY(take_param(reducer, &params[i], &reducer->params[i]));
  }
  AD_TRY(ad_buckets_build(reducer));
  AD_TRY(ad_buckets_allocate(reducer));
  return ad_rosters_build(reducer);
}

ad_status ad_reducer_create(ad_comm *comm, const ad_param_spec *params, size_t count, const ad_reducer_options *options,
                            ad_reducer **out) {
  ad_reducer *reducer;
  AD_TRY(ad_new(1, &reducer));
  reducer->comm = comm;
  ad_status status = fill(reducer, params, count, options);
  if (status) {
    ad_reducer_destroy(reducer);
    return status;
  }
  *out = reducer;
  return AD_OK;
}

void ad_reducer_destroy(ad_reducer *reducer) {
  if (!reducer) return;
  ad_buckets_release(reducer);
  ad_rosters_release(reducer);
  for (size_t i = 0; i < reducer->param_count; i++) ad_release(reducer->params[i].name);
  ad_release(reducer->params);
  ad_release(reducer->results);
  ad_release(reducer);
}

/* ---- a step ---- */

static void begin_step(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->param_count; i++) {
    reducer->params[i].present = 0;
    reducer->params[i].filled = 0;
  }
  for (size_t i = 0; i < reducer->bucket_count; i++) reducer->buckets[i].has_earlier = 0;
}

/* Makes room for addends again: the memory of a bucket that was reduced holds none. */
static void begin_pending(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    reducer->buckets[i].sum.layout = reducer->buckets[i].pending;
    reducer->buckets[i].launched = 0;
  }
  reducer->launched = 0;
}

static ad_status keep_reduced(ad_reducer *reducer, ad_bucket *bucket) {
  ad_array *earlier = &bucket->earlier;
  if (!earlier->data && !ad_comm_is_dry(reducer->comm)) {
    AD_TRY(ad_array_create(reducer->comm, earlier->dtype, &earlier->shape, &bucket->reduced, earlier));
  }
  if (bucket->has_earlier) return ad_array_add(earlier, &bucket->sum, AD_HERE);
  if (earlier->data) ad_copy(earlier->data, bucket->sum.data, ad_array_bytes(earlier));
  bucket->has_earlier = 1;
  return AD_OK;
}

/* A microbatch that was fully reduced is followed by another: its sums step aside. */
static ad_status set_reduced_aside(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    AD_TRY(ad_bucket_complete(reducer, i));
    AD_TRY(keep_reduced(reducer, &reducer->buckets[i]));
  }
  for (size_t i = 0; i < reducer->param_count; i++) reducer->params[i].filled = 0;
  begin_pending(reducer);
  return AD_OK;
}

static ad_status need_state(const ad_reducer *reducer, ad_reducer_state state, const char *call, const char *expected) {
  if (reducer->state == state) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "reducer: %s %s; a step is begin_microbatch, add for each gradient, end_microbatch, and finish after the last",
      call, expected);
}

ad_status ad_reducer_begin_microbatch(ad_reducer *reducer, ad_sync sync) {
  if (reducer->state == AD_IN_MICROBATCH)
    return need_state(reducer, AD_BETWEEN_STEPS, "begin_microbatch", "inside a microbatch");
  if (reducer->state == AD_BETWEEN_STEPS) {
    if (!reducer->steps) AD_TRY(ad_rosters_compare_lists(reducer));
    begin_step(reducer);
    begin_pending(reducer);
  } else if (reducer->sync == AD_SYNC_ALL) {
    AD_TRY(set_reduced_aside(reducer));
  }
  for (size_t i = 0; i < reducer->param_count; i++) {
    reducer->params[i].arrived = 0;
    if (ad_switched(AD_SWITCH_LAST_MICROBATCH)) reducer->params[i].filled = 0;
  }
  for (size_t i = 0; i < reducer->bucket_count; i++) reducer->buckets[i].arrived = 0;
  reducer->sync = sync;
  reducer->state = AD_IN_MICROBATCH;
  return AD_OK;
}

static ad_status check_param(const ad_reducer *reducer, size_t param, const char *call) {
  AD_TRY(need_state(reducer, AD_IN_MICROBATCH, call, "outside a microbatch"));
  if (param >= reducer->param_count) {
    return ad_fail(AD_INVALID, "reducer: %s of parameter %zu; there are %zu", call, param, reducer->param_count);
  }
  if (!reducer->params[param].arrived) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "reducer: %s of `%s`, whose gradient of this microbatch is there already; hand in the sum of its uses once", call,
      reducer->params[param].name);
}

ad_status ad_reducer_target(ad_reducer *reducer, size_t param, ad_array *out, int *adds) {
  AD_TRY(check_param(reducer, param, "target"));
  const ad_reduced_param *p = &reducer->params[param];
  ad_array target = ad_array_describe(reducer->comm, p->result.dtype, &p->shape, &p->gradient);
  if (p->contract.raw || p->contract.grad == p->result.dtype) target.data = p->result.data;
  *out = target;
  *adds = p->filled;
  return AD_OK;
}

static ad_status check_grad(const ad_reducer *reducer, const ad_reduced_param *param, const ad_array *grad,
                            const char *site) {
  char have[160], want[160], of[160];
  if (!ad_layout_equal(&grad->layout, &param->gradient)) {
    return ad_fail(
        AD_TYPE, "%s: reducer: the gradient of `%s` is \"%s\"; the parameter is \"%s\", so it must be \"%s\"", site,
        param->name, ad_layout_print(&grad->layout, have, sizeof have), ad_layout_print(&param->layout, of, sizeof of),
        ad_layout_print(&param->gradient, want, sizeof want));
  }
  if (grad->scale) {
    return ad_fail(AD_TYPE, "%s: reducer: the gradient of `%s` is stored times 2^-%d; hand it in unscaled", site,
                   param->name, grad->scale);
  }
  if (!ad_shape_equal(&grad->shape, &param->shape)) {
    return ad_fail(AD_INVALID, "%s: reducer: the gradient of `%s` has shape %s, the parameter %s", site, param->name,
                   ad_shape_print(&grad->shape, have, sizeof have), ad_shape_print(&param->shape, want, sizeof want));
  }
  if (!ad_dtype_is_float(grad->dtype)) {
    return ad_fail(AD_INVALID, "%s: reducer: the gradient of `%s` is %s, which is no floating dtype", site, param->name,
                   ad_dtype_name(grad->dtype));
  }
  const ad_contract *contract = &param->contract;
  if (contract->raw && contract->grad && contract->grad != grad->dtype) {
    return ad_fail(AD_TYPE, "%s: reducer: the gradient of `%s` is %s; its contract is raw and says that it comes in %s",
                   site, param->name, ad_dtype_name(grad->dtype), ad_dtype_name(contract->grad));
  }
  return ad_array_check(reducer->comm, grad, param->name, site);
}

/* Law 8: the producer's dtype to the gradient dtype, then to the bucket's, there added in the accumulate dtype. */
static void bring(const ad_reduced_param *param, const ad_array *grad) {
  enum { BLOCK = 1024 };
  ad_dtype via = param->contract.raw ? grad->dtype : param->contract.grad, to = param->result.dtype;
  double block[BLOCK];
  const char *from = grad->data;
  char *at = param->result.data;
  for (size_t done = 0; done < param->numel; done += BLOCK) {
    size_t count = param->numel - done < BLOCK ? param->numel - done : BLOCK;
    const void *brought = from;
    if (via != grad->dtype) {
      ad_cast(block, via, from, grad->dtype, count);
      brought = block;
    }
    if (param->filled) {
      ad_accumulate(at, to, brought, via, 1, count);
    } else {
      ad_cast(at, to, brought, via, count);
    }
    from += count * ad_dtype_size(grad->dtype);
    at += count * ad_dtype_size(to);
  }
}

ad_status ad_reducer_add(ad_reducer *reducer, size_t param, const ad_array *grad, const char *site) {
  AD_TRY(check_param(reducer, param, "add"));
  ad_reduced_param *p = &reducer->params[param];
  AD_TRY(check_grad(reducer, p, grad, site));
  if (grad->data && grad->data != p->result.data) bring(p, grad);
  p->filled = 1;
  p->arrived = 1;
  p->present++;
  reducer->buckets[p->bucket].arrived++;
  return reducer->sync == AD_SYNC_ALL ? ad_buckets_launch_ready(reducer, 0) : AD_OK;
}

ad_status ad_reducer_end_microbatch(ad_reducer *reducer) {
  AD_TRY(need_state(reducer, AD_IN_MICROBATCH, "end_microbatch", "outside a microbatch"));
  if (reducer->sync == AD_SYNC_ALL) AD_TRY(ad_buckets_launch_ready(reducer, 1));
  reducer->state = AD_BETWEEN_MICROBATCHES;
  return AD_OK;
}

ad_status ad_reducer_finish(ad_reducer *reducer) {
  AD_TRY(need_state(reducer, AD_BETWEEN_MICROBATCHES, "finish", "without a microbatch that ended"));
  if (reducer->sync != AD_SYNC_ALL) {
    return ad_fail(AD_INVALID,
                   "reducer: finish after a microbatch that did not reduce; the last one needs AD_SYNC_ALL");
  }
  AD_TRY(ad_rosters_post_presence(reducer));
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    ad_bucket *bucket = &reducer->buckets[i];
    AD_TRY(ad_bucket_complete(reducer, i));
    if (bucket->has_earlier) AD_TRY(ad_array_add(&bucket->sum, &bucket->earlier, AD_HERE));
  }
  reducer->state = AD_BETWEEN_STEPS;
  reducer->steps++;
  return ad_rosters_wait_presence(reducer);
}

ad_status ad_reducer_step(ad_reducer *reducer, const ad_array *const *grads) {
  AD_TRY(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  for (size_t i = reducer->param_count; i-- > 0;) {
    if (grads[i]) AD_TRY(ad_reducer_add(reducer, i, grads[i], AD_HERE));
  }
  AD_TRY(ad_reducer_end_microbatch(reducer));
  return ad_reducer_finish(reducer);
}

/* ---- results ---- */

const ad_array *ad_reducer_gradient(const ad_reducer *reducer, size_t param) { return &reducer->params[param].result; }

int ad_reducer_is_absent(const ad_reducer *reducer, size_t param) { return !reducer->params[param].present; }

ad_status ad_reducer_norm(ad_reducer *reducer, const ad_group *group, double *out) {
  double sum;
  AD_TRY(ad_array_square_sum(reducer->comm, group, reducer->results, reducer->param_count, AD_HERE, &sum));
  *out = sqrt(sum);
  return AD_OK;
}
