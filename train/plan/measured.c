/* Reads from the trace of a run how long the actions of its pipeline took. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"
#include "files/json.h"
#include "plan/picture.h"
#include "plan/schedule.h"
#include "step/trace.h"

/* The passes that a trace records. Action B, the full backward pass, consists of BACKWARD and, if the run had such
 * passes, WEIGHTS. */
enum { FORWARD, BACKWARD, WEIGHTS, KINDS };

/* The times of each pass, stage and microbatch in a trace. */
typedef struct measured {
  const char *path;
  int32_t stages, microbatches;
  json_int_t first_step, last_step;
  double *seconds; /* [pass][stage][microbatch]: seconds, summed over all steps and ranks */
  /* [pass][stage][microbatch]: how many passes were added up in `seconds` */
  int64_t *times;
  size_t in_flight; /* index of the pass that was read last; SIZE_MAX before the first */
  json_int_t rank;  /* the rank of that pass */
  double pass_end;  /* when that pass ended, in microseconds */
} measured;

static int pass_of(const json_t *event) {
  static const ad_trace_kind kinds[KINDS] = {AD_TRACE_FORWARD, AD_TRACE_BACKWARD, AD_TRACE_WEIGHTS};
  for (int i = 0; i < KINDS; i++)
    if (!strcmp(ad_text_of(event, "cat"), ad_trace_kind_name(kinds[i]))) return i;
  return -1;
}

static int is_wait(const json_t *event) {
  return !strcmp(ad_text_of(event, "cat"), ad_trace_kind_name(AD_TRACE_VALUE));
}

static double time_of(const json_t *event, const char *key) { return json_number_value(json_object_get(event, key)); }

/* Returns the index of a pass, stage and microbatch in `seconds` and `times`. */
static size_t pass_index(const measured *of, int pass, int64_t stage, int64_t microbatch) {
  return (size_t)(((int64_t)pass * of->stages + stage) * of->microbatches + microbatch);
}

/* ---- reading the trace ---- */

static ad_status add_pass(measured *to, int pass, const json_t *event) {
  const json_t *of = json_object_get(event, "args");
  json_int_t stage = ad_integer_of(of, "stage"), microbatch = ad_integer_of(of, "index");
  if (stage < 0 || stage >= to->stages || microbatch < 0 || microbatch >= to->microbatches)
    return ad_fail(AD_INVALID,
                   "%s is the trace of another pipeline, since it has stage %lld and microbatch %lld (from 0), but the "
                   "recipe has only %d stages and %d microbatches; name a run of this recipe",
                   to->path, (long long)stage, (long long)microbatch, to->stages, to->microbatches);
  size_t at = pass_index(to, pass, stage, microbatch);
  to->seconds[at] += 1e-6 * time_of(event, "dur");
  to->times[at]++;
  to->in_flight = at;
  to->pass_end = time_of(event, "ts") + time_of(event, "dur");
  to->rank = ad_integer_of(event, "pid");
  return AD_OK;
}

/* Subtracts the time that a pass waited for a value. Events are sorted by rank, then by when they begin. */
static void take_wait(measured *from, const json_t *event) {
  int is_inside = ad_integer_of(event, "pid") == from->rank && time_of(event, "ts") < from->pass_end;
  if (from->in_flight != SIZE_MAX && is_inside) from->seconds[from->in_flight] -= 1e-6 * time_of(event, "dur");
}

static void find_steps(const json_t *events, measured *of) {
  const json_t *event;
  size_t i;
  of->first_step = of->last_step = -1;
  json_array_foreach(events, i, event) {
    if (pass_of(event) < 0) continue;
    of->last_step = ad_integer_of(json_object_get(event, "args"), "step");
    if (of->first_step < 0) of->first_step = of->last_step;
  }
}

/* Returns 1 if an event is counted. The first step is slow, because memory is touched for the first time, so its events
 * are counted only if it is the only step. */
static int counts(const measured *of, const json_t *event) {
  return of->first_step == of->last_step || ad_integer_of(json_object_get(event, "args"), "step") != of->first_step;
}

