/* Plants mistakes and collects what became of them. Mistakes in the record are tried here, on engine dry; mistakes in
 * execution are tried on ranks. A mistake that ends its world ends those ranks, and new ones are started for the
 * rest. */
#include "check/sabotage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/memory.h"
#include "addend/random.h"

const char *ad_caught_name(ad_caught caught) {
  static const char *const names[] = {"none", "type",      "number",    "protocol",
                                      "plan", "no_effect", "unplanted", "untried"};
  return names[caught];
}

size_t ad_sabotages_survivors(const ad_sabotages *sabotages) {
  size_t survivors = 0;
  for (size_t i = 0; i < sabotages->count; i++) survivors += sabotages->list[i].caught == AD_CAUGHT_NONE;
  return survivors;
}

size_t ad_sabotages_untried(const ad_sabotages *sabotages, int of_dtype) {
  size_t untried = 0;
  for (size_t i = 0; i < sabotages->count; i++) {
    const ad_sabotage *sabotage = &sabotages->list[i];
    untried += sabotage->caught == AD_CAUGHT_UNTRIED && ad_sabotage_is_of_dtype(sabotage) == of_dtype;
  }
  return untried;
}

size_t ad_sabotages_effective(const ad_sabotages *sabotages) {
  size_t effective = 0;
  for (size_t i = 0; i < sabotages->count; i++) {
    ad_caught caught = sabotages->list[i].caught;
    effective += caught == AD_CAUGHT_NUMBER || caught == AD_CAUGHT_PROTOCOL || caught == AD_CAUGHT_PLAN ||
                 caught == AD_CAUGHT_NONE;
  }
  return effective;
}

/* ---- the list of mistakes that are tried ---- */

/* Keeps `take` of the derived mistakes, drawn with equal chances, in their order. Returns how many it kept. */
static size_t draw(ad_sabotage *list, size_t count, size_t take, uint64_t seed) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    uint64_t left = count - i, wanted = take - kept;
    if (ad_random_bits(seed, 0, i) % left < wanted) list[kept++] = list[i];
  }
  return kept;
}

/* Memory that this process and the ranks share. */
static ad_status map(size_t count, ad_sabotages **out) {
  size_t bytes = sizeof(ad_sabotages) + count * sizeof(ad_sabotage);
  ad_sabotages *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return ad_fail(AD_MEMORY, "no memory for %zu mutants", count);
  shared->bytes = bytes;
  *out = shared;
  return AD_OK;
}

static ad_status try_records(const ad_recipe *recipe, ad_sabotages *shared) {
  for (size_t i = 0; i < shared->derived; i++)
    if (shared->list[i].planting.in_record) AD_TRY(ad_derived_try_record(recipe, &shared->list[i]));
  return AD_OK;
}

static ad_status fill(const ad_recipe *recipe, const ad_places *places, int64_t take, uint64_t seed,
                      ad_sabotages *shared) {
  shared->places = places->count;
  shared->derived = shared->derived_in_all = ad_derived_list(places, shared->list);
  shared->seed = seed;
  if (take > 0 && (size_t)take < shared->derived)
    shared->derived = draw(shared->list, shared->derived, (size_t)take, seed);
  shared->count = shared->derived + ad_known_list(shared->list + shared->derived);
  return try_records(recipe, shared);
}

ad_status ad_sabotages_create(const ad_recipe *recipe, int64_t take, uint64_t seed, ad_sabotages **out) {
  ad_places places;
  ad_sabotages *shared = NULL;
  AD_TRY(ad_derived_places(recipe, &places));
  ad_status status = map(ad_derived_list(&places, NULL) + ad_known_list(NULL), &shared);
  if (!status) status = fill(recipe, &places, take, seed, shared);
  ad_places_release(&places);
  if (status)
    ad_sabotages_destroy(shared);
  else
    *out = shared;
  return status;
}

void ad_sabotages_destroy(ad_sabotages *sabotages) {
  if (sabotages) munmap(sabotages, sabotages->bytes);
}

/* ---- starting new ranks for each mistake ---- */

static int try_on_rank(ad_comm *comm, void *context) {
  ad_status status = ad_trials(comm, context);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

/* Notes how the world's end caught the mistake: by a type, a number or the protocol. Any other end is a failure of the
 * check itself. */
static ad_status caught_by_end(const ad_launch_result *result, ad_status status, ad_sabotage *sabotage) {
  if (status == AD_INTERRUPTED) return status;
  switch (result->status) {
    case AD_TYPE:
      sabotage->caught = AD_CAUGHT_TYPE;
      break;
    case AD_NUMBER:
      sabotage->caught = AD_CAUGHT_NUMBER;
      break;
    case AD_MISMATCH:
    case AD_CYCLE:
    case AD_RANK_LEFT:
      sabotage->caught = AD_CAUGHT_PROTOCOL;
      break;
    default:
      return ad_fail(status, "%s: %s", sabotage->name, result->message);
  }
  snprintf(sabotage->message, sizeof sabotage->message, "%.*s", (int)sizeof sabotage->message - 1, result->message);
  return AD_OK;
}

/* Starts ranks until every mistake has been tried: the ranks begin with the first that has not. */
static ad_status try_in_world(const ad_trial_job *job, int64_t ranks) {
  ad_launch_options options = {
      .size = sizeof options, .ranks = ranks, .function = try_on_rank, .context = (void *)(uintptr_t)job};
  ad_sabotages *shared = job->sabotages;
  shared->next = 0;
  while (shared->next < shared->count) {
    ad_launch_result result = {.size = sizeof result};
    size_t began = shared->next;
    shared->clean = -1;
    ad_status status = ad_launch(&options, &result);
    if (!status) return AD_OK;
    if (shared->clean < 0) /* the ranks ended before any mistake was planted */
      return ad_fail(result.status ? result.status : status, "%s",
                     result.message[0] ? result.message : ad_last_error());
    AD_TRY(caught_by_end(&result, status, &shared->list[shared->next]));
    shared->next = shared->next > began ? shared->next + 1 : began + 1;
  }
  return AD_OK;
}

/* Whether any known mistake of dtypes can show in this run. Those that cannot are marked as not planted. */
static int some_are_of_dtype(ad_sabotages *shared) {
  int some = 0;
  for (size_t i = shared->derived; i < shared->count; i++) {
    ad_sabotage *sabotage = &shared->list[i];
    some |= ad_sabotage_is_of_dtype(sabotage) && ad_known_shows(sabotage, shared->facts);
  }
  return some;
}

ad_status ad_sabotages_try(const ad_recipe *recipe, const ad_check_options *options, ad_proof *proof,
                           ad_sabotages *shared) {
  ad_check_options wide = *options, own = *options;
  int64_t ranks = 0;
  wide.dtype = AD_F64;
  wide.recipe_dtype = 0;
  own.recipe_dtype = 1;
  AD_TRY(ad_recipe_world(recipe, &ranks));
  ad_trial_job job = {.proof = {.recipe = recipe, .options = &wide, .steps = 1, .proof = proof, .quiet = 1},
                      .sabotages = shared};
  AD_TRY(try_in_world(&job, ranks));
  if (some_are_of_dtype(shared)) {
    job.proof.options = &own;
    job.of_dtype = 1;
    AD_TRY(try_in_world(&job, ranks));
  }
  return AD_OK;
}
