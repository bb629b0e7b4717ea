/* The public functions of the reducer: making a reducer, the calls of a step and its microbatches, and results.
 * bucket.c lays gradients out in buckets, launch.c sums the buckets, and presence_sets.c checks that ranks agree on
 * their parameters and gradients. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "array/array.h"
#include "array/packed.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/injection.h"
#include "layout/shown.h"
#include "layout/type.h"
#include "reduce/precision_policy.h"
#include "reduce/dump.h"
#include "reduce/plan.h"
#include "reduce/store.h"

/* ---- creating a reducer ---- */

typedef struct ad_numbered_name {
  const char *name;
  size_t index;
} ad_numbered_name;

static int by_name(const void *a, const void *b) {
  const ad_numbered_name *left = a, *right = b;
  int order = strcmp(left->name, right->name);
  return order ? order : (left->index > right->index) - (left->index < right->index);
}

/* Refuses a sorted list in which a name occurs twice. The message has the repetition with the lowest index. */
static ad_status check_sorted(const ad_numbered_name *names, size_t count) {
  const ad_numbered_name *found = NULL;
  for (size_t i = 1; i < count; i++) {
    int again = !strcmp(names[i - 1].name, names[i].name);
    if (again && (!found || names[i].index < found->index)) found = &names[i];
  }
  if (!found) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the parameters %zu and %zu of the reducer are both named `%s`; give each parameter a name of its own",
                 found[-1].index, found->index, found->name);
}

static ad_status check_names(const ad_param_spec *params, size_t count) {
  ad_numbered_name *names;
  for (size_t i = 0; i < count; i++)
    if (!params[i].name || !params[i].name[0])
      return ad_fail(AD_INVALID, "parameter %zu of the reducer has no name; set its `name`", i);
  AD_TRY(ad_new(count, &names));
  for (size_t i = 0; i < count; i++) names[i] = (ad_numbered_name){params[i].name, i};
  qsort(names, count, sizeof *names, by_name);
  ad_status status = check_sorted(names, count);
  ad_release(names);
  return status;
}

static ad_status check_shape(const ad_param_spec *spec) {
  char text[AD_SHAPE_FAULT_MAX];
  const char *fault = ad_shape_fault(&spec->shape, text, sizeof text);
  return fault ? ad_fail(AD_INVALID, "parameter `%s` of the reducer cannot be stored: %s", spec->name, fault) : AD_OK;
}

/* Refuses storage that is Partial (P). An optimizer's update is not linear, so updating each rank's addend of a
 * parameter is not the same as updating the parameter. */
static ad_status check_stored_type(const ad_param_spec *spec) {
  char axes[96];
  ad_axes partial = ad_layout_axes_of(&spec->storage, AD_P);
  if (!partial) return AD_OK;
  return ad_fail(AD_TYPE,
                 "parameter `%s` of the reducer has storage of type P on `%s`, so its gradient would not be summed; "
                 "storage must be R, I, V or S",
                 spec->name, ad_axes_print(partial, axes, sizeof axes));
}

static ad_status check_spec(const ad_param_spec *spec) {
  if (spec->layout.mesh && spec->storage.mesh) {
    AD_TRY(check_shape(spec));
    return check_stored_type(spec);
  }
  return ad_fail(AD_INVALID,
                 "the reducer got parameter `%s` without a mesh in its `%s`; make layout and storage with "
                 "ad_layout_parse or ad_layout_all, and set `storage` to `layout` if nothing is sharded",
                 spec->name, spec->layout.mesh ? "storage" : "layout");
}

static ad_status copy_name(const char *prefix, const char *name, char **out) {
  size_t size = strlen(prefix) + strlen(name) + 1;
  AD_TRY(ad_new(size, out));
  snprintf(*out, size, "%s%s", prefix, name);
  return AD_OK;
}

