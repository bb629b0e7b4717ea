/* Judges one parameter: reads its tensors, finds which addends are in its sum, and makes its document. */
#include "say/judge.h"

#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "base/text.h"
#include "solve/assumed.h"
#include "solve/replicas.h"

/* Returns how many of the parameter's elements are in no rank's sum. May also return 0 if parts overlap without being
 * replicas. */
static int64_t count_missing(const ad_parts *parts) {
  int64_t missing = parts->param->sample;
  for (size_t i = 0; i < parts->count; i++)
    if (ad_part_is_first_of_its_box(parts, i)) missing -= (int64_t)parts->parts[i].count;
  return missing > 0 ? missing : 0;
}

/* Appends a message to a finding. */
static void report(ad_finding *out, json_t *message) {
  if (!out->messages) out->messages = json_array();
  json_array_append_new(out->messages, message);
}

/* Appends a message if the counts of a part of the sum were not found because the part has too few elements, at most
 * as many as addends, to fit them. */
static void report_few(const ad_parts *parts, const ad_verdict *verdict, ad_finding *out) {
  const ad_judged *shown = verdict->shown;
  int is_open = verdict->kind == AD_CAUSE_UNEXPLAINED || verdict->kind == AD_CAUSE_NOT_DISTINGUISHABLE;
  if (!shown || !is_open || shown->part->count > ad_part_members(parts, shown->part)->count) return;
  report(out, json_sprintf("`%s` has only %zu element%s for %zu addend%s, too few to find how often each addend was "
                           "counted; dump more elements (addend.sample)",
                           parts->param->name, shown->part->count, ad_plural((long long)shown->part->count),
                           ad_part_members(parts, shown->part)->count,
                           ad_plural((long long)ad_part_members(parts, shown->part)->count)));
}

/* Changes the verdict `right` unless a reference confirms it: what is declared sharded may be replicas, and ranks with
 * identical addends may have dumped sums instead of addends, so that a right sum of these shows nothing. */
static void doubt(const ad_judge *judge, const ad_parts *parts, const ad_identical *identical,
                  const ad_compared *compared, const ad_facts *facts, ad_verdict *verdict) {
  char who[AD_VERDICT_TEXT / 2];
  if (verdict->kind != AD_CAUSE_RIGHT || judge->allow_identical || compared->there) return;
  ad_declared_doubt(parts, facts, verdict);
  if (verdict->kind != AD_CAUSE_RIGHT || !json_object_size(identical->who)) return;
  verdict->kind = AD_CAUSE_IDENTICAL;
  memcpy(verdict->ranks, identical->ranks, (size_t)judge->dump->mesh.world);
  ad_identical_print(identical, who, sizeof who);
  snprintf(verdict->text, sizeof verdict->text, "cannot tell: %s, as if they had been summed before they were dumped",
           who);
  ad_declared_doubt_identical(parts, facts, verdict);
}

/* Changes the verdict to `not_observed` if all addends are zero: a sum that was left out, or formed twice, would
 * look the same as the right sum. If the sum itself is not zero, it was formed from values that were not dumped. */
static void doubt_zeros(const ad_parts *parts, const ad_compared *compared, ad_verdict *verdict) {
  const ad_dump_param *param = parts->param;
  int is_right = verdict->kind == AD_CAUSE_RIGHT;
  int is_open = verdict->kind == AD_CAUSE_UNEXPLAINED || verdict->kind == AD_CAUSE_NOT_FITTED;
  if (compared->there || !(is_right || is_open) || !parts->count || !ad_addends_are_zero(parts)) return;
  char sampled[80] = "";
  if (param->is_sampled)
    snprintf(sampled, sizeof sampled, " in the %lld element%s that %s sampled", (long long)param->sample,
             ad_plural(param->sample), param->sample == 1 ? "was" : "were");
  verdict->kind = AD_CAUSE_NOT_OBSERVED;
  verdict->axes = 0;
  verdict->shown = NULL;
  verdict->factor = NAN;
  memset(verdict->ranks, 0, (size_t)parts->dump->mesh.world);
  json_array_clear(verdict->causes);
  if (is_right)
    snprintf(verdict->text, sizeof verdict->text,
             "nothing observed: all its gradients are zero%s, and the sum of zeros is zero however it is made: %s",
             sampled, param->is_sampled ? "watch a later step, or sample more elements" : "watch a later step");
  else
    snprintf(verdict->text, sizeof verdict->text,
             "nothing observed: all its addends are zero%s, and its sum is not: a fused kernel writes the gradient "
             "elsewhere, or something was added to the sum",
             sampled);
}

