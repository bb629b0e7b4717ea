/* Copies a gradient into its bucket: chooses the array of the bucket to write to, and casts, adds and scales in one
 * pass. Nothing here communicates. */
#include <math.h>
#include <string.h>
#include "array/array.h"
#include "base/roundoff.h"
#include "kernels/kernels.h"
#include "reduce/reducer.h"

int ad_scale_for(ad_dtype dtype, int64_t addends) {
  int scale = 0;
  while (ad_dtype_needs_scale(dtype) && ((int64_t)1 << scale) < addends) scale++;
  return scale;
}

ad_array *ad_bucket_target(ad_bucket *bucket) { return bucket->counters.sends ? &bucket->sent : &bucket->partial; }

void *ad_param_in(const ad_reduced_param *param, const ad_array *array) {
  return array->data ? (char *)array->data + param->offset * ad_dtype_size(array->dtype) : NULL;
}

int ad_param_is_in_place(const ad_reduced_param *param, const ad_bucket *bucket, const ad_array *target) {
  const ad_precision_policy *policy = &param->policy;
  int same = (policy->raw && !policy->grad) || policy->grad == target->dtype;
  return same && !target->scale && (!param->filled || target->data == bucket->partial.data);
}

int ad_reducer_writes_in_place(const ad_reducer *reducer, size_t param) {
  const ad_reduced_param *p = &reducer->params[param];
  ad_bucket *bucket = &reducer->buckets[p->bucket];
  return !ad_leaves_idle(reducer) && ad_param_is_in_place(p, bucket, ad_bucket_target(bucket));
}

/* Number of elements of a block. A pass runs its stages (cast, add, scale) on one block after another, so that a block
 * stays in the L1 cache between the stages. */
enum { BLOCK = 2048 };

typedef struct pass {
  // dtypes: `from`: of the gradient as the backward produced it; `via`: of gradients by the precision policy; `sum`: in
  // which gradients are added; `to`: of the bucket's array
  ad_dtype from, via, sum, to;
  int scale;
  int past;  // 1: writes past the caches (non-temporal stores)
  double brought[BLOCK], added[BLOCK];
} pass;

static const void *bring(pass *p, const void *grad, size_t n) {
  if (p->via == p->from) return grad;
  ad_cast(p->brought, p->via, grad, p->from, n);
  return p->brought;
}

/* to = 2^-scale * (base + value), rounded once. */
static void add_block(pass *p, const void *base, const void *value, void *to, size_t n) {
  ad_reducing how = {.dtype = p->sum, .accumulate = p->sum, .out_dtype = p->to, .shift = -p->scale};
  const void *terms[] = {base, value};
  if (p->via != p->sum) {
    ad_cast(p->added, p->sum, value, p->via, n);
    terms[1] = p->added;
  }
  ad_reduce(&to, 1, terms, 2, &how, n);
}

/* to = 2^-scale * (base + grad); base or grad may be NULL, base may be `to`. */
static void pass_block(pass *p, const void *base, const void *grad, void *to, size_t n) {
  const void *value = grad ? bring(p, grad, n) : base;
  ad_dtype dtype = grad ? p->via : p->sum;
  if (value == to) return;
  if (base && grad)
    add_block(p, base, value, to, n);
  else if (p->past)
    ad_cast_past(to, p->to, value, dtype, ldexp(1, -p->scale), n);
  else if (p->scale)
    ad_cast_scaled(to, p->to, value, dtype, ldexp(1, -p->scale), n);
  else
    ad_cast(to, p->to, value, dtype, n);
}

static int has_stages(const pass *p, int adds) { return p->via != p->from || (adds && p->via != p->sum); }

static void add_elements(pass *p, const char *base, const char *grad, char *to, size_t numel) {
  size_t base_size = ad_dtype_size(p->sum), grad_size = ad_dtype_size(p->from), to_size = ad_dtype_size(p->to);
  size_t block = has_stages(p, base && grad) ? BLOCK : numel;
  for (size_t at = 0; at < numel; at += block) {
    size_t n = numel - at < block ? numel - at : block;
    pass_block(p, base ? base + at * base_size : NULL, grad ? grad + at * grad_size : NULL, to + at * to_size, n);
  }
}

static ad_dtype gradient_dtype(const ad_precision_policy *policy, ad_dtype produced) {
  ad_dtype dtype = policy->raw ? produced : policy->grad;
  ad_inject(AD_INJECT_BROUGHT, &dtype);
  return dtype;
}

void ad_bucket_take(ad_bucket *bucket, const ad_reduced_param *param, const ad_array *grad) {
  ad_array *target = ad_bucket_target(bucket);
  char *to = ad_param_in(param, target);
  const void *base = param->filled ? ad_param_in(param, &bucket->partial) : NULL, *from = grad ? grad->data : NULL;
  if (!to || (grad && !from)) return;
  pass p = {.sum = bucket->partial.dtype, .to = target->dtype, .scale = target->scale, .past = bucket->past_caches};
  p.from = grad ? grad->dtype : p.sum;
  p.via = grad ? gradient_dtype(&param->policy, grad->dtype) : p.sum;
  // Scaling and adding happen in dtype p.via. If there is neither, and p.via is p.to, the first of the two casts (from
  // p.from to p.via, from p.via to p.to) can be left out.
  if (!base && p.via == p.to && !p.scale) p.via = p.from;
  if (!base && !from)
    memset(to, 0, param->numel * ad_dtype_size(target->dtype));
  else
    add_elements(&p, base, from, to, param->numel);
  ad_added_passing added = {to, target->dtype, param->numel};
  if (base && from) ad_inject(AD_INJECT_ADDED, &added);
}

void ad_bucket_take_absent(ad_reducer *reducer, ad_bucket *bucket) {
  for (size_t i = 0; i < bucket->members.count; i++) {
    ad_reduced_param *param = &reducer->params[bucket->members.index[i]];
    if (!param->arrived) ad_bucket_take(bucket, param, NULL);
    param->filled = 0;
  }
}