static ad_status read_events(const json_t *events, measured *to) {
  const json_t *event;
  size_t i;
  find_steps(events, to);
  to->in_flight = SIZE_MAX;
  json_array_foreach(events, i, event) {
    int pass = pass_of(event);
    if (!counts(to, event)) continue;
    if (pass >= 0) AD_TRY(add_pass(to, pass, event));
    if (is_wait(event)) take_wait(to, event);
  }
  return AD_OK;
}

/* ---- the mean time of each action ---- */

/* Returns the mean seconds of a pass, but at least 1 ns, because the duration of an action must not be 0. */
static double mean_of(const measured *of, int pass, const ad_action *action) {
  size_t at = pass_index(of, pass, action->stage, action->microbatch);
  double mean = of->times[at] ? of->seconds[at] / (double)of->times[at] : 0;
  return mean > 1e-9 ? mean : 1e-9;
}

static int is_there(const measured *of, int pass, const ad_action *action) {
  return of->times[pass_index(of, pass, action->stage, action->microbatch)] > 0;
}

/* Returns the seconds of an action F, B, I or W. */
static double seconds_of(const measured *of, const ad_action *action) {
  static const int passes[] = {
      [AD_ACTION_F] = FORWARD, [AD_ACTION_B] = BACKWARD, [AD_ACTION_I] = BACKWARD, [AD_ACTION_W] = WEIGHTS};
  double seconds = mean_of(of, passes[action->kind], action);
  int is_both = action->kind == AD_ACTION_B && is_there(of, WEIGHTS, action);
  return is_both ? seconds + mean_of(of, WEIGHTS, action) : seconds;
}

/* Returns 1 if the trace has the action's times. The trace has times of I and W only if the schedule of the run had
 * these actions. */
static int can_tell(const measured *of, const ad_action *action) {
  if (action->kind == AD_ACTION_F) return is_there(of, FORWARD, action);
  if (action->kind == AD_ACTION_B) return is_there(of, BACKWARD, action);
  return is_there(of, BACKWARD, action) && is_there(of, WEIGHTS, action);
}

/* Stores the measured seconds of one action; does nothing for actions that communicate. */
static ad_status take_action(const measured *of, const ad_action *action, double *of_action) {
  char text[AD_ACTION_TEXT_MAX];
  if (action->kind > AD_ACTION_W) return AD_OK;
  if (!can_tell(of, action))
    return ad_fail(AD_INVALID,
                   "%s has no time for the action %s, so it is the trace of other stages, other microbatches or "
                   "another schedule; name a run of this recipe",
                   of->path, ad_action_print(action, text, sizeof text));
  of_action[pass_index(of, (int)action->kind, action->stage, action->microbatch)] = seconds_of(of, action);
  return AD_OK;
}

static ad_status take_all(const measured *of, const ad_table *table, double *of_action) {
  for (int32_t r = 0; r < ad_table_rank_count(table); r++)
    for (size_t i = 0; i < ad_table_action_count(table, r); i++)
      AD_TRY(take_action(of, ad_table_action(table, r, i), of_action));
  return AD_OK;
}

/* ---- measuring a table of actions ---- */

static ad_status measure_trace(const char *path, const ad_table *table, measured *of, double *of_action) {
  json_t *trace;
  AD_TRY(ad_json_read(path, &trace));
  ad_status status = read_events(json_object_get(trace, "traceEvents"), of);
  json_decref(trace);
  return status ? status : take_all(of, table, of_action);
}

ad_status ad_plan_measure(const char *folder, const ad_table *table, double *of_action) {
  measured of = {.stages = ad_table_stage_count(table), .microbatches = ad_table_microbatch_count(table)};
  size_t count = (size_t)KINDS * (size_t)of.stages * (size_t)of.microbatches;
  char *path;
  AD_TRY(ad_path_in(folder, "trace.json", &path));
  of.path = path;
  ad_status status = ad_new(count, &of.seconds);
  if (!status) status = ad_new(count, &of.times);
  if (!status) status = measure_trace(path, table, &of, of_action);
  ad_release(of.seconds);
  ad_release(of.times);
  ad_release(path);
  return status;
}
