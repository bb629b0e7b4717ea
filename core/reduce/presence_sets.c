/* Checks that ranks agree on the contents of their buckets: once on the list of parameters, and in every step on the
 * set of parameters that had a gradient, unless all are frozen. If ranks agree, a check costs one tiny collective. If
 * they differ, more collectives find the difference for the message. */
#include <stdio.h>
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "reduce/reducer.h"
#include "mesh/mesh.h"

/* WORDS: one all-reduce with MAX compares two numbers on all ranks. It reduces each number and the number's complement;
 * the maximum of the complements is the complement of the minimum. A number is equal on all ranks if minimum and
 * maximum are equal. */
enum { WORDS = 4, ENTRY_TEXT = 384 };

/* ---- groups of ranks that compare their parameters ---- */

/* Returns how many more words a reducer with leaves compares: two for each parameter. */
static size_t leaf_words(const ad_reducer *reducer) {
  return ad_reducer_has_leaves(reducer) ? 2 * reducer->param_count : 0;
}

static ad_presence_set *find_set(const ad_reducer *reducer, const ad_mesh *mesh) {
  for (size_t i = 0; i < reducer->presence_set_count; i++) {
    if (ad_mesh_equal(reducer->presence_sets[i].group.mesh, mesh)) return &reducer->presence_sets[i];
  }
  return NULL;
}

static ad_status add_set(ad_reducer *reducer, const ad_mesh *mesh) {
  AD_TRY(ad_grow(&reducer->presence_sets, reducer->presence_set_count, reducer->presence_set_count + 1));
  ad_presence_set *set = &reducer->presence_sets[reducer->presence_set_count++];
  set->group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(reducer->comm));
  if (ad_comm_is_dry(reducer->comm)) return AD_OK;
  void *words;
  AD_TRY(ad_comm_alloc(reducer->comm, (WORDS + leaf_words(reducer)) * sizeof *set->words, &words));
  set->words = words;
  return AD_OK;
}

ad_status ad_presence_sets_build(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->param_count; i++) {
    const ad_mesh *mesh = reducer->params[i].layout.mesh;
    if (!find_set(reducer, mesh)) AD_TRY(add_set(reducer, mesh));
    if (!reducer->params[i].frozen) find_set(reducer, mesh)->trains = 1;
  }
  return AD_OK;
}

void ad_presence_sets_release(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->presence_set_count; i++) {
    ad_presence_set *set = &reducer->presence_sets[i];
    // Other ranks may still read these words. If one of them fails, ad_comm_wait returns an error instead of hanging.
    if (set->request.id && ad_comm_wait(reducer->comm, &set->request)) set->request.id = 0;
    if (set->words) ad_comm_free(reducer->comm, set->words);
  }
  ad_release(reducer->presence_sets);
}

/* ---- comparing a number among the ranks of a group ---- */

/* Replaces each of the first `count` words of all ranks by its maximum over these ranks. */
static ad_status post_maximum(ad_reducer *reducer, ad_presence_set *set, size_t count) {
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = set->group, .in = set->words, .out = set->words};
  call.count = count;
  call.dtype = AD_I64;
  call.reduction = AD_MAX;
  call.site = AD_HERE;
  return ad_comm_post(reducer->comm, &call, &set->request);
}

static ad_status post_compare(ad_reducer *reducer, ad_presence_set *set, int64_t count, uint64_t hash) {
  int64_t signed_hash = (int64_t)hash;
  set->words[0] = count;
  set->words[1] = ~count;
  set->words[2] = signed_hash;
  set->words[3] = ~signed_hash;
  return post_maximum(reducer, set, WORDS);
}

static int all_equal(const ad_presence_set *set) {
  return set->words[0] == ~set->words[1] && set->words[2] == ~set->words[3];
}

/* Gathers `bytes` bytes of every member into *out, one member after another. *out is memory of the comm that the caller
 * frees. */
