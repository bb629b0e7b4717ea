/* Verdicts on replicas: ranks that should have the same sum have different sums, or none. */
#include <math.h>
#include "say/declared.h"
#include "say/verdict_case.h"

/* Returns 1 if two parts have the same elements but different bits. */
int ad_case_replicas_differ(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    for (size_t j = 0; j < i; j++)
      if (c->list[i].part->bits != c->list[j].part->bits &&
          ad_box_equal(&c->parts->param->shape, &c->list[i].part->box, &c->list[j].part->box))
        return 1;
  return 0;
}

/* Returns the axes on which the positions of two ranks differ. */
static uint32_t axes_between(const ad_case *c, int64_t a, int64_t b) {
  uint32_t axes = 0;
  for (int axis = 0; axis < c->dump->mesh.count; axis++)
    if (c->dump->position[a][axis] != c->dump->position[b][axis]) axes |= 1u << axis;
  return axes;
}

/* For each pair of ranks that hold part `a` and part `b`: adds to *any the axes on which the positions of the two
 * ranks differ and, if this is only one axis, adds it to *beside. */
static void take_axes(const ad_case *c, const ad_part *a, const ad_part *b, uint32_t *beside, uint32_t *any) {
  uint32_t all = ad_large_axes(&c->dump->mesh, UINT32_MAX);
  for (size_t i = 0; i < a->holder_count; i++)
    for (size_t j = 0; j < b->holder_count && *beside != all; j++) {
      uint32_t axes = axes_between(c, a->holders[i], b->holders[j]);
      *any |= axes;
      if (!(axes & (axes - 1))) *beside |= axes;
    }
}

/* Returns the axes along which replicas differ: between ranks whose positions differ on one axis only or, if there are
 * none, between any ranks. */
static uint32_t differing_axes(const ad_case *c) {
  uint32_t beside = 0, any = 0;
  for (size_t i = 0; i < c->count; i++)
    for (size_t j = 0; j < i; j++) {
      const ad_part *a = c->list[i].part, *b = c->list[j].part;
      if (a->bits != b->bits && ad_box_equal(&c->parts->param->shape, &a->box, &b->box))
        take_axes(c, a, b, &beside, &any);
    }
  return beside ? beside : any;
}

static int some_apart(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (c->list[i].apart) return 1;
  return 0;
}

/* Returns the one rank with the right replica of this part's elements, or -1 if no rank or several ranks have it. */
static int64_t only_right(const ad_case *c, const ad_judged *judged) {
  int64_t rank = -1;
  for (size_t i = 0; i < c->count; i++) {
    const ad_part *part = c->list[i].part;
    if (!c->list[i].holds || !ad_box_equal(&c->parts->param->shape, &part->box, &judged->part->box)) continue;
    if (rank >= 0 || part->holder_count > 1) return -1;
    rank = part->holders[0];
  }
  return rank;
}

int ad_case_add_one_rank(ad_case *c, char *who, size_t size) {
  char names[AD_VERDICT_TEXT / 4];
  int64_t rank = -1;
  int several = 0;
  for (size_t i = 0; i < c->count; i++) {
    if (c->list[i].holds) continue;
    int64_t right = only_right(c, &c->list[i]);
    if (right < 0) return 0;
    several |= rank >= 0 && right != rank;
    rank = right;
  }
  if (several)
    snprintf(who, size, "one rank of each group");
  else
    snprintf(who, size, "rank %lld", (long long)rank);
  uint32_t axes = differing_axes(c);
  ad_case_add(c, AD_CAUSE_ONE_RANK, axes, NAN, "",
              "the sum over %s was made for %s alone (reduce), and not for all (all_reduce)",
              ad_case_axes(c, axes, names, sizeof names), who);
  return 1;
}

/* Reports that every replica is the right sum of its own addends, although the replicas differ and their types say
 * that they should be equal. */