/* Finds what the parameter's declarations are judged by. `unequal`: the axes along which replicas' values differ. */
static ad_status find_facts(const ad_parts *parts, const ad_judged *list, const ad_verdict *verdict, uint32_t unequal,
                            ad_facts *facts) {
  if (!parts->param->declared_count) return AD_OK;
  ad_facts_of_sum(parts, list, verdict, facts);
  facts->values = unequal;
  return ad_shards_compare(parts, UINT32_MAX, &facts->shards);
}

/* Finds the verdict on the parameter, changes it if equal addends or the parameter's values make this necessary, and
 * makes the finding's document from it. */
static ad_status report_parts(const ad_judge *judge, const ad_parts *parts, const ad_judged *list,
                              const ad_identical *identical, const ad_compared *compared, ad_finding *out) {
  ad_verdict verdict;
  unsigned char *ranks;
  uint32_t unequal;
  AD_TRY(ad_new((size_t)judge->dump->mesh.world, &ranks));
  if (judge->reference && !compared->there) report(out, json_sprintf("the reference has no `%s`", parts->param->name));
  size_t missing = ad_replicas_missing(parts, ranks);
  ad_verdict_find(parts, list, missing, ranks, &verdict);
  int is_right = verdict.kind == AD_CAUSE_RIGHT;
  ad_status status = ad_values_compare(parts, is_right ? verdict.ranks : NULL, &unequal);
  if (!status) status = find_facts(parts, list, &verdict, unequal, &out->facts);
  if (is_right && unequal) ad_verdict_of_values(parts, unequal, &verdict);
  if (!is_right) out->unequal = unequal;
  if (verdict.kind == AD_CAUSE_OWN_ONLY && !verdict.shown) out->unlike = verdict.axes & ~parts->param->declared_i;
  doubt(judge, parts, identical, compared, &out->facts, &verdict);
  doubt_zeros(parts, compared, &verdict);
  if (!status) status = ad_promised_judge(parts, &verdict, &out->formed);
  if (verdict.kind == AD_CAUSE_NOT_OBSERVED) out->facts = (ad_facts){0};
  out->answer = ad_diff_answer(&verdict, compared);
  out->document = ad_diff_param(parts, list, &verdict, compared, identical);
  report_few(parts, &verdict, out);
  out->unfitted = verdict.kind == AD_CAUSE_NOT_FITTED;
  out->untried = ad_untried_axes(parts, list);
  ad_verdict_clear(&verdict);
  ad_release(ranks);
  return status;
}

/* Compares the judged parts of the sum with the reference, and makes the finding. */
static ad_status report_judged(const ad_judge *judge, const ad_parts *parts, const ad_identical *identical,
                               const ad_judged *list, ad_finding *out) {
  ad_compared compared = {0};
  ad_status status = judge->reference ? ad_reference_compare(parts, judge->reference, &compared) : AD_OK;
  if (!status) status = report_parts(judge, parts, list, identical, &compared, out);
  ad_compared_clear(&compared);
  return status;
}

/* Judges a parameter whose equal addends are found first. If elements are missing from the sum, it is wrong without
 * further tests; otherwise its parts are judged. */