static ad_status gather(ad_reducer *reducer, const ad_presence_set *set, const void *own, size_t bytes, void **out) {
  int64_t members = ad_group_size(&set->group);
  char *memory;
  void *block;
  AD_TRY(ad_comm_alloc(reducer->comm, bytes * (size_t)(members + 1), &block));
  memory = block;
  memcpy(memory + bytes * (size_t)members, own, bytes);
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_GATHER,
                        .group = set->group,
                        .in = memory + bytes * (size_t)members,
                        .out = memory};
  call.count = bytes / sizeof(int32_t);
  call.dtype = AD_I32;
  call.site = AD_HERE;
  ad_status status = ad_comm_run(reducer->comm, &call);
  if (status) {
    ad_comm_free(reducer->comm, block);
    return status;
  }
  *out = block;
  return AD_OK;
}

/* ---- checking that ranks have the same list of parameters ---- */

static int is_on(const ad_presence_set *set, const ad_reduced_param *param) {
  return ad_mesh_equal(set->group.mesh, param->layout.mesh);
}

/* Returns the first parameter on the presence set's mesh whose index is at least *next, or NULL if there is none. Sets
 * *next to the index after the parameter. */
static const ad_reduced_param *next_param(const ad_reducer *reducer, const ad_presence_set *set, size_t *next) {
  while (*next < reducer->param_count) {
    const ad_reduced_param *param = &reducer->params[(*next)++];
    if (is_on(set, param)) return param;
  }
  return NULL;
}

/* Returns the parameter of entry number `entry` of the compared list; NULL for entry 0, and for entries after the last.
 * Entry 0 is the reducer's options; the other entries are the parameters on the presence set's mesh. */
static const ad_reduced_param *entry_param(const ad_reducer *reducer, const ad_presence_set *set, size_t entry) {
  const ad_reduced_param *param = NULL;
  for (size_t seen = 0, next = 0; seen < entry; seen++) param = next_param(reducer, set, &next);
  return param;
}

static void describe_param(const ad_reduced_param *param, ad_text *text) {
  char shape[96], layout[160], storage[160], update[160];
  int differ = !ad_layout_equal(&param->storage, &param->update);
  const ad_precision_policy *policy = &param->policy;
  ad_layout_print(&param->update, update, sizeof update);
  ad_text_add(text, "`%s` %s%s layout \"%s\" storage \"%s\"%s%s%s param %s grad %s%s reduce %s accumulate %s",
              param->name, param->frozen ? "frozen " : "", ad_shape_print(&param->shape, shape, sizeof shape),
              ad_layout_print(&param->layout, layout, sizeof layout),
              ad_layout_print(&param->storage, storage, sizeof storage), differ ? " update \"" : "",
              differ ? update : "", differ ? "\"" : "", ad_dtype_name(policy->param), policy->raw ? "raw " : "",
              policy->grad ? ad_dtype_name(policy->grad) : "of any dtype", ad_dtype_name(policy->reduce),
              ad_dtype_name(policy->accumulate));
}

/* Describes the rounds of a reducer with leaves. A hash represents their `sync` values, because there may be many
 * rounds. */
static void describe_rounds(const ad_leaf_deal *deal, ad_text *text) {
  uint64_t hash = 0;
  for (int64_t round = 0; round < deal->rounds; round++)
    hash = ad_random_bits(hash, (uint64_t)deal->sync[round], (uint64_t)round);
  ad_text_add(text, " leaves %lld rounds %lld sync of hash %016llx", (long long)deal->leaves, (long long)deal->rounds,
              (unsigned long long)hash);
}

static void describe_group(const ad_reduced_group *group, ad_text *text) {
  uint64_t hash = 0;
  for (size_t m = 0; m < group->sync_count; m++) hash = ad_random_bits(hash, (uint64_t)group->sync[m], m);
  ad_text_add(text, " bucket_bytes %zu reuses %d window %zu", group->bucket_bytes, group->reuses, group->window);
  if (group->sync) ad_text_add(text, " sync of hash %016llx", (unsigned long long)hash);
}

