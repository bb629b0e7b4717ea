/* Decides the verdict on a parameter. Patterns are searched in all wrong parts of the sum together: addends that are
 * missing from one rank's replica say little, but addends that are missing from every replica in the same way name the
 * missing operation. */
#include "say/verdict.h"

#include <math.h>
#include <string.h>
#include "base/text.h"
#include "say/verdict_case.h"
#include "solve/hypotheses.h"

/* Returns 1 if two parts have the same counts, within the errors of the fits. */
static int same_counts(const ad_case *c, const ad_judged *a, const ad_judged *b) {
  if (ad_case_members(c, a)->count != ad_case_members(c, b)->count) return 0;
  for (size_t i = 0; i < ad_case_members(c, a)->count; i++) {
    double error = fmax(a->why.errors[i], b->why.errors[i]);
    if (isfinite(error) && !ad_counts_close(a->why.counts[i], b->why.counts[i], error)) return 0;
  }
  return 1;
}

/* Returns 1 if all wrong parts have the same counts. */
static int wrong_ones_agree(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && !same_counts(c, c->first, &c->list[i])) return 0;
  return 1;
}

/* If no cause was listed, adds the verdict itself as its own cause. */
static void add_own_cause(ad_case *c) {
  const ad_verdict *out = c->out;
  if (!json_array_size(out->causes)) ad_case_add(c, out->kind, out->axes, out->factor, "", "%s", out->text);
}

static void report_unexplained(ad_case *c) {
  uint32_t untried = ad_untried_axes(c->parts, c->list);
  const ad_judged *first = c->first;
  size_t elements = first->part->count, addends = ad_case_members(c, first)->count;
  char names[AD_VERDICT_TEXT / 4], or [AD_VERDICT_TEXT / 2] = "";
  ad_case_mark_holders(c, 1);
  ad_case_report(c, AD_CAUSE_UNEXPLAINED, 0, NAN);
  if (untried)
    snprintf(or, sizeof or, ", or is summed over %s, which a sample does not show",
             ad_case_axes(c, untried, names, sizeof names));
  if (elements > addends)
    snprintf(c->out->text, sizeof c->out->text,
             "unexplained: no counts of the addends give the sum (%.2g of it is left): it holds other data or another "
             "term%s",
             first->why.left, or);
  else
    snprintf(c->out->text, sizeof c->out->text,
             "unexplained: not the sum of its addends (%.2g of it is left), and %zu element%s %s too few to tell how "
             "often each of %zu addends is in it%s",
             first->why.left, elements, elements == 1 ? "" : "s", elements == 1 ? "is" : "are", addends, or);
}

/* Returns the verdict that the first wrong part would have if `counts` were its counts; ad_verdict_clear clears it. */
static ad_verdict read_as(const ad_case *c, double *counts) {
  ad_judged judged = *c->first;
  ad_verdict reading = {.ranks = c->out->ranks, .causes = json_array()};
  ad_case again = *c;
  judged.why.counts = counts;
  judged.why.rounded = 0; /* other counts give the part as it is */
  again.out = &reading;
  again.list = again.first = &judged;
  again.count = 1;
  if (!ad_case_try_local(&again)) ad_case_report_counts(&again);
  add_own_cause(&again);
  reading.shown = NULL;
  return reading;
}

/* Reports that several lists of counts explain the sum: names the verdict of each list, and all their causes. */
static void report_ambiguous(ad_case *c) {
  const ad_explanation *why = &c->first->why;
  const ad_judged *first = c->first;
  size_t n = ad_case_members(c, first)->count, differ = 0;
  char texts[AD_VERDICT_TEXT];
  ad_text text = ad_text_on(texts, sizeof texts);
  add_own_cause(c);
  ad_text_add(&text, "%.200s", c->out->text);
  for (size_t i = 0; i < why->other_count; i++) {
    ad_verdict reading = read_as(c, why->others + i * n);
    if (strcmp(reading.text, c->out->text) != 0) {
      if (text.used < sizeof texts / 2) ad_text_add(&text, "; or: %.200s", reading.text);
      ad_case_add_all(c, reading.causes);
      differ++;
    }
    ad_verdict_clear(&reading);
  }
  if (!differ) return;
  ad_case_report(c, AD_CAUSE_NOT_DISTINGUISHABLE, 0, NAN);
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  c->out->shown = first;
  snprintf(c->out->text, sizeof c->out->text, "wrong, and these fit equally well: %.500s%s", texts,
           why->more ? "; or still others" : "");
}

/* ---- naming the shards or replicas that a verdict is about ---- */

/* Marks the ranks that hold the parts of the sum that the verdict is about: all wrong parts if `local` is 1, else
 * those with the same counts as the first wrong part. Returns 0 if these are all parts. */
static int mark_shards(const ad_case *c, int local) {
  int others = 0;
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  for (size_t i = 0; i < c->count; i++) {
    const ad_judged *judged = &c->list[i];
    int is_meant = !judged->holds && (local || same_counts(c, c->first, judged));
    others |= !is_meant;
    for (size_t h = 0; h < judged->part->holder_count && is_meant; h++) c->out->ranks[judged->part->holders[h]] = 1;
  }
  return others;
}