static ad_status take_param(ad_reducer *reducer, const ad_param_spec *spec, ad_reduced_param *param) {
  AD_TRY(copy_name(reducer->prefix, spec->name, &param->name));
  param->shape = spec->shape;
  param->layout = spec->layout;
  param->storage = spec->storage;
  param->update = *ad_param_update(spec);
  param->gradient = ad_layout_dual(&spec->layout);
  param->policy = spec->policy;
  param->lasting = spec->lasting;
  param->frozen = spec->frozen;
  size_t index = (size_t)(param - reducer->params);
  param->group = ad_reducer_group_first(reducer, reducer->options.group_of ? reducer->options.group_of[index] : 0);
  ad_status status = ad_precision_policy_complete(&param->policy);
  if (status) return ad_fail_in(status, "parameter `%s`", spec->name);
  if (!param->frozen) ad_inject(AD_INJECT_POLICY, &param->policy);
  int64_t rank = ad_comm_rank(reducer->comm);
  if (!ad_mesh_has_rank(spec->layout.mesh, rank)) {
    return ad_fail(
        AD_INVALID,
        "parameter `%s` was given on rank %lld, which is not on its mesh \"%s\"; pass it only on ranks of the mesh",
        spec->name, (long long)rank, ad_mesh_text(spec->layout.mesh));
  }
  ad_shape local = ad_layout_local_shape(&spec->layout, &spec->shape, rank);
  param->numel = (size_t)ad_shape_numel(&local);
  param->segment = ad_segment_of(&local);
  return AD_OK;
}

static ad_status take_options(const ad_reducer_options *options, size_t params, ad_reducer *reducer) {
  AD_TRY(ad_options_take(&reducer->options, sizeof reducer->options, options, "ad_reducer_options"));
  AD_TRY(ad_copy_string(reducer->options.prefix ? reducer->options.prefix : "", &reducer->prefix));
  AD_TRY(ad_copy_string(reducer->options.files ? reducer->options.files : reducer->prefix, &reducer->files));
  AD_TRY(ad_reducer_groups_take(reducer, &reducer->options, params));
  if (reducer->options.leaves) AD_TRY(ad_leaves_take(reducer, reducer->options.leaves));
  reducer->options.prefix = reducer->options.files = NULL;
  reducer->options.leaves = NULL;
  reducer->options.groups = NULL;
  return AD_OK;
}

static ad_status build_reducer(ad_reducer *reducer, const ad_param_spec *params, size_t count,
                               const ad_reducer_options *options) {
  AD_TRY(take_options(options, count, reducer));
  AD_TRY(check_names(params, count));
  AD_TRY(ad_new(count, &reducer->params));
  AD_TRY(ad_new(count, &reducer->results));
  AD_TRY(ad_new(count, &reducer->names));
  for (size_t i = 0; i < count; i++) {
    AD_TRY(check_spec(&params[i]));
    reducer->param_count++;
    AD_TRY(take_param(reducer, &params[i], &reducer->params[i]));
    if (params[i].frozen) continue;
    reducer->results[reducer->result_count] = &reducer->params[i].result;
    reducer->names[reducer->result_count++] = reducer->params[i].name;
  }
  AD_TRY(ad_buckets_build(reducer));
  if (ad_reducer_has_leaves(reducer)) AD_TRY(ad_leaves_deal(reducer));
  AD_TRY(ad_buckets_allocate(reducer));
  AD_TRY(ad_presence_sets_build(reducer));
  reducer->options.group_of = NULL;
  return ad_dump_from_environment(reducer);
}

ad_status ad_reducer_create(ad_comm *comm, const ad_param_spec *params, size_t count, const ad_reducer_options *options,
                            ad_reducer **out) {
  ad_reducer *reducer;
  AD_NEED(comm, out);
  if (count && !params) {
    return ad_fail(
        AD_INVALID,
        "the reducer was created for %zu parameters, but `params` is NULL; pass one ad_param_spec for each parameter",
        count);
  }
  AD_TRY(ad_new(1, &reducer));
  reducer->comm = comm;
  void *specs;
  ad_status status = ad_options_take_all(&specs, sizeof *params, params, count, "ad_param_spec");
  if (!status) status = build_reducer(reducer, specs, count, options);
  ad_release(specs);
  if (status) {
    ad_reducer_destroy(reducer);
    return status;
  }
  *out = reducer;
  return AD_OK;
}

void ad_reducer_destroy(ad_reducer *reducer) {
  if (!reducer) return;
  ad_dump_end(reducer);
  ad_buckets_release(reducer);
  ad_leaves_release(reducer);
  ad_reducer_groups_release(reducer);
  ad_presence_sets_release(reducer);
  for (size_t i = 0; i < reducer->param_count; i++) ad_release(reducer->params[i].name);
  ad_release(reducer->params);
  ad_release(reducer->results);
  ad_release(reducer->names);
  ad_release(reducer->prefix);
  ad_release(reducer->files);
  ad_release(reducer);
}