/* Describes an entry of the list in words, for a message. `param` is NULL if the list has no entry of this number. */
static void describe_entry(const ad_reducer *reducer, const ad_reduced_param *param, size_t entry,
                           char buffer[ENTRY_TEXT]) {
  ad_text text = ad_text_on(buffer, ENTRY_TEXT);
  if (!entry) {
    ad_text_add(&text, "bucket_bytes %zu", reducer->groups[0].bucket_bytes);
    if (ad_reducer_has_leaves(reducer)) describe_rounds(&reducer->leaves.deal, &text);
  } else if (param) {
    describe_param(param, &text);
    if (param->group) describe_group(&reducer->groups[param->group], &text);
  } else {
    ad_text_add(&text, "no parameter");
  }
}

static size_t entry_count(const ad_reducer *reducer, const ad_presence_set *set) {
  size_t count = 1;
  for (size_t i = 0; i < reducer->param_count; i++) count += (size_t)is_on(set, &reducer->params[i]);
  return count;
}

/* Computes the hash of each entry of the compared list. */
static void hash_entries(const ad_reducer *reducer, const ad_presence_set *set, uint64_t *hashes, size_t entries) {
  char text[ENTRY_TEXT];
  for (size_t i = 0, next = 0; i < entries; i++) {
    describe_entry(reducer, i ? next_param(reducer, set, &next) : NULL, i, text);
    hashes[i] = ad_random_stream(text);
  }
}

static ad_status hash_list(const ad_reducer *reducer, const ad_presence_set *set, size_t entries, uint64_t *out) {
  uint64_t *hashes, hash = 0;
  AD_TRY(ad_new(entries, &hashes));
  hash_entries(reducer, set, hashes, entries);
  for (size_t i = 0; i < entries; i++) hash = ad_random_bits(hash, hashes[i], i);
  ad_release(hashes);
  *out = hash;
  return AD_OK;
}

/* Returns the first entry whose hash differs between members, or `entries` if no hash differs. */
static size_t first_difference(const uint64_t *hashes, size_t entries, int64_t members) {
  for (size_t entry = 0; entry < entries; entry++) {
    for (int64_t member = 1; member < members; member++) {
      if (hashes[(size_t)member * entries + entry] != hashes[entry]) return entry;
    }
  }
  return entries;
}

static ad_status find_list_difference(ad_reducer *reducer, const ad_presence_set *set, size_t entries, size_t *out) {
  uint64_t *own, *all;
  void *gathered;
  AD_TRY(ad_new(entries, &own));
  hash_entries(reducer, set, own, entries);
  ad_status status = gather(reducer, set, own, entries * sizeof *own, &gathered);
  ad_release(own);
  if (status) return status;
  all = gathered;
  *out = first_difference(all, entries, ad_group_size(&set->group));
  ad_comm_free(reducer->comm, gathered);
  return AD_OK;
}

/* Fails with the first difference of the lists in the message. Collective: every rank calls this, and every rank gets
 * the same message. */
static ad_status name_list_difference(ad_reducer *reducer, const ad_presence_set *set) {
  size_t entry;
  AD_TRY(find_list_difference(reducer, set, (size_t)set->words[0], &entry));
  char own[ENTRY_TEXT] = {0};
  describe_entry(reducer, entry_param(reducer, set, entry), entry, own);
  void *gathered;
  AD_TRY(gather(reducer, set, own, sizeof own, &gathered));
  const char *texts = gathered, *other = texts;
  int64_t member = 0;
  while (member + 1 < ad_group_size(&set->group) && !strcmp(other, texts))
    other = texts + (size_t)++member * ENTRY_TEXT;
  char number[48] = "in their options";
  if (entry) snprintf(number, sizeof number, "in parameter %zu", entry - 1);
  ad_fail(AD_MISMATCH,
          "the reducers of the ranks differ (%s): rank %lld has %s, but rank %lld has %s; create the same reducer on "
          "all ranks",
          number, (long long)ad_group_rank(&set->group, 0), texts, (long long)ad_group_rank(&set->group, member),
          other);
  ad_comm_free(reducer->comm, gathered);
  return AD_MISMATCH;
}