static void report_own_only(ad_case *c, uint32_t axes, const char *names) {
  int assumed = !(axes & ~c->parts->param->assumed);
  char says[AD_VERDICT_TEXT / 2];
  ad_case_report(c, AD_CAUSE_OWN_ONLY, axes, 1);
  ad_declared_print(c->dump, c->parts->param, axes, "", says, sizeof says);
  if (*says)
    snprintf(c->out->text, sizeof c->out->text,
             "own addend only along %s: it %s, so all ranks there should do the same work, but their gradients differ: "
             "sum them (R), or give them the same batch",
             names, says);
  else
    snprintf(c->out->text, sizeof c->out->text,
             "own addend only along %s: %s, but their gradients differ: sum them%s, or give them the same batch", names,
             assumed ? "no type was given, so all ranks there should do the same work"
                     : "by its type all ranks there do the same work",
             assumed ? "" : " and give its type as R");
  ad_case_add(c, AD_CAUSE_OWN_ONLY, axes, 1, "", "own addend only along %s: a sum was left out", names);
  ad_case_add(c, AD_CAUSE_OTHER_BATCHES, axes, 1, "", "ranks along %s were fed different batches", names);
}

static void report_rounded_apart(ad_case *c, const char *names) {
  ad_case_mark_holders(c, 0);
  snprintf(c->out->text, sizeof c->out->text,
           "replicas differ along %s by rounding only: each is right, but they are not the same bits and will drift "
           "apart",
           names);
}

static void report_wrong_replicas(ad_case *c, const char *names) {
  char ranks[AD_VERDICT_TEXT / 4];
  ad_case_mark_holders(c, 1);
  ad_case_ranks(c, ranks, sizeof ranks);
  if (ad_case_some_hold(c))
    snprintf(c->out->text, sizeof c->out->text, "replicas differ along %s: the sum is wrong on %s and right elsewhere",
             names, ranks);
  else
    snprintf(c->out->text, sizeof c->out->text, "replicas differ along %s, and none is right", names);
}

/* Tries the verdict that one replica of the sum is right and all others are wrong. */
static int try_one_rank(ad_case *c, uint32_t axes, const char *names) {
  char who[64], ranks[AD_VERDICT_TEXT / 4], fact[AD_VERDICT_TEXT / 2];
  if (!c->first || !ad_case_some_hold(c) || !ad_case_add_one_rank(c, who, sizeof who)) return 0;
  ad_case_mark_holders(c, 1);
  ad_case_ranks(c, ranks, sizeof ranks);
  ad_case_add(c, AD_CAUSE_REPLICAS_DIFFER, axes, NAN, "", "the right sum was changed on %s afterwards", ranks);
  snprintf(fact, sizeof fact, "replicas differ along %.100s: the sum is right on %s alone", names, who);
  ad_case_settle(c, NAN, fact);
  ad_case_report(c, AD_CAUSE_ONE_RANK, axes, NAN);
  return 1;
}

/* Writes the verdict that replicas differ. */
void ad_case_report_replicas(ad_case *c) {
  char names[AD_VERDICT_TEXT / 4];
  uint32_t axes = differing_axes(c);
  ad_case_report(c, AD_CAUSE_REPLICAS_DIFFER, axes, NAN);
  ad_case_axes(c, axes, names, sizeof names);
  if (try_one_rank(c, axes, names)) return;
  if (!c->first && some_apart(c))
    report_own_only(c, axes, names);
  else if (!c->first)
    report_rounded_apart(c, names);
  else
    report_wrong_replicas(c, names);
}

void ad_case_report_missing(ad_case *c, size_t missing) {
  char names[AD_VERDICT_TEXT / 4];
  uint32_t summed = ad_large_axes(&c->dump->mesh, c->parts->param->summed);
  ad_case_report(c, AD_CAUSE_REPLICAS_DIFFER, summed, NAN);
  ad_case_ranks(c, names, sizeof names);
  snprintf(c->out->text, sizeof c->out->text,
           "replicas differ: %s %s no sum, but others do: the parameters will drift apart", names,
           missing == 1 ? "has" : "have");
}