/* ---- a step: microbatches, gradients, launching buckets, ending ---- */

static void begin_step(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->param_count; i++) {
    reducer->params[i].present = 0;
    reducer->params[i].filled = 0;
    reducer->params[i].produced = 0;
  }
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    ad_counters_begin_step(&reducer->buckets[i]);
    for (int steps = 0; steps <= 2; steps++) ad_bucket_sums_after(&reducer->buckets[i], steps)->count = 0;
  }
}

static ad_status keep_reduced(ad_reducer *reducer, ad_bucket *bucket) {
  ad_array *earlier = &bucket->earlier;
  if (bucket->counters.has_earlier) return ad_array_add(earlier, &bucket->sum);
  AD_TRY(ad_bucket_keep_earlier(reducer, bucket));
  if (earlier->data) ad_copy(earlier->data, bucket->sum.data, ad_array_bytes(earlier));
  earlier->layout = bucket->sum.layout;
  ad_counters_set_aside(bucket);
  return AD_OK;
}

/* Sets the sums so far aside in `earlier`, of each bucket that the microbatch before reduced completely. Called when
 * another microbatch of the step follows. */
static ad_status set_reduced_aside(ad_reducer *reducer) {
  AD_TRY(ad_buckets_complete(reducer));
  if (ad_reducer_has_leaves(reducer)) return AD_OK;  // with leaves, the sums stay in the bucket's stack
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    ad_bucket *bucket = &reducer->buckets[i];
    if (bucket->counters.sync == AD_SYNC_ALL) AD_TRY(keep_reduced(reducer, bucket));
  }
  return AD_OK;
}

/* Prepares the bucket for a microbatch. With leaves, gives the bucket memory for the leaf. Otherwise, if the microbatch
 * does not send the bucket, gives the bucket memory to accumulate in; if the microbatch sends the bucket, sets the
 * scale that the bucket's addends need. */
static ad_status begin_bucket(ad_reducer *reducer, ad_bucket *bucket) {
  ad_counters_begin_microbatch(bucket, ad_group_sync(reducer, bucket->key.group));
  reducer->sends |= bucket->counters.sends;
  bucket->sent.scale = 0;
  if (ad_reducer_has_leaves(reducer)) return ad_leaf_begin(reducer, bucket);
  if (!bucket->counters.sends) return ad_bucket_keep_partial(reducer, bucket);
  bucket->sent.scale = ad_scale_for(bucket->key.comm_dtype, bucket->counters.unsent * ad_bucket_ranks(&bucket->key, 0));
  return AD_OK;
}

/* The public function that was called, and its call site, for messages. */
typedef struct ad_caller {
  const char *call, *site;
} ad_caller;
#define CALLER(name) ((ad_caller){name, site ? site : AD_NO_SITE})

static ad_status check_reducer(const ad_reducer *reducer, ad_caller by) {
  if (!reducer)
    return ad_fail(AD_INVALID, "%s: ad_reducer_%s was called with a reducer that is NULL", by.site, by.call);
  if (reducer->state != AD_SUMS_LOST) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: ad_reducer_%s was called after another call of this reducer had failed halfway; destroy this "
                 "reducer with ad_reducer_destroy",
                 by.site, by.call);
}

static ad_status need_state(const ad_reducer *reducer, ad_reducer_state state, ad_caller by, const char *expected) {
  AD_TRY(check_reducer(reducer, by));
  if (reducer->state == state) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: ad_reducer_%s was called %s. A step is begin_microbatch, add for each gradient, end_microbatch, "
                 "and finish after the last microbatch; nothing was changed",
                 by.site, by.call, expected);
}

/* Ends a call whose effects cannot be undone: if `status` is an error, the reducer can only be destroyed. */
static ad_status done(ad_reducer *reducer, ad_caller by, ad_status status) {
  if (!status) return AD_OK;
  reducer->state = AD_SUMS_LOST;
  return ad_fail(
      status, "%s: ad_reducer_%s failed, so the sums of this step are lost and the reducer can only be destroyed: %s",
      by.site, by.call, ad_last_error());
}