ad_status ad_presence_sets_compare_lists(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->presence_set_count; i++) {
    ad_presence_set *set = &reducer->presence_sets[i];
    if (!set->words) continue;
    size_t entries = entry_count(reducer, set);
    uint64_t hash = 0;
    AD_TRY(hash_list(reducer, set, entries, &hash));
    AD_TRY(post_compare(reducer, set, (int64_t)entries, hash));
    AD_TRY(ad_comm_wait(reducer->comm, &set->request));
    if (!all_equal(set)) return name_list_difference(reducer, set);
  }
  return AD_OK;
}

/* ---- checking that ranks have gradients of the same parameters ---- */

/* Returns the number that ranks compare for a parameter: the number of the step's microbatches in which the parameter's
 * gradient arrived and, if its precision policy is raw, the gradient's dtype. */
static int32_t presence(const ad_reduced_param *param) {
  int32_t dtype = param->policy.raw ? (int32_t)param->produced : 0;
  return (int32_t)param->present << 8 | dtype;
}

static int32_t count_in(int32_t presence) { return presence >> 8; }
static ad_dtype dtype_in(int32_t presence) { return (ad_dtype)(presence & 0xff); }

static uint64_t hash_presence(const ad_reducer *reducer, const ad_presence_set *set) {
  uint64_t hash = 0;
  for (size_t i = 0; i < reducer->param_count; i++) {
    if (is_on(set, &reducer->params[i])) hash = ad_random_bits(hash, (uint64_t)presence(&reducer->params[i]), i);
  }
  return hash;
}

/* ---- with leaves: which parameters had a gradient anywhere ---- */

/* Ranks compute different leaves, so they may have gradients of different parameters; but raw gradients of one
 * parameter must have one dtype on all ranks. For each parameter there are two words, which are 0 on a rank without a
 * gradient of the parameter. Their upper halves have the gradient's dtype and the complement of the dtype, their lower
 * halves the rank. So the maxima over all ranks have the largest and the smallest dtype, each with a rank that has the
 * dtype. */
enum { DTYPE_SHIFT = 32 };
static const int64_t RANK_MASK = ((int64_t)1 << DTYPE_SHIFT) - 1, COMPLEMENT = 0xff;

static ad_status post_leaves(ad_reducer *reducer, ad_presence_set *set) {
  int64_t rank = ad_comm_rank(reducer->comm) & RANK_MASK;
  for (size_t i = 0; i < reducer->param_count; i++) {
    int64_t dtype = reducer->params[i].produced;
    set->words[2 * i] = dtype ? dtype << DTYPE_SHIFT | rank : 0;
    set->words[2 * i + 1] = dtype ? (COMPLEMENT - dtype) << DTYPE_SHIFT | rank : 0;
  }
  return post_maximum(reducer, set, leaf_words(reducer));
}

static ad_status take_leaves(ad_reducer *reducer, const ad_presence_set *set) {
  for (size_t i = 0; i < reducer->param_count; i++) {
    ad_reduced_param *param = &reducer->params[i];
    int64_t largest = set->words[2 * i], smallest = set->words[2 * i + 1];
    ad_dtype one = (ad_dtype)(largest >> DTYPE_SHIFT), other = (ad_dtype)(COMPLEMENT - (smallest >> DTYPE_SHIFT));
    param->present = largest != 0;
    if (!param->policy.raw || !param->present || one == other) continue;
    return ad_fail(
        AD_MISMATCH,
        "the raw gradient of `%s` has dtype %s on rank %lld, but %s on rank %lld; produce it in one dtype, or "
        "set `grad` in the precision policy. This step's gradients are unusable, but the reducer can begin "
        "the next step",
        param->name, ad_dtype_name(one), (long long)(largest & RANK_MASK), ad_dtype_name(other),
        (long long)(smallest & RANK_MASK));
  }
  return AD_OK;
}

/* ---- comparing at the end of a step ---- */

