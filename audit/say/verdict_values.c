/* Verdicts on parameter values: replicas that begin a step with different weights remain different, whatever is
 * summed. */
#include <math.h>
#include "say/cause.h"
#include "say/verdict.h"

void ad_verdict_of_values(const ad_parts *parts, uint32_t axes, ad_verdict *verdict) {
  char names[AD_DUMP_AXES * AD_DUMP_NAME], ranks[AD_VERDICT_TEXT / 4];
  verdict->kind = AD_CAUSE_REPLICAS_DIFFER;
  verdict->axes = axes;
  verdict->factor = NAN;
  ad_dump_axes_print(&parts->dump->mesh, axes, names, sizeof names);
  ad_dump_ranks_print(&parts->dump->mesh, verdict->ranks, ranks, sizeof ranks);
  snprintf(
      verdict->text, sizeof verdict->text,
      "replicas' values differ before the step along %.150s: %.150s began with other weights than the first that has "
      "it, and gradients that are the same everywhere leave them apart",
      names, ranks);
  json_array_append_new(verdict->causes,
                        ad_cause_document(ad_cause_name(verdict->kind), names, NAN, verdict->text, ""));
}
