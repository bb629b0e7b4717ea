/* Groups of parameters whose gradients are reduced in another way than a reducer's options say. Groups with the same
 * settings count as the first of them, so that their gradients share buckets. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "reduce/reducer.h"

static const size_t DEFAULT_BUCKET_BYTES = (size_t)25 << 20;

/* ---- taking the options ---- */

static ad_status refuse_sync(size_t group, size_t microbatch, ad_sync sync, const char *why) {
  return ad_fail(AD_INVALID, "the reducer's group %zu has `sync` %d in microbatch %zu, but %s", group, (int)sync,
                 microbatch, why);
}

static ad_status check_sync(const ad_reducer_group *given, size_t group) {
  for (size_t m = 0; m < given->sync_count; m++) {
    ad_sync sync = given->sync[m];
    if ((unsigned)sync > AD_SYNC_ALL)
      return refuse_sync(group, m, sync, "it must be AD_SYNC_NONE, AD_SYNC_SHARD or AD_SYNC_ALL");
    if (m + 1 == given->sync_count && sync != AD_SYNC_ALL)
      return refuse_sync(group, m, sync, "the last microbatch of a step must have AD_SYNC_ALL");
    if (sync == AD_SYNC_NONE && given->reuses)
      return refuse_sync(group, m, sync,
                         "a group that reuses memory cannot keep gradients that are not sent; set its `reuses` to 0");
  }
  return AD_OK;
}

static ad_status take_group(const ad_reducer *reducer, const ad_reducer_group *given, size_t group,
                            ad_reduced_group *out) {
  *out = (ad_reduced_group){.bucket_bytes = given->bucket_bytes ? given->bucket_bytes : DEFAULT_BUCKET_BYTES,
                            .window = given->window,
                            .reuses = given->reuses != 0,
                            .sync_count = given->sync ? given->sync_count : 0};
  if (!given->sync) return AD_OK;
  if (reducer->options.leaves)
    return ad_fail(AD_INVALID,
                   "the reducer's group %zu has `sync`, but in a reducer with `leaves` one `sync` decides for all "
                   "parameters which rank computes which leaf; set the group's to NULL",
                   group);
  if (!given->sync_count)
    return ad_fail(AD_INVALID, "the reducer's group %zu has a `sync` of 0 microbatches; set it to NULL", group);
  AD_TRY(check_sync(given, group));
  AD_TRY(ad_new(given->sync_count, &out->sync));
  memcpy(out->sync, given->sync, given->sync_count * sizeof *out->sync);
  return AD_OK;
}

static ad_status check_numbers(const ad_reducer_options *options, size_t params) {
  for (size_t i = 0; options->group_of && i < params; i++)
    if (options->group_of[i] > options->group_count)
      return ad_fail(AD_INVALID, "parameter %zu of the reducer is in group %zu, but there are groups 0 to %zu", i,
                     options->group_of[i], options->group_count);
  return AD_OK;
}

static ad_status take_groups(ad_reducer *reducer, const ad_reducer_options *options, const ad_reducer_group *groups) {
  const ad_reducer_group first = {
      .bucket_bytes = options->bucket_bytes, .reuses = options->reuses, .window = options->window};
  AD_TRY(ad_new(options->group_count + 1, &reducer->groups));
  for (size_t g = 0; g <= options->group_count; g++) {
    reducer->group_count++;
    AD_TRY(take_group(reducer, g ? &groups[g - 1] : &first, g, &reducer->groups[g]));
  }
  return AD_OK;
}

ad_status ad_reducer_groups_take(ad_reducer *reducer, const ad_reducer_options *options, size_t params) {
  void *groups;
  if (options->group_count && !options->groups)
    return ad_fail(AD_INVALID, "the reducer's options have `group_count` %zu, but `groups` is NULL",
                   options->group_count);
  AD_TRY(check_numbers(options, params));
  AD_TRY(
      ad_options_take_all(&groups, sizeof *options->groups, options->groups, options->group_count, "ad_reducer_group"));
  ad_status status = take_groups(reducer, options, groups);
  ad_release(groups);
  return status;
}

void ad_reducer_groups_release(ad_reducer *reducer) {
  for (size_t g = 0; g < reducer->group_count; g++) ad_release(reducer->groups[g].sync);
  ad_release(reducer->groups);
}

static int are_same(const ad_reduced_group *a, const ad_reduced_group *b) {
  return a->bucket_bytes == b->bucket_bytes && a->window == b->window && a->reuses == b->reuses &&
         a->sync_count == b->sync_count &&
         (!a->sync_count || !memcmp(a->sync, b->sync, a->sync_count * sizeof *a->sync));
}

size_t ad_reducer_group_first(const ad_reducer *reducer, size_t group) {
  size_t first = 0;
  while (!are_same(&reducer->groups[first], &reducer->groups[group])) first++;
  return first;
}

/* ---- the microbatches of a step ---- */

ad_sync ad_group_sync(const ad_reducer *reducer, size_t group) {
  const ad_reduced_group *of = &reducer->groups[group];
  return of->sync ? of->sync[reducer->microbatches - 1] : reducer->sync;
}

ad_status ad_groups_check_microbatch(const ad_reducer *reducer, size_t microbatch, ad_sync sync, const char *site) {
  for (size_t g = 0; g < reducer->group_count; g++) {
    const ad_reduced_group *of = &reducer->groups[g];
    if (!of->sync && of->reuses && sync == AD_SYNC_NONE)
      return ad_fail(
          AD_INVALID,
          "%s: ad_reducer_begin_microbatch was called with AD_SYNC_NONE, but a reducer that reuses memory "
          "cannot keep gradients that are not sent; create the reducer without `reuses`; nothing was changed",
          site);
    if (!of->sync) continue;
    if (microbatch >= of->sync_count)
      return ad_fail(
          AD_INVALID,
          "%s: ad_reducer_begin_microbatch was called for microbatch %zu, but the `sync` of group %zu has %zu "
          "entries, one for each microbatch of a step; call ad_reducer_finish; nothing was changed",
          site, microbatch, g, of->sync_count);
    if (microbatch + 1 == of->sync_count && sync != AD_SYNC_ALL)
      return ad_fail(AD_INVALID,
                     "%s: ad_reducer_begin_microbatch was called with `sync` %d for microbatch %zu, which is the last "
                     "by the `sync` of group %zu; begin it with AD_SYNC_ALL; nothing was changed",
                     site, (int)sync, microbatch, g);
  }
  return AD_OK;
}

ad_status ad_groups_check_end(const ad_reducer *reducer, const char *site) {
  for (size_t g = 0; g < reducer->group_count; g++) {
    const ad_reduced_group *of = &reducer->groups[g];
    if (of->sync && reducer->microbatches != of->sync_count)
      return ad_fail(AD_INVALID,
                     "%s: ad_reducer_finish was called after %zu microbatches, but the `sync` of group %zu has %zu "
                     "entries, one for each; begin the others before; nothing was changed",
                     site, reducer->microbatches, g, of->sync_count);
  }
  return AD_OK;
}
