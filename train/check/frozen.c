/* Compares the values of frozen parameters before and after a step, by their hashes. */
#include "check/frozen.h"

#include <xxhash.h>

#include "base/memory.h"
#include "step/run.h"

static uint64_t hash_of(const ad_run *run, size_t param) {
  const ad_array *value = ad_run_part(run, param, AD_PART_VALUE);
  return value->data ? XXH64(value->data, ad_array_bytes(value), 0) : 0;
}

void ad_frozen_begin(ad_checker *checker) {
  for (size_t i = 0; i < checker->param_count; i++)
    if (!ad_run_trains(checker->run, i)) checker->frozen[i] = hash_of(checker->run, i);
}

/* Keeps what the first step found that did not leave the parameter as it was. `changed_on` is the first rank on which
 * the step changed it; the number of ranks: on none. */
static void judge(ad_checker *checker, size_t param, int64_t step, int32_t changed_on) {
  const ad_replicas *replicas = &checker->replicas[AD_PART_VALUE][param];
  ad_check_param *out = &checker->job->result->params[param];
  int is_kept = changed_on == ad_comm_size(checker->comm);
  if (!out->update_equal || !out->replicas_equal) return;
  out->step = step;
  out->update_equal = is_kept;
  out->replicas_equal = replicas->equal;
  if (!is_kept || !replicas->equal) ad_diagnose_frozen(is_kept ? -1 : changed_on, replicas->differs, &out->causes);
}

ad_status ad_frozen_end(ad_checker *checker, int64_t step) {
  int32_t *changed_on, rank = (int32_t)ad_comm_rank(checker->comm), none = (int32_t)ad_comm_size(checker->comm);
  size_t frozen = 0;
  AD_TRY(ad_new(checker->param_count, &changed_on));
  for (size_t i = 0; i < checker->param_count; i++)
    if (!ad_run_trains(checker->run, i))
      changed_on[frozen++] = hash_of(checker->run, i) == checker->frozen[i] ? none : rank;
  ad_collective first = {.size = sizeof first,
                         .op = AD_ALL_REDUCE,
                         .group = checker->everyone,
                         .in = changed_on,
                         .out = changed_on,
                         .count = frozen,
                         .dtype = AD_I32,
                         .reduction = AD_MIN,
                         .site = AD_HERE};
  ad_status status = frozen ? ad_comm_run(checker->comm, &first) : AD_OK;
  for (size_t i = 0, at = 0; i < checker->param_count && checker->reference && !status; i++)
    if (!ad_run_trains(checker->run, i)) judge(checker, i, step, changed_on[at++]);
  ad_release(changed_on);
  return status;
}