static ad_status judge_identical(const ad_judge *judge, ad_parts *parts, ad_identical *identical, ad_finding *out) {
  int64_t missing = count_missing(parts);
  ad_judged *list;
  AD_TRY(ad_identical_find(parts, identical));
  out->identical = json_incref(identical->who);
  if (missing) {
    out->answer = AD_ANSWER_WRONG;
    out->document = ad_diff_without_sum(judge->dump, parts->param, missing);
    return AD_OK;
  }
  AD_TRY(ad_new(parts->count, &list));
  ad_status status = ad_judge_parts(parts, judge->known, list);
  if (!status) status = report_judged(judge, parts, identical, list, out);
  ad_judged_clear(parts, list);
  ad_release(list);
  return status;
}

/* ---- another interpretation along axes whose type was only assumed ---- */

/* Makes the finding for a sum all of whose parts are right under the other interpretation. */
static ad_status report_held(const ad_judge *judge, const ad_parts *parts, const ad_identical *identical,
                             ad_finding *out) {
  ad_judged *list;
  AD_TRY(ad_new(parts->count, &list));
  for (size_t i = 0; i < parts->count; i++) list[i] = (ad_judged){.part = &parts->parts[i], .holds = 1};
  ad_status status = report_judged(judge, parts, identical, list, out);
  ad_release(list);
  return status;
}

/* Makes the finding for a sum that is right if the assumed axes are R: the ranks along them have different parts of
 * the gradient, and the sum contains each part once. */
static ad_status report_summed(const ad_judge *judge, const ad_dump_param *summed, ad_identical *identical,
                               ad_finding *out) {
  ad_parts parts;
  AD_TRY(ad_parts_create(judge->dump, summed, &parts));
  ad_status status = ad_identical_find(&parts, identical);
  if (!status) out->identical = json_incref(identical->who);
  if (!status) status = report_held(judge, &parts, identical, out);
  ad_parts_destroy(&parts);
  return status;
}

/* Makes the finding for two interpretations that fit the addends equally well. */
static json_t *report_either(const ad_judge *judge, const ad_dump_param *param, const ad_assumed *assumed) {
  char names[AD_DUMP_AXES * AD_DUMP_NAME], why[AD_VERDICT_TEXT], says[AD_VERDICT_TEXT / 2];
  ad_dump_param unjudged = *param;
  long long ranks = ad_dump_axes_size(&judge->dump->mesh, assumed->axes);
  ad_dump_axes_print(&judge->dump->mesh, assumed->axes, names, sizeof names);
  ad_declared_print(judge->dump, param, assumed->axes, "", says, sizeof says);
  const char *and = *says ? " and " : "";
  if (assumed->kind == AD_ASSUMED_UNSUMMED)
    snprintf(
        why, sizeof why,
        "it %s; all ranks there have the same addends, and the gradient is that of one rank: right if all do the same "
        "work (I) or their mean is meant, 1/%lld of it if they got one batch by mistake (R)",
        says, ranks);
  else if (assumed->kind == AD_ASSUMED_EITHER)
    snprintf(
        why, sizeof why,
        "it %.200s%sis the sum over %.80s,%s and the addends are nearly the same: right if each rank has a part of "
        "the gradient (R), %lld times too large if all do the same work (I); %s",
        says, and, names, *says ? "" : " no type was given there,", ranks,
        *says ? "types= says which, and is believed" : "give its type");
  else
    snprintf(why, sizeof why,
             "it %.200s%sis the mean over %.80s of addends that differ%s: right if each rank estimates the same "
             "gradient, 1/%lld of it if each has a part (R); give type R, with the factor 1/%lld too if the mean is "
             "meant",
             says, and, names, *says ? "" : ", and no type was given there", ranks, ranks);
  unjudged.unjudged = why;
  return ad_diff_unjudged(judge->dump, &unjudged);
}

