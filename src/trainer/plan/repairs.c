/* Trying repairs: the refused step is taken again on engine dry, with each conversion in turn. */
#include "plan/repairs.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "layout/sentences.h"
#include "plan/traffic.h"

/* Of the conversions that the refused operation takes; the simplest come first. docs/types.md names the number. */
enum { TRIED_MAX = 64 };

static size_t bytes_of(const ad_traffic *traffic) {
  size_t bytes = 0;
  for (size_t i = 0; i < traffic->moved_count; i++) bytes += traffic->moved[i].bytes * (size_t)traffic->moved[i].times;
  return bytes;
}

/* Whether every type holds with it, and what then moves. */
static ad_status try_one(ad_dry_step step, void *context, const ad_repair *repair, int *holds, size_t *bytes) {
  ad_traffic traffic = {0};
  ad_mending mending = {.repair = repair};
  ad_traffic_begin(&traffic);
  ad_repair_begin(&mending);
  ad_status status = step(context);
  ad_repair_end();
  ad_traffic_end(&traffic);
  *holds = !status && mending.fired;
  *bytes = bytes_of(&traffic);
  ad_status listed = traffic.status;
  ad_traffic_release(&traffic);
  return status == AD_MEMORY ? status : listed;
}

static ad_status choose(ad_dry_step step, void *context, const ad_repairs *among, ad_repair *out, int *found) {
  size_t fewest = 0;
  for (size_t i = 0; i < among->count && i < TRIED_MAX; i++) {
    const ad_repair *repair = &among->list[i];
    int holds;
    size_t bytes;
    if (*found && ad_repair_states(repair) > ad_repair_states(out)) break;
    AD_TRY(try_one(step, context, repair, &holds, &bytes));
    if (!holds || (*found && bytes >= fewest)) continue;
    *out = *repair;
    *found = 1;
    fewest = bytes;
  }
  return AD_OK;
}

ad_status ad_repair_find(ad_dry_step step, void *context, ad_repair *out, int *found, int *tried) {
  ad_repairs repairs = {0};
  *found = *tried = 0;
  ad_repairs_watch(&repairs);
  ad_status status = step(context);
  ad_repairs_end();
  if (status == AD_TYPE || status == AD_INVALID) status = repairs.status;
  if (!status) status = choose(step, context, &repairs, out, found);
  *tried = !repairs.refused ? -1 : repairs.count < TRIED_MAX ? (int)repairs.count : TRIED_MAX;
  ad_repairs_release(&repairs);
  return status;
}

ad_status ad_repair_say(ad_status refused, ad_dry_step step, void *context) {
  char message[AD_MESSAGE_MAX], text[256];
  ad_repair repair;
  int found, tried;
  snprintf(message, sizeof message, "%s", ad_last_error());
  if (refused != AD_TYPE && refused != AD_INVALID) return refused;
  AD_TRY(ad_repair_find(step, context, &repair, &found, &tried));
  if (tried <= 0 || (!found && refused == AD_INVALID)) return ad_fail(refused, "%s", message);
  char *guess = strstr(message, AD_MAY_REPAIR);
  if (guess) *guess = 0;
  if (!found) return ad_fail(refused, "%s; no conversion of one value there repairs it (%d tried)", message, tried);
  return ad_fail(
      refused, "%s; this repairs it: %s (tried: every type of a step then holds, %s)", message,
      ad_repair_print(&repair, text, sizeof text),
      ad_repair_states(&repair) ? "if what is declared is so" : "and nothing that does so moves fewer bytes");
}
