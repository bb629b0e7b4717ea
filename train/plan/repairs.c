/* Finds repairs of a program that the types refuse: takes the refused step again on backend dry, with one conversion
 * added at a time. */
#include "plan/repairs.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "layout/sentences.h"
#include "plan/traffic.h"

/* Limits of a search, documented in core/docs/types.md. The TRIED_LEAST simplest conversions are always tried. Further
 * ones are tried until the steps have recorded CALLS_MAX calls. */
enum { TRIED_LEAST = 64, CALLS_MAX = 100000 };

/* Returns the bytes that the tapes of a step moved between ranks. */
static size_t traffic_bytes(const ad_traffic *traffic) {
  size_t bytes = 0;
  for (size_t i = 0; i < traffic->moved_count; i++) bytes += traffic->moved[i].bytes * (size_t)traffic->moved[i].times;
  return bytes;
}

/* The result of trying a repair: whether all types are right with it, the bytes that the step then moves, and the
 * number of calls that the step recorded. */
typedef struct attempt {
  int holds;
  size_t bytes, calls;
} attempt;

/* Takes the step with one repair. */
static ad_status try_one(ad_dry_step step, void *context, const ad_repair *repair, attempt *out) {
  ad_traffic traffic = {0};
  ad_mending mending = {.repair = repair};
  ad_traffic_begin(&traffic);
  ad_repair_begin(&mending);
  ad_status status = step(context);
  ad_repair_end();
  ad_traffic_end(&traffic);
  *out = (attempt){!status && mending.fired, traffic_bytes(&traffic), mending.calls};
  ad_status listed = traffic.status;
  ad_traffic_release(&traffic);
  return status == AD_MEMORY ? status : listed;
}

/* Tries the conversions in order, and chooses the one that repairs the step and moves the fewest bytes. */
static ad_status choose(ad_dry_step step, void *context, const ad_repairs *among, ad_repair *out, int *found,
                        size_t *tried) {
  size_t fewest = 0, calls = 0, i;
  for (i = 0; i < among->count && (i < TRIED_LEAST || calls < CALLS_MAX); i++) {
    const ad_repair *repair = &among->list[i];
    attempt made;
    if (*found && ad_repair_states(repair) > ad_repair_states(out)) break;
    AD_TRY(try_one(step, context, repair, &made));
    calls += made.calls;
    if (!made.holds || (*found && made.bytes >= fewest)) continue;
    *out = *repair;
    *found = 1;
    fewest = made.bytes;
  }
  *tried = i;
  return AD_OK;
}

/* Returns how many conversions must be tried. The list begins with conversions that assert nothing about the values;
 * once one of these repairs the step, the conversions that assert something need not be tried. */
static size_t asked_for(const ad_repairs *among, const ad_repair *found) {
  size_t count = 0;
  while (count < among->count && (!found || ad_repair_states(&among->list[count]) <= ad_repair_states(found))) count++;
  return count;
}

ad_status ad_repair_find(ad_dry_step step, void *context, ad_repair *out, int *found, ad_repair_search *search) {
  ad_repairs repairs = {0};
  *found = 0;
  *search = (ad_repair_search){0};
  ad_repairs_watch(&repairs);
  ad_status status = step(context);
  ad_repairs_end();
  if (status == AD_TYPE || status == AD_INVALID) status = repairs.status;
  if (!status) status = choose(step, context, &repairs, out, found, &search->tried);
  search->listed = asked_for(&repairs, *found ? out : NULL);
  ad_repairs_release(&repairs);
  return status;
}

/* Prints "all 12 tried" or "64 of 176 tried". */
static const char *print_tried(const ad_repair_search *search, char *buffer, size_t size) {
  if (search->tried < search->listed)
    snprintf(buffer, size, "%zu of %zu tried", search->tried, search->listed);
  else
    snprintf(buffer, size, "all %zu tried", search->listed);
  return buffer;
}

/* Writes what is known about the conversions that were not chosen. */
static const char *print_others(const ad_repair *found, const ad_repair_search *search, char *buffer, size_t size) {
  if (ad_repair_states(found))
    snprintf(buffer, size, "provided that what it declares is true");
  else if (search->tried < search->listed)
    snprintf(buffer, size, "and of the %zu of %zu conversions tried, no other that repairs it moves fewer bytes",
             search->tried, search->listed);
  else
    snprintf(buffer, size, "and no other conversion that repairs it moves fewer bytes");
  return buffer;
}

ad_status ad_repair_report(ad_status refused, ad_dry_step step, void *context) {
  char message[AD_MESSAGE_MAX], text[AD_MESSAGE_MAX], others[128];
  ad_repair repair;
  ad_repair_search search;
  int found;
  snprintf(message, sizeof message, "%s", ad_last_error());
  if (refused != AD_TYPE && refused != AD_INVALID) return refused;
  AD_TRY(ad_repair_find(step, context, &repair, &found, &search));
  if (!search.listed || (!found && refused == AD_INVALID)) return ad_fail(refused, "%s", message);
  char *guess = strstr(message, AD_MAY_REPAIR);
  if (guess) *guess = 0;
  if (!found) return ad_fail(refused, "%s" AD_NO_REPAIR "(%s)", message, print_tried(&search, others, sizeof others));
  return ad_fail(refused, "%s" AD_REPAIRS "%s (tried on a whole step: all types are then right, %s)", message,
                 ad_repair_print(&repair, text, sizeof text), print_others(&repair, &search, others, sizeof others));
}
