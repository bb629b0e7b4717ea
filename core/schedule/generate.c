/* Makes tables by the name of a schedule. */
#include "schedule/generate.h"

#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "addend/helpers.h"

/* The stages that a schedule requires: one on each rank, the same number on each rank, or all on one rank. */
typedef enum schedule_fit { ONE_EACH, MULTIPLE, ONE_RANK } schedule_fit;

static const struct {
  const char *name;
  ad_table_generator *put;
  schedule_fit fit;
} schedules[] = {
    {"gpipe", ad_table_gpipe, MULTIPLE},
    {"1f1b", ad_table_one_f_one_b, ONE_EACH},
    {"interleaved", ad_table_interleaved, MULTIPLE},
    {"zb", ad_table_zero_bubble, ONE_EACH},
    {"accumulate", ad_table_leads, ONE_RANK},
    {"leads", ad_table_leads, ONE_EACH},
};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

const char *ad_table_schedule_name(size_t index) { return index < SCHEDULES ? schedules[index].name : NULL; }

static ad_status find_schedule(const char *name, size_t *out) {
  const char *names[SCHEDULES];
  for (*out = 0; *out < SCHEDULES; ++*out) {
    if (!strcmp(schedules[*out].name, name)) return AD_OK;
    names[*out] = schedules[*out].name;
  }
  char typed[AD_ACTION_TEXT_MAX];
  const char *near = ad_nearest_name(name, names, SCHEDULES);
  ad_printable(name, typed, sizeof typed);
  if (near) return ad_fail(AD_INVALID, "there is no schedule '%s'; did you mean %s?", typed, near);
  return ad_fail(AD_INVALID, "there is no schedule '%s'; choose gpipe, 1f1b, interleaved, zb, accumulate or leads",
                 typed);
}

ad_status ad_table_check_shape(const ad_table_shape *shape) {
  if (shape->stages < 1 || shape->stages > AD_TABLE_STAGES_MAX)
    return ad_fail(AD_INVALID,
                   "a schedule table can have 1 to %d stages, but %d were requested; choose a number in this range",
                   AD_TABLE_STAGES_MAX, shape->stages);
  if (shape->microbatches < 1 || shape->microbatches > AD_TABLE_CELLS_MAX / shape->stages)
    return ad_fail(AD_INVALID,
                   "a schedule table of %d stages can have 1 to %d microbatches, but %d were requested; choose a "
                   "number in this range",
                   shape->stages, AD_TABLE_CELLS_MAX / shape->stages, shape->microbatches);
  if (shape->ranks < 1 || shape->ranks > AD_TABLE_RANKS_MAX)
    return ad_fail(AD_INVALID,
                   "a schedule table can have 1 to %d ranks, but %d were requested; choose a number in this range",
                   AD_TABLE_RANKS_MAX, shape->ranks);
  return AD_OK;
}

/* Returns AD_INVALID unless the shape's number of stages fits its ranks, as the schedule requires. */
static ad_status check_fit(const char *name, schedule_fit fit, const ad_table_shape *shape) {
  if (fit == ONE_EACH && shape->ranks != shape->stages)
    return ad_fail(AD_INVALID,
                   "schedule '%s' has one stage per rank, so the numbers of stages and ranks must be equal, not %d and "
                   "%d; interleaved and gpipe can have several stages per rank",
                   name, shape->stages, shape->ranks);
  if (fit == MULTIPLE && shape->stages % shape->ranks)
    return ad_fail(AD_INVALID,
                   "schedule '%s' has the same number of stages on each of the %d ranks, so the number of stages must "
                   "be a multiple of the number of ranks, not %d",
                   name, shape->ranks, shape->stages);
  if (fit == ONE_RANK && shape->ranks != 1)
    return ad_fail(AD_INVALID,
                   "schedule '%s' has all stages on one rank, but the table has %d ranks; set the number of ranks to 1",
                   name, shape->ranks);
  return AD_OK;
}

ad_status ad_table_make(const char *name, const ad_table_shape *given, ad_table **out) {
  ad_table_shape shape;
  ad_table *table;
  size_t at;
  AD_NEED(name, given, out);
  AD_TRY(ad_options_take(&shape, sizeof shape, given, "ad_table_shape"));
  AD_TRY(find_schedule(name, &at));
  if (!shape.ranks) shape.ranks = schedules[at].fit == ONE_RANK ? 1 : shape.stages;
  AD_TRY(ad_table_check_shape(&shape));
  AD_TRY(check_fit(name, schedules[at].fit, &shape));
  AD_TRY(ad_table_create(shape.ranks, &table));
  ad_status status = schedules[at].put(table, &shape);
  if (status)
    ad_table_destroy(table);
  else
    *out = table;
  return status;
}