static ad_status begin_first(ad_reducer *reducer) {
  if (!reducer->steps) AD_TRY(ad_presence_sets_compare_lists(reducer));
  begin_step(reducer);
  return AD_OK;
}

static ad_status check_outside(const ad_reducer *reducer, ad_caller by) {
  AD_TRY(check_reducer(reducer, by));
  return reducer->state == AD_IN_MICROBATCH ? need_state(reducer, AD_BETWEEN_STEPS, by, "inside a microbatch") : AD_OK;
}

static ad_status check_begin(const ad_reducer *reducer, ad_sync sync, ad_caller by) {
  AD_TRY(check_outside(reducer, by));
  if (ad_reducer_has_leaves(reducer)) {
    return ad_fail(
        AD_INVALID,
        "%s: ad_reducer_%s was called, but the reducer was created with `leaves`, so that a step consists of "
        "rounds; begin each with ad_reducer_begin_leaf; nothing was changed",
        by.site, by.call);
  }
  if ((unsigned)sync <= AD_SYNC_ALL)
    return ad_groups_check_microbatch(reducer, reducer->state == AD_BETWEEN_STEPS ? 0 : reducer->microbatches, sync,
                                      by.site);
  return ad_fail(AD_INVALID,
                 "%s: ad_reducer_begin_microbatch was called with `sync` %d, but `sync` must be AD_SYNC_NONE, "
                 "AD_SYNC_SHARD or, in the last microbatch of a step, AD_SYNC_ALL; nothing was changed",
                 by.site, (int)sync);
}

static ad_status begin_microbatch(ad_reducer *reducer, ad_sync sync) {
  int begins_step = reducer->state == AD_BETWEEN_STEPS;
  if (begins_step)
    AD_TRY(begin_first(reducer));
  else
    AD_TRY(set_reduced_aside(reducer));
  reducer->microbatches = begins_step ? 1 : reducer->microbatches + 1;
  reducer->sync = sync;
  reducer->sends = sync != AD_SYNC_NONE;
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    if (begins_step || reducer->buckets[i].counters.sync == AD_SYNC_ALL) {
      ad_counters_begin_sum(&reducer->buckets[i]);
      if (ad_reducer_has_leaves(reducer)) ad_leaves_begin_segment(&reducer->buckets[i]);
    }
    AD_TRY(begin_bucket(reducer, &reducer->buckets[i]));
  }
  for (size_t i = 0; i < reducer->param_count; i++)
    reducer->params[i].arrived = reducer->params[i].comes = reducer->params[i].is_left_out = 0;
  reducer->launched = 0;
  reducer->state = AD_IN_MICROBATCH;
  ad_inject(AD_INJECT_MICROBATCH, reducer);
  return ad_dump_begin_microbatch(reducer, begins_step);
}

ad_status ad_reducer_begin_microbatch_at(ad_reducer *reducer, ad_sync sync, const char *site) {
  ad_caller by = CALLER("begin_microbatch");
  AD_TRY(check_begin(reducer, sync, by));
  return done(reducer, by, begin_microbatch(reducer, sync));
}

/* Refuses to begin a round if the step has no such round, or if `sync` or `leaf` is not that of the round. */
static ad_status check_round(const ad_reducer *reducer, int64_t round, ad_sync sync, int64_t leaf, ad_caller by) {
  const ad_leaf_deal *deal = &reducer->leaves.deal;
  if (!ad_reducer_has_leaves(reducer))
    return ad_fail(AD_INVALID,
                   "%s: ad_reducer_%s was called, but the reducer was created without `leaves`; call "
                   "ad_reducer_begin_microbatch; nothing was changed",
                   by.site, by.call);
  if (round >= deal->rounds)
    return ad_fail(
        AD_INVALID,
        "%s: ad_reducer_%s was called after all %lld rounds of the step; call ad_reducer_finish; nothing was "
        "changed",
        by.site, by.call, (long long)deal->rounds);
  if (sync == deal->sync[round] && leaf == ad_reducer_leaf(reducer, round)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: ad_reducer_%s was called with `sync` %d and leaf %lld, but round %lld has `sync` %d and, on this "
                 "rank, leaf %lld (-1: none); nothing was changed",
                 by.site, by.call, (int)sync, (long long)leaf, (long long)round, (int)deal->sync[round],
                 (long long)ad_reducer_leaf(reducer, round));
}

