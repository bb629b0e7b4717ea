/* What the files that find a verdict share. */
#include "diff/verdict_case.h"

#include <math.h>
#include <string.h>
#include "diff/hypotheses.h"

const ad_members *ad_case_members(const ad_case *c, const ad_judged *judged) {
  return ad_part_members(c->parts, judged->part);
}

int ad_counts_close(double a, double b, double error) {
  return fabs(a - b) <= fmax(ad_count_tolerance(error), 1e-4 * fabs(b));
}

const char *ad_case_axes(const ad_case *c, uint32_t axes, char *buffer, size_t size) {
  return ad_dump_axes_print(&c->dump->mesh, axes, buffer, size);
}

const char *ad_case_ranks(const ad_case *c, char *buffer, size_t size) {
  return ad_dump_ranks_print(&c->dump->mesh, c->out->ranks, buffer, size);
}

void ad_case_say(ad_case *c, ad_verdict_kind kind, uint32_t axes, double factor) {
  c->out->kind = kind;
  c->out->axes = axes;
  c->out->factor = factor;
}

void ad_case_mark_holders(const ad_case *c, int wrong) {
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  for (size_t i = 0; i < c->count; i++)
    for (size_t h = 0; h < c->list[i].part->holder_count && (!wrong || !c->list[i].holds); h++)
      c->out->ranks[c->list[i].part->holders[h]] = 1;
}

int ad_case_some_hold(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (c->list[i].holds) return 1;
  return 0;
}