/* Sets what is known of a sum that has two interpretations. */
static void set_facts(const ad_dump_param *param, const ad_assumed *assumed, ad_facts *facts) {
  *facts = (ad_facts){.observed = 1, .held = 1, .known = UINT32_MAX, .all = param->summed};
  if (assumed->kind == AD_ASSUMED_EITHER) facts->all |= assumed->axes;
  if (assumed->kind == AD_ASSUMED_UNSUMMED) facts->all &= ~assumed->axes;
  if (assumed->kind == AD_ASSUMED_ESTIMATES) facts->held = 0, facts->known &= ~assumed->axes;
}

/* Replaces the finding of a wrong sum if the sum is right, or may be right, with other types on axes whose types are
 * assumed or declared. */
static ad_status read_again(const ad_judge *judge, ad_parts *parts, ad_identical *identical, ad_finding *out) {
  ad_norm_term norm = out->norm; /* does not depend on the interpretation */
  ad_assumed assumed;
  AD_TRY(ad_assumed_find(parts, &assumed));
  if (!assumed.kind) return AD_OK;
  ad_finding_clear(out);
  out->norm = norm;
  if (assumed.kind == AD_ASSUMED_SUM) {
    ad_dump_param summed = ad_assumed_as_summed(parts->param, assumed.axes);
    out->retyped = assumed.axes & ~(parts->param->declared_i & ~parts->param->placed);
    return report_summed(judge, &summed, identical, out);
  }
  if (assumed.kind == AD_ASSUMED_MEAN) {
    out->identical = json_incref(identical->who);
    return report_held(judge, parts, identical, out);
  }
  out->answer = AD_ANSWER_CANNOT_TELL;
  set_facts(parts->param, &assumed, &out->facts);
  out->document = report_either(judge, parts->param, &assumed);
  return AD_OK;
}

/* Measures the parameter's share of the norm, and judges the parameter, unless the dump declares that it cannot be
 * judged. */
static ad_status judge_found(const ad_judge *judge, ad_parts *parts, ad_finding *out) {
  ad_identical identical;
  ad_norm_measure(parts, &out->norm);
  if (parts->param->unjudged) {
    out->answer = AD_ANSWER_CANNOT_TELL;
    out->document = ad_diff_unjudged(judge->dump, parts->param);
    return AD_OK;
  }
  AD_TRY(ad_identical_create(judge->dump, &identical));
  ad_status status = judge_identical(judge, parts, &identical, out);
  if (!status && out->answer == AD_ANSWER_WRONG && (parts->param->assumed || parts->param->declared_r))
    status = read_again(judge, parts, &identical, out);
  ad_identical_destroy(&identical);
  return status;
}

/* Returns how many bytes of the parameter's tensors are read to judge it. */
static size_t tensor_bytes(const ad_parts *parts) {
  size_t bytes = 0;
  for (size_t m = 0; m < parts->member_count; m++)
    for (size_t c = 0; c < parts->members[m].count; c++) bytes += parts->members[m].columns[c].piece.tensor->bytes;
  for (size_t i = 0; i < parts->count; i++)
    bytes += parts->parts[i].holder_count * parts->parts[i].term_count * parts->parts[i].terms[0].tensor->bytes;
  return bytes;
}

ad_status ad_judge_param(const ad_judge *judge, size_t index, ad_finding *out) {
  const ad_dump_param *param = &judge->dump->params[index];
  ad_parts parts;
  ad_status status = ad_parts_create(judge->dump, param, &parts);
  if (!status) {
    status = judge_found(judge, &parts, out);
    if (!status) status = ad_facts_compare(judge->dump, param, &out->facts);
    if (!status) out->declared = ad_declared_rows(judge->dump, param, &out->facts);
    ad_promised_report(param, &out->formed, out->declared);
    out->read = tensor_bytes(&parts);
    ad_parts_destroy(&parts);
  }
  ad_known_pass(judge->known, param);
  return status;
}

void ad_finding_clear(ad_finding *finding) {
  json_decref(finding->document);
  json_decref(finding->messages);
  json_decref(finding->identical);
  json_decref(finding->declared);
  *finding = (ad_finding){0};
}