/* Prints to `out` which shards or replicas of the sum are wrong; prints "" if all are. Afterwards no rank is marked. */
static void print_shards(const ad_case *c, int local, char *out, size_t size) {
  const ad_shape *shape = &c->parts->param->shape;
  ad_box full = ad_box_full(shape);
  char ranks[AD_VERDICT_TEXT / 4];
  *out = 0;
  if (mark_shards(c, local))
    snprintf(out, size, "; in the %s of %s%s", ad_box_equal(shape, &c->first->part->box, &full) ? "copy" : "shard",
             ad_case_ranks(c, ranks, sizeof ranks),
             local || wrong_ones_agree(c) ? " only" : ", and in others something else");
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
}

/* Appends the text `shards` to the verdict's text. If no rank is marked yet, marks the ranks that hold these shards. */
static void add_shards(ad_case *c, int local, const char *shards) {
  size_t used = strlen(c->out->text);
  if (!*shards) return;
  snprintf(c->out->text + used, sizeof c->out->text - used, "%s", shards);
  if (!memchr(c->out->ranks, 1, (size_t)c->dump->mesh.world)) mark_shards(c, local);
}

/* Returns 1 if the verdict can only be that replicas differ, since some replicas are right or each has its own
 * counts. Returns 0 if several lists of counts explain one replica: then these lists are reported instead. */
static int replicas_are_all(const ad_case *c) {
  if (!ad_case_replicas_differ(c)) return 0;
  return ad_case_some_hold(c) || (!wrong_ones_agree(c) && !c->first->why.other_count);
}

/* Writes the verdict that follows from counts of the addends that the first wrong part should have. */
static void report_own(ad_case *c) {
  char shards[AD_VERDICT_TEXT / 2], who[64];
  int local = ad_case_try_local(c);
  if (!local && !wrong_ones_agree(c) && ad_case_try_some(c)) return;
  if (!local && replicas_are_all(c)) {
    ad_case_report_replicas(c);
    return;
  }
  print_shards(c, local, shards, sizeof shards);
  if (!local) ad_case_report_counts(c);
  if (local && ad_case_some_hold(c)) ad_case_add_one_rank(c, who, sizeof who);
  if (c->first->why.other_count) report_ambiguous(c);
  add_shards(c, local, shards);
}

/* If the first wrong part is equally well explained as a sum over another group of ranks, adds that verdict. */
static void report_groups_too(ad_case *c) {
  char own[AD_VERDICT_TEXT];
  add_own_cause(c);
  size_t before = json_array_size(c->out->causes);
  ad_case_add_groups(c);
  const json_t *group = json_array_get(c->out->causes, before);
  if (!group) return;
  snprintf(own, sizeof own, "%s", c->out->text);
  ad_case_report(c, AD_CAUSE_NOT_DISTINGUISHABLE, 0, NAN);
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  snprintf(c->out->text, sizeof c->out->text, "wrong, and these fit equally well: %.300s; or: %.200s", own,
           json_string_value(json_object_get(group, "text")));
}

/* Reports `not_fitted`: no counts were fitted, since other parameters used up the limit on fits, and the counts of
 * other parameters do not explain this one. */
static void report_unfitted(ad_case *c) {
  ad_case_mark_holders(c, 1);
  ad_case_report(c, AD_CAUSE_NOT_FITTED, 0, NAN);
  c->out->shown = NULL;
  snprintf(c->out->text, sizeof c->out->text,
           "wrong, and not fitted: the expected counts leave %.2g of it, and those of other parameters do not give it",
           c->first->why.left);
}

/* Finds the verdict on a parameter with at least one wrong part. */
static void report_wrong(ad_case *c) {
  int explained = 1, grouped = 0, unfitted = 0;
  for (size_t i = 0; i < c->count; i++) {
    const ad_explanation *why = &c->list[i].why;
    if (c->list[i].holds) continue;
    explained &= why->explains != 0;
    grouped |= why->by_group;
    unfitted |= why->unfitted;
  }
  c->out->shown = c->first;
  if (!explained && ad_case_try_patterns(c)) return;
  if (unfitted) {
    report_unfitted(c);
    return;
  }
  if (!explained) {
    if (ad_case_replicas_differ(c) && ad_case_some_hold(c))
      ad_case_report_replicas(c);
    else
      report_unexplained(c);
    return;
  }
  if (grouped && ad_case_try_group(c)) return;
  report_own(c);
  if (!grouped) report_groups_too(c);
}

void ad_verdict_find(const ad_parts *parts, const ad_judged *list, size_t missing, unsigned char *ranks,
                     ad_verdict *out) {
  ad_case c = {.parts = parts, .dump = parts->dump, .list = list, .count = parts->count, .out = out};
  *out = (ad_verdict){.kind = AD_CAUSE_RIGHT, .factor = 1, .ranks = ranks, .causes = json_array()};
  for (size_t i = 0; i < parts->count && !c.first; i++)
    if (!list[i].holds) c.first = &list[i];
  if (c.first) {
    memset(ranks, 0, (size_t)parts->dump->mesh.world);
    report_wrong(&c);
  } else if (missing) {
    ad_case_report_missing(&c, missing);
  } else if (ad_case_replicas_differ(&c)) {
    ad_case_report_replicas(&c);
  }
  if (out->kind != AD_CAUSE_RIGHT) add_own_cause(&c);
}

void ad_verdict_clear(ad_verdict *verdict) {
  json_decref(verdict->causes);
  verdict->causes = NULL;
}
