/* Makes mutants and collects the result of each. Mutants in the record are tried here, on backend dry; mutants in the
 * execution are tried on ranks. If a mutant makes its ranks end, new ranks are started for the remaining mutants. */
#include "check/mutants.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"

const char *ad_killed_by_name(ad_killed_by killed_by) {
  static const char *const names[] = {"none", "type",      "number",         "protocol", "bits",
                                      "plan", "no_effect", "not_applicable", "untried"};
  return names[killed_by];
}

size_t ad_mutants_survivors(const ad_mutants *mutants) {
  size_t survivors = 0;
  for (size_t i = 0; i < mutants->count; i++) survivors += mutants->list[i].killed_by == AD_KILLED_BY_NONE;
  return survivors;
}

size_t ad_mutants_untried(const ad_mutants *mutants, int of_dtype) {
  size_t untried = 0;
  for (size_t i = 0; i < mutants->count; i++) {
    const ad_mutant *mutant = &mutants->list[i];
    untried += mutant->killed_by == AD_KILLED_BY_UNTRIED && ad_mutant_is_of_dtype(mutant) == of_dtype;
  }
  return untried;
}

size_t ad_mutants_effective(const ad_mutants *mutants) {
  size_t effective = 0;
  for (size_t i = 0; i < mutants->count; i++) {
    ad_killed_by killed_by = mutants->list[i].killed_by;
    effective += killed_by == AD_KILLED_BY_NUMBER || killed_by == AD_KILLED_BY_PROTOCOL ||
                 killed_by == AD_KILLED_BY_BITS || killed_by == AD_KILLED_BY_PLAN || killed_by == AD_KILLED_BY_NONE;
  }
  return effective;
}

/* ---- the list of mutants that are tried ---- */

/* Keeps `take` of the derived mutants, drawn with equal probability, in their order. Returns how many it kept. */
static size_t draw_mutants(ad_mutant *list, size_t count, size_t take, uint64_t seed) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    uint64_t left = count - i, wanted = take - kept;
    if (ad_random_bits(seed, 0, i) % left < wanted) list[kept++] = list[i];
  }
  return kept;
}

/* Allocates memory that this process and the ranks share. */
static ad_status map(size_t count, ad_mutants **out) {
  size_t bytes = sizeof(ad_mutants) + count * sizeof(ad_mutant);
  ad_mutants *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return ad_fail(AD_MEMORY, "no memory for %zu mutants", count);
  shared->bytes = bytes;
  *out = shared;
  return AD_OK;
}

static ad_status try_records(const ad_recipe *recipe, ad_mutants *shared) {
  for (size_t i = 0; i < shared->derived; i++)
    if (shared->list[i].mutation.in_record) AD_TRY(ad_derived_try_record(recipe, &shared->list[i]));
  return AD_OK;
}

static ad_status list_mutants(const ad_recipe *recipe, const ad_places *places, int64_t take, uint64_t seed,
                              ad_mutants *shared) {
  shared->places = places->count;
  shared->derived = shared->derived_in_all = ad_derived_list(places, shared->list);
  shared->seed = seed;
  if (take > 0 && (size_t)take < shared->derived)
    shared->derived = draw_mutants(shared->list, shared->derived, (size_t)take, seed);
  shared->count = shared->derived + ad_known_list(shared->list + shared->derived);
  if (recipe->train.leaves) shared->count += ad_known_list_of_leaves(shared->list + shared->count);
  return try_records(recipe, shared);
}

ad_status ad_mutants_create(const ad_recipe *recipe, int64_t take, uint64_t seed, ad_mutants **out) {
  ad_places places;
  ad_mutants *shared = NULL;
  AD_TRY(ad_derived_places(recipe, &places));
  ad_status status = map(ad_derived_list(&places, NULL) + ad_known_list(NULL) + ad_known_list_of_leaves(NULL), &shared);
  if (!status) status = list_mutants(recipe, &places, take, seed, shared);
  ad_places_release(&places);
  if (status)
    ad_mutants_destroy(shared);
  else
    *out = shared;
  return status;
}

void ad_mutants_destroy(ad_mutants *mutants) {
  if (mutants) munmap(mutants, mutants->bytes);
}

/* ---- starting new ranks for each mutant ---- */

static int try_on_rank(ad_comm *comm, void *context) {
  ad_status status = ad_trials(comm, context);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

ad_status ad_mutant_killed_by_end(const ad_launch_result *launched, ad_status status, ad_mutant *mutant) {
  if (status == AD_INTERRUPTED) return status;
  switch (launched->status) {
    case AD_TYPE:
      mutant->killed_by = AD_KILLED_BY_TYPE;
      break;
    case AD_NUMBER:
      mutant->killed_by = AD_KILLED_BY_NUMBER;
      break;
    case AD_MISMATCH:
    case AD_CYCLE:
    case AD_RANK_LEFT:
      mutant->killed_by = AD_KILLED_BY_PROTOCOL;
      break;
    default:
      return ad_fail(status, "%s: %s", mutant->name, launched->message);
  }
  snprintf(mutant->message, sizeof mutant->message, "%.*s", (int)sizeof mutant->message - 1, launched->message);
  return AD_OK;
}

/* Starts ranks until every mutant has been tried; each time, the new ranks begin with the first mutant not yet
 * tried. */
static ad_status try_in_world(const ad_trial_job *job, int64_t ranks) {
  ad_launch_options options = {
      .size = sizeof options, .ranks = ranks, .function = try_on_rank, .context = (void *)(uintptr_t)job};
  ad_mutants *shared = job->mutants;
  shared->next = 0;
  while (shared->next < shared->count) {
    ad_launch_result launched = {.size = sizeof launched};
    size_t began = shared->next;
    shared->clean = -1;
    ad_status status = ad_launch(&options, &launched);
    if (!status) return AD_OK;
    if (shared->clean < 0) /* the ranks ended before any mutant was made */
      return ad_fail(launched.status ? launched.status : status, "%s",
                     launched.message[0] ? launched.message : ad_last_error());
    AD_TRY(ad_mutant_killed_by_end(&launched, status, &shared->list[shared->next]));
    shared->next = shared->next > began ? shared->next + 1 : began + 1;
  }
  return AD_OK;
}

/* Returns 1 if any known bug in dtypes can have an effect in this run. Marks the bugs that cannot as not applicable. */
static int some_are_of_dtype(ad_mutants *shared) {
  int some = 0;
  for (size_t i = shared->derived; i < shared->count; i++) {
    ad_mutant *mutant = &shared->list[i];
    some |= ad_mutant_is_of_dtype(mutant) && ad_known_shows(mutant, shared->facts);
  }
  return some;
}

ad_status ad_mutants_try(const ad_recipe *recipe, const ad_check_options *options, ad_check_result *result,
                         ad_mutants *shared) {
  ad_check_options wide = *options, own = *options;
  int64_t ranks = 0;
  wide.dtype = AD_F64;
  wide.recipe_dtype = 0;
  own.recipe_dtype = 1;
  AD_TRY(ad_recipe_world(recipe, &ranks));
  ad_trial_job job = {.result = {.recipe = recipe, .options = &wide, .steps = 1, .result = result, .quiet = 1},
                      .mutants = shared};
  AD_TRY(try_in_world(&job, ranks));
  if (some_are_of_dtype(shared)) {
    job.result.options = &own;
    job.of_dtype = 1;
    AD_TRY(try_in_world(&job, ranks));
  }
  return AD_OK;
}