ad_status ad_reducer_begin_leaf_at(ad_reducer *reducer, ad_sync sync, int64_t leaf, const char *site) {
  ad_caller by = CALLER("begin_leaf");
  AD_TRY(check_outside(reducer, by));
  int64_t round = reducer->state == AD_BETWEEN_STEPS ? 0 : reducer->leaves.rounds;
  AD_TRY(check_round(reducer, round, sync, leaf, by));
  reducer->leaves.rounds = round + 1;
  reducer->leaves.leaf = leaf;
  return done(reducer, by, begin_microbatch(reducer, sync));
}

static ad_status check_trains(const ad_reduced_param *param, ad_caller by) {
  if (!param->frozen) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: ad_reducer_%s was called for `%s`, which is frozen and has no gradient; leave the parameter out, "
                 "or create the reducer with `frozen` 0 in its spec; nothing was changed",
                 by.site, by.call, param->name);
}

static ad_status check_param(const ad_reducer *reducer, size_t param, ad_caller by) {
  AD_TRY(need_state(reducer, AD_IN_MICROBATCH, by, "outside a microbatch"));
  if (param >= reducer->param_count) {
    return ad_fail(
        AD_INVALID,
        "%s: ad_reducer_%s was called for parameter %zu, but the reducer has %zu parameters, numbered from 0", by.site,
        by.call, param, reducer->param_count);
  }
  AD_TRY(check_trains(&reducer->params[param], by));
  if (!reducer->params[param].arrived) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: ad_reducer_%s was called for `%s`, whose gradient was already added in this microbatch; if the "
                 "parameter is used several times, add the sum of its gradients once; nothing was changed",
                 by.site, by.call, reducer->params[param].name);
}

/* Waits until all ranks have read what was sent from the bucket's target, so that new gradients may be written to
 * it. */
static ad_status free_target(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  if (bucket->turn.window >= 0) return ad_slot_claim(reducer, index);
  return ad_bucket_target(bucket)->data == bucket->sent.data ? ad_bucket_settle(reducer, index) : AD_OK;
}

ad_status ad_reducer_target_at(ad_reducer *reducer, size_t param, ad_array *out, int *adds, const char *site) {
  ad_caller by = CALLER("target");
  AD_TRY(check_param(reducer, param, by));
  AD_NEED(out, adds);
  const ad_reduced_param *p = &reducer->params[param];
  ad_bucket *bucket = &reducer->buckets[p->bucket];
  AD_TRY(done(reducer, by, free_target(reducer, p->bucket)));
  const ad_array *target = ad_bucket_target(bucket);
  ad_array described = ad_array_describe(reducer->comm, target->dtype, &p->shape, &p->gradient);
  described.scale = target->scale;
  int in_place = !ad_leaves_idle(reducer) && ad_param_is_in_place(p, bucket, target);
  ad_inject(AD_INJECT_IN_PLACE, &in_place);
  if (in_place) described.data = ad_param_in(p, target);
  *out = described;
  *adds = p->filled;
  return AD_OK;
}

static ad_status refuse_layout(const ad_reduced_param *param, const ad_layout *layout, const char *site) {
  char have[160], want[160], of[160];
  ad_layouts_shown_apart(layout, &param->gradient, have, want, sizeof have);
  return ad_fail(AD_TYPE,
                 "%s: the gradient of `%s` has layout \"%s\", but the parameter has layout \"%s\", so the gradient "
                 "must have layout \"%s\"; describe the gradient with ad_layout_dual of the parameter's layout",
                 site, param->name, have, ad_layout_shown(&param->layout, of, sizeof of), want);
}