ad_status ad_presence_sets_post(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->presence_set_count; i++) {
    ad_presence_set *set = &reducer->presence_sets[i];
    if (!set->words || !set->trains || set->posted) continue;
    if (ad_reducer_has_leaves(reducer))
      AD_TRY(post_leaves(reducer, set));
    else
      AD_TRY(post_compare(reducer, set, (int64_t)reducer->param_count, hash_presence(reducer, set)));
    set->posted = 1;
  }
  return AD_OK;
}

static void list_ranks(ad_text *text, const ad_presence_set *set, const int32_t *seen, size_t params, size_t param,
                       int32_t wanted) {
  for (int64_t member = 0; member < ad_group_size(&set->group); member++) {
    if (seen[(size_t)member * params + param] != wanted) continue;
    ad_text_add(text, " %lld", (long long)ad_group_rank(&set->group, member));
  }
}

static int seen_before(const ad_presence_set *set, const int32_t *seen, size_t params, size_t param, int64_t member) {
  int64_t i = 0;
  while (seen[(size_t)i * params + param] != seen[(size_t)member * params + param]) i++;
  return i < member;
}

/* Fails with a message that lists in how many microbatches the parameter had a gradient on each rank, such as "in 1 on
 * rank 1, in 2 on rank 0 2". For raw gradients the message has their dtypes, too. */
static ad_status fail_presence(const ad_reducer *reducer, const ad_presence_set *set, const int32_t *seen,
                               size_t param) {
  size_t params = reducer->param_count;
  int raw = reducer->params[param].policy.raw;
  char buffer[768];
  ad_text text = ad_text_on(buffer, sizeof buffer);
  for (int64_t member = 0; member < ad_group_size(&set->group); member++) {
    if (seen_before(set, seen, params, param, member)) continue;
    int32_t value = seen[(size_t)member * params + param];
    ad_text_add(&text, "%s in %d", text.used ? "," : "", (int)count_in(value));
    if (raw && dtype_in(value)) ad_text_add(&text, " as %s", ad_dtype_name(dtype_in(value)));
    ad_text_add(&text, " on rank");
    list_ranks(&text, set, seen, params, param, value);
  }
  return ad_fail(AD_MISMATCH,
                 "`%s` had a gradient in a different number of microbatches%s on different ranks:%s. This step's "
                 "gradients are unusable, but the reducer can begin the next step",
                 reducer->params[param].name, raw ? " (or, as its precision policy is raw, in a different dtype)" : "",
                 buffer);
}

static ad_status name_absent(ad_reducer *reducer, const ad_presence_set *set) {
  int32_t *own;
  size_t params = reducer->param_count;
  void *gathered;
  AD_TRY(ad_new(params, &own));
  for (size_t i = 0; i < params; i++) own[i] = is_on(set, &reducer->params[i]) ? presence(&reducer->params[i]) : 0;
  ad_status status = gather(reducer, set, own, params * sizeof *own, &gathered);
  ad_release(own);
  if (status) return status;
  const int32_t *counts = gathered;
  for (size_t param = 0; param < params && !status; param++) {
    for (int64_t member = 1; member < ad_group_size(&set->group) && !status; member++) {
      int differs = counts[(size_t)member * params + param] != counts[param];
      if (differs) status = fail_presence(reducer, set, counts, param);
    }
  }
  ad_comm_free(reducer->comm, gathered);
  return status;
}

ad_status ad_presence_sets_wait(ad_reducer *reducer) {
  ad_status first = AD_OK;
  for (size_t i = 0; i < reducer->presence_set_count; i++) {
    ad_presence_set *set = &reducer->presence_sets[i];
    if (!set->words || !set->trains) continue;
    set->posted = 0;
    AD_TRY(ad_comm_wait(reducer->comm, &set->request));
    if (ad_reducer_has_leaves(reducer))
      first = take_leaves(reducer, set);
    else if (!all_equal(set) && !first)
      first = name_absent(reducer, set);
  }
  return first;
}
