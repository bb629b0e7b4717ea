/* Which verdict it is. A pattern is looked for in all wrong parts together: what one rank's copy lacks says little,
 * what every copy lacks in the same way says what was left out. */
#include "diff/verdict.h"

#include <math.h>
#include <string.h>
#include "diff/verdict_case.h"

const char *ad_verdict_name(ad_verdict_kind kind) {
  static const char *const names[] = {
#define AD_VERDICT_TEXT_OF(code, name) name,
      AD_VERDICT_LIST(AD_VERDICT_TEXT_OF)
#undef AD_VERDICT_TEXT_OF
  };
  return names[kind];
}

static int same_counts(const ad_case *c, const ad_judged *a, const ad_judged *b) {
  if (ad_case_members(c, a)->count != ad_case_members(c, b)->count) return 0;
  for (size_t i = 0; i < ad_case_members(c, a)->count; i++) {
    double error = fmax(a->why.errors[i], b->why.errors[i]);
    if (isfinite(error) && !ad_counts_close(a->why.counts[i], b->why.counts[i], error)) return 0;
  }
  return 1;
}

static int wrong_ones_agree(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && !same_counts(c, c->first, &c->list[i])) return 0;
  return 1;
}

static int all_explained(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && !c->list[i].why.explains) return 0;
  return 1;
}

static void say_unexplained(ad_case *c) {
  uint32_t untried = ad_untried_axes(c->parts, c->list);
  char names[AD_VERDICT_TEXT / 4], or [AD_VERDICT_TEXT / 2] = "";
  ad_case_mark_holders(c, 1);
  ad_case_say(c, AD_VERDICT_UNEXPLAINED, 0, NAN);
  if (untried)
    snprintf(or, sizeof or, ", or is summed over %s, which a sample cannot tell",
             ad_case_axes(c, untried, names, sizeof names));
  snprintf(
      c->out->text, sizeof c->out->text,
      "unexplained: no counts of the addends give the sum (%.2g of it is left): it holds other data or another term%s",
      c->first->why.fitness.residual, or);
}

/* Both readings of a sum that has two, in short. */
static void say_ambiguous(ad_case *c) {
  char one[AD_VERDICT_TEXT], other[AD_VERDICT_TEXT];
  ad_judged second = *c->first;
  const ad_judged *first = c->first;
  second.why.counts = second.why.others;
  snprintf(one, sizeof one, "%s", c->out->text);
  ad_case again = *c;
  again.list = again.first = &second;
  again.count = 1;
  if (!ad_case_try_local(&again)) ad_case_say_counts(&again);
  snprintf(other, sizeof other, "%s", c->out->text);
  if (!strcmp(one, other)) return;
  ad_case_say(c, AD_VERDICT_NOT_DISTINGUISHABLE, 0, NAN);
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  c->out->shown = first;
  snprintf(c->out->text, sizeof c->out->text, "wrong, and these cannot be told apart: %.200s; or: %.200s", one, other);
}

/* ---- of sums that are in shards, or copies of which some are right: which of them ---- */

/* Marks who holds what the verdict is about: `local`, every wrong part, else those that are wrong as the first is.
 * Returns 0 where that is everything. */
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

/* Leaves no rank marked. */
static void print_shards(const ad_case *c, int local, char *out, size_t size) {
  const ad_shape *shape = &c->parts->param->shape;
  ad_box whole = ad_box_whole(shape);
  char ranks[AD_VERDICT_TEXT / 4];
  *out = 0;
  if (mark_shards(c, local))
    snprintf(out, size, "; in the %s of %s%s", ad_box_equal(shape, &c->first->part->box, &whole) ? "copy" : "shard",
             ad_case_ranks(c, ranks, sizeof ranks),
             local || wrong_ones_agree(c) ? " only" : ", and in others something else");
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
}

/* A verdict that is about some ranks' addends keeps them. */
static void add_shards(ad_case *c, int local, const char *shards) {
  size_t used = strlen(c->out->text);
  if (!*shards) return;
  snprintf(c->out->text + used, sizeof c->out->text - used, "%s", shards);
  if (!memchr(c->out->ranks, 1, (size_t)c->dump->mesh.world)) mark_shards(c, local);
}

static void say_wrong(ad_case *c) {
  char shards[AD_VERDICT_TEXT / 2];
  c->out->shown = c->first;
  if (!all_explained(c)) {
    say_unexplained(c);
    return;
  }
  if (ad_case_try_group(c)) return;
  int local = ad_case_try_local(c);
  if (!local && !wrong_ones_agree(c) && ad_case_try_some(c)) return;
  if (!local && ad_case_copies_differ(c) && (ad_case_some_hold(c) || !wrong_ones_agree(c))) {
    ad_case_say_replicas(c);
    return;
  }
  print_shards(c, local, shards, sizeof shards);
  if (!local) ad_case_say_counts(c);
  if (c->first->why.ambiguous) say_ambiguous(c);
  add_shards(c, local, shards);
}

void ad_verdict_find(const ad_parts *parts, const ad_judged *list, unsigned char *ranks, ad_verdict *out) {
  ad_case c = {.parts = parts, .dump = parts->dump, .list = list, .count = parts->count, .out = out};
  *out = (ad_verdict){.kind = AD_VERDICT_RIGHT, .factor = 1, .ranks = ranks};
  memset(ranks, 0, (size_t)parts->dump->mesh.world);
  for (size_t i = 0; i < parts->count && !c.first; i++)
    if (!list[i].holds) c.first = &list[i];
  if (c.first)
    say_wrong(&c);
  else if (!ad_case_try_lacking(&c) && ad_case_copies_differ(&c))
    ad_case_say_replicas(&c);
}