static ad_status check_grad(const ad_reducer *reducer, const ad_reduced_param *param, const ad_array *grad,
                            const char *site) {
  char have[160], want[160];
  if (!ad_layout_equal(&grad->layout, &param->gradient)) return refuse_layout(param, &grad->layout, site);
  if (grad->scale) {
    return ad_fail(AD_TYPE,
                   "%s: the gradient of `%s` is stored as the value times 2^-%d; multiply its elements by 2^%d and set "
                   "the scale of the array to 0",
                   site, param->name, grad->scale, grad->scale);
  }
  if (!ad_shape_equal(&grad->shape, &param->shape)) {
    return ad_fail(AD_INVALID, "%s: the gradient of `%s` has shape %s, but the parameter has shape %s", site,
                   param->name, ad_shape_print(&grad->shape, have, sizeof have),
                   ad_shape_print(&param->shape, want, sizeof want));
  }
  if (!ad_dtype_is_float(grad->dtype)) {
    char floats[AD_DTYPES_TEXT];
    return ad_fail(AD_INVALID, "%s: the gradient of `%s` has dtype %s, but must have %s", site, param->name,
                   ad_dtype_name(grad->dtype), ad_dtypes_print(ad_dtype_is_float, NULL, "or", floats));
  }
  const ad_precision_policy *policy = &param->policy;
  if (policy->raw && policy->grad && policy->grad != grad->dtype) {
    return ad_fail(AD_TYPE,
                   "%s: the gradient of `%s` has dtype %s, but the `grad` of its raw precision policy is %s; produce "
                   "the gradient in that dtype, or change `grad`",
                   site, param->name, ad_dtype_name(grad->dtype), ad_dtype_name(policy->grad));
  }
  return ad_array_check(reducer->comm, grad, param->name, site);
}

/* Refuses a raw gradient whose dtype differs from earlier microbatches of the step: raw gradients are summed in the
 * dtype that the backward produces. At the end of the step the ranks compare these dtypes. */
static ad_status check_produced(const ad_reduced_param *param, const ad_array *grad, const char *site) {
  if (!param->policy.raw || !param->produced || param->produced == grad->dtype) return AD_OK;
  return ad_fail(AD_TYPE,
                 "%s: the gradient of `%s` has dtype %s, but had dtype %s in an earlier microbatch of this step. "
                 "Produce a raw gradient in one dtype in all microbatches, or set `grad` in the precision policy",
                 site, param->name, ad_dtype_name(grad->dtype), ad_dtype_name(param->produced));
}

/* Refuses a gradient that lies in a slot but not at its own target. A slot belongs to a bucket only from the first
 * request for a target of one of the bucket's gradients until the bucket is sent. */
static ad_status check_target(const ad_reducer *reducer, const ad_reduced_param *param, const ad_array *grad,
                              const char *site) {
  ad_bucket *bucket = &reducer->buckets[param->bucket];
  if (!ad_slots_have(reducer, grad->data)) return AD_OK;
  if (bucket->turn.slot != AD_NO_SLOT && !bucket->turn.is_sent_off &&
      grad->data == ad_param_in(param, ad_bucket_target(bucket)))
    return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: the gradient of `%s` is in memory that gradients of other buckets use now; call ad_reducer_target in this "
      "microbatch and write the gradient there, or submit the gradient from other memory; nothing was changed",
      site, param->name);
}

/* Refuses a gradient that is NULL or has another layout, shape or dtype than the parameter's gradient. */
static ad_status check_given(const ad_reducer *reducer, size_t param, const ad_array *grad, const char *site) {
  const ad_reduced_param *p = &reducer->params[param];
  if (!grad) {
    return ad_fail(AD_INVALID,
                   "%s: the gradient of `%s` is NULL; do not call ad_reducer_add for a parameter without a gradient",
                   site, p->name);
  }
  if (!grad->layout.mesh) {
    return ad_fail(AD_INVALID, "%s: the gradient of `%s` has no mesh; make the array with ad_array_describe", site,
                   p->name);
  }
  AD_TRY(check_grad(reducer, p, grad, site));
  AD_TRY(check_target(reducer, p, grad, site));
  return check_produced(p, grad, site);
}

static void keep_gradient(ad_bucket *bucket, ad_reduced_param *param, const ad_array *grad) {
  if (grad->data != ad_param_in(param, ad_bucket_target(bucket))) ad_bucket_take(bucket, param, grad);
  param->filled = 1;
  param->present++;
  param->produced = grad->dtype;
}

/* Sends the buckets that are complete, unless the microbatch sends none. */
static ad_status launch_ready(ad_reducer *reducer) {
  return reducer->sends ? ad_buckets_launch_ready(reducer, 0) : AD_OK;
}

static ad_status take_gradient(ad_reducer *reducer, size_t param, const ad_array *grad) {
  ad_reduced_param *p = &reducer->params[param];
  ad_bucket *bucket = &reducer->buckets[p->bucket];
  if (reducer->store) AD_TRY(ad_units_bring(reducer->store, param));
  AD_TRY(free_target(reducer, p->bucket));
  AD_TRY(ad_dump_addend(reducer, param, grad));
  if (!ad_leaves_idle(reducer)) keep_gradient(bucket, p, grad);
  p->arrived = 1;
  ad_counters_arrived(bucket);
  return launch_ready(reducer);
}

void ad_reducer_announce(ad_reducer *reducer, size_t param) {
  if (ad_has(param, reducer->param_count, __func__, "parameter")) reducer->params[param].comes = 1;
}

ad_status ad_reducer_leave_out(ad_reducer *reducer, size_t param) {
  ad_reduced_param *p = &reducer->params[param];
  if (p->frozen || p->comes || p->is_left_out || reducer->state != AD_IN_MICROBATCH) return AD_OK;
  p->is_left_out = 1;
  ad_counters_arrived(&reducer->buckets[p->bucket]);
  return launch_ready(reducer);
}

ad_status ad_reducer_add_at(ad_reducer *reducer, size_t param, const ad_array *grad, const char *site) {
  ad_caller by = CALLER("add");
  AD_TRY(check_param(reducer, param, by));
  AD_TRY(check_given(reducer, param, grad, by.site));
  return done(reducer, by, take_gradient(reducer, param, grad));
}

void ad_reducer_expect(ad_reducer *reducer, size_t param, int count) {
  if (!ad_has(param, reducer->param_count, __func__, "parameter")) return;
  reducer->params[param].expected += count;
  ad_counters_expect(&reducer->buckets[reducer->params[param].bucket], count);
}

/* Refuses to end a microbatch that is reduced completely (with leaves, any round) while gradients that ad_reducer_expect announced have not
 * arrived. */
static ad_status check_expected(const ad_reducer *reducer, ad_caller by) {
  for (size_t i = 0; i < reducer->param_count; i++) {
    const ad_reduced_param *param = &reducer->params[i];
    if (!param->expected) continue;
    int is_reduced = reducer->buckets[param->bucket].counters.sync == AD_SYNC_ALL;
    if (!is_reduced && !ad_reducer_has_leaves(reducer)) continue;
    return ad_fail(AD_INVALID,
                   "%s: ad_reducer_%s was called for %s, but %d gradient%s of `%s` %s still missing; "
                   "call ad_backward_weights for every tape before; nothing was changed",
                   by.site, by.call, ad_reducer_has_leaves(reducer) ? "a leaf" : "the last microbatch", param->expected,
                   param->expected == 1 ? "" : "s", param->name, param->expected == 1 ? "is" : "are");
  }
  return AD_OK;
}

/* Adds the round's leaf to the sums of each bucket that the round does not send. Other ranks may still be reading
 * earlier sums from the memory of the leaf; if the bucket got no gradient in this round, no earlier call has waited for
 * them, so this function does. */
static ad_status keep_leaves(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    if (reducer->buckets[i].counters.sends) continue;
    AD_TRY(ad_bucket_settle(reducer, i));
    AD_TRY(ad_leaf_keep(reducer, &reducer->buckets[i]));
  }
  return AD_OK;
}

ad_status ad_reducer_end_microbatch_at(ad_reducer *reducer, const char *site) {
  ad_caller by = CALLER("end_microbatch");
  AD_TRY(need_state(reducer, AD_IN_MICROBATCH, by, "outside a microbatch"));
  AD_TRY(check_expected(reducer, by));
  if (reducer->sends) AD_TRY(done(reducer, by, ad_buckets_launch_ready(reducer, 1)));
  if (ad_reducer_has_leaves(reducer)) AD_TRY(done(reducer, by, keep_leaves(reducer)));
  AD_TRY(done(reducer, by, ad_dump_end_microbatch(reducer)));
  reducer->state = AD_BETWEEN_MICROBATCHES;
  return AD_OK;
}

static ad_status complete(ad_reducer *reducer) {
  AD_TRY(ad_presence_sets_post(reducer));
  AD_TRY(ad_buckets_complete(reducer));
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    ad_bucket *bucket = &reducer->buckets[i];
    if (bucket->counters.has_earlier) AD_TRY(ad_array_add(&bucket->sum, &bucket->earlier));
  }
  reducer->state = AD_BETWEEN_STEPS;
  reducer->steps++;
  return AD_OK;
}

/* Waits for the comparison of which parameters had a gradient on each rank. If ranks differ, the reducer can still be
 * used for the next step; after an error of the comm, it can only be destroyed. */
static ad_status compare_presence(ad_reducer *reducer, ad_caller by) {
  ad_status status = ad_presence_sets_wait(reducer);
  if (status == AD_MISMATCH && !ad_comm_health(reducer->comm)) return ad_fail_in(status, "%s", by.site);
  return done(reducer, by, status);
}

ad_status ad_reducer_finish_at(ad_reducer *reducer, const char *site) {
  ad_caller by = CALLER("finish");
  AD_TRY(need_state(reducer, AD_BETWEEN_MICROBATCHES, by, "without a microbatch that ended"));
  if (reducer->sync != AD_SYNC_ALL) {
    return ad_fail(AD_INVALID,
                   "%s: ad_reducer_finish was called after a microbatch that did not reduce; begin the last microbatch "
                   "of a step with AD_SYNC_ALL; nothing was changed",
                   by.site);
  }
  AD_TRY(ad_groups_check_end(reducer, by.site));
  AD_TRY(check_expected(reducer, by));
  AD_TRY(done(reducer, by, complete(reducer)));
  AD_TRY(compare_presence(reducer, by));
  return done(reducer, by, ad_dump_sums(reducer));
}

static ad_status check_step(const ad_reducer *reducer, const ad_array *const *grads, ad_caller by) {
  AD_TRY(check_begin(reducer, AD_SYNC_ALL, by));
  if (!grads && reducer->param_count) {
    return ad_fail(AD_INVALID,
                   "%s: ad_reducer_step was called with `grads` NULL, but `grads` must have %zu entries, NULL where a "
                   "parameter has no gradient",
                   by.site, reducer->param_count);
  }
  for (size_t i = 0; i < reducer->param_count; i++) {
    if (!grads[i]) continue;
    AD_TRY(check_trains(&reducer->params[i], by));
    AD_TRY(check_given(reducer, i, grads[i], by.site));
  }
  return AD_OK;
}

ad_status ad_reducer_step_at(ad_reducer *reducer, const ad_array *const *grads, const char *site) {
  AD_TRY(check_step(reducer, grads, CALLER("step")));
  AD_TRY(ad_reducer_begin_microbatch_at(reducer, AD_SYNC_ALL, site));
  for (size_t i = reducer->param_count; i-- > 0;) {
    if (grads[i]) AD_TRY(ad_reducer_add_at(reducer, i, grads[i], site));
  }
  AD_TRY(ad_reducer_end_microbatch_at(reducer, site));
  return ad_reducer_finish_at(reducer, site);
}

/* ---- reading a step's results ---- */

ad_array ad_reducer_describe(const ad_reducer *reducer, size_t param) {
  if (!ad_has(param, reducer->param_count, __func__, "parameter")) return (ad_array){0};
  const ad_reduced_param *p = &reducer->params[param];
  return ad_array_describe(reducer->comm, p->policy.grad, &p->shape, &p->gradient);
}

const ad_array *ad_reducer_gradient(const ad_reducer *reducer, size_t param) {
  if (!ad_has(param, reducer->param_count, __func__, "parameter") || reducer->params[param].frozen) return NULL;
  return &reducer->params[param].result;
}

int ad_reducer_is_absent(const ad_reducer *reducer, size_t param) {
  return !ad_has(param, reducer->param_count, __func__, "parameter") || !reducer->params[param].present;
}

ad_status ad_reducer_norm_at(ad_reducer *reducer, const ad_group *group, double *out, const char *site) {
  ad_caller by = CALLER("norm");
  double sum;
  ad_exact exact;
  AD_TRY(check_reducer(reducer, by));
  AD_NEED(group, out);
  if (ad_reducer_has_leaves(reducer)) {
    AD_TRY(ad_exact_square_sums(reducer->comm, group, reducer->results, reducer->names, reducer->result_count, by.site,
                                &exact, NULL, 1));
    sum = ad_exact_value(&exact);
  } else {
    AD_TRY(ad_square_sums(reducer->comm, group, reducer->results, reducer->names, reducer->result_count, by.site, &sum,
                          NULL, 1));
  }
  *out = sqrt(sum);
  return AD_OK;
}
