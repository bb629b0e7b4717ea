/* Takes the spans of all ranks in two steps from a trace, in seconds, and computes from all steps the share of time in
 * which each rank waits for others. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "report/document.h"

static const char *text_at(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static double number_at(const json_t *object, const char *key) {
  return json_number_value(json_object_get(object, key));
}

static json_int_t integer_at(const json_t *object, const char *key) {
  return json_integer_value(json_object_get(object, key));
}

static json_int_t step_of(const json_t *event) { return integer_at(json_object_get(event, "args"), "step"); }

/* ---- choosing the steps that are shown ---- */

/* The first, the second and the last step that ended on the first rank; -1 if there is no such step. */
typedef struct shown {
  json_int_t first, second, last;
} shown;

static int is_step(const json_t *event) { return !strcmp(text_at(event, "cat"), "step") && !integer_at(event, "pid"); }

static shown find_steps(const json_t *events) {
  shown found = {-1, -1, -1};
  size_t i;
  const json_t *event;
  json_array_foreach(events, i, event) {
    if (!is_step(event)) continue;
    found.last = step_of(event);
    if (found.first < 0)
      found.first = found.last;
    else if (found.second < 0)
      found.second = found.last;
  }
  return found;
}

/* Returns the early step that is shown: the second, because the first one touches new memory, or the first if there is
 * no second. */
static json_int_t early(const shown *steps) { return steps->second < 0 ? steps->first : steps->second; }

static int is_shown(const shown *steps, const json_t *event) {
  return step_of(event) == early(steps) || step_of(event) == steps->last;
}

/* ---- taking the shown steps' spans from the trace ---- */

static json_t *span_of(const json_t *event, double end) {
  const json_t *of = json_object_get(event, "args");
  json_t *stage = json_object_get(of, "stage");
  json_t *span = json_pack("{s:I, s:I, s:s, s:I, s:f, s:f, s:I}", "step", step_of(event), "rank",
                           integer_at(event, "pid"), "kind", text_at(event, "cat"), "index", integer_at(of, "index"),
                           "begin", number_at(event, "ts") * 1e-6, "end", end * 1e-6, "bytes", integer_at(of, "bytes"));
  if (stage) json_object_set(span, "stage", stage);
  return span;
}

/* Returns the span that begins with event i, or NULL if none does or the span's end is missing. A span that overlaps
 * others is two consecutive events. */
static json_t *span_at(const json_t *events, size_t i) {
  const json_t *event = json_array_get(events, i), *next = json_array_get(events, i + 1);
  const char *phase = text_at(event, "ph");
  if (!strcmp(phase, "X")) return span_of(event, number_at(event, "ts") + number_at(event, "dur"));
  return !strcmp(phase, "b") && !strcmp(text_at(next, "ph"), "e") ? span_of(event, number_at(next, "ts")) : NULL;
}

static json_t *spans_of(const json_t *events, const shown *steps, json_int_t *ranks) {
  json_t *spans = json_array();
  size_t i;
  const json_t *event;
  json_array_foreach(events, i, event) {
    if (integer_at(event, "pid") >= *ranks) *ranks = integer_at(event, "pid") + 1;
    json_t *span = is_shown(steps, event) ? span_at(events, i) : NULL;
    if (span) json_array_append_new(spans, span);
  }
  return spans;
}

/* ---- the share of time in which ranks wait for each other ---- */

/* Microseconds that a rank spent in steps, and how many of these it was idle. */
typedef struct rank_time {
  double steps, idle;
} rank_time;

/* Returns 1 if a rank in a span of this kind only waits: for a module on other ranks or, at the end of a step, for sums
 * over all ranks. */
static int is_idle(const char *kind) {
  static const char *const kinds[] = {"wait for value", "wait for gradient", "wait for room", "loss and norm"};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (!strcmp(kind, kinds[i])) return 1;
  return 0;
}

static void add_times(const json_t *events, rank_time *times, json_int_t ranks) {
  size_t i;
  const json_t *event;
  json_array_foreach(events, i, event) {
    json_int_t rank = integer_at(event, "pid");
    if (rank < 0 || rank >= ranks) continue;
    if (!strcmp(text_at(event, "cat"), "step")) times[rank].steps += number_at(event, "dur");
    if (is_idle(text_at(event, "cat"))) times[rank].idle += number_at(event, "dur");
  }
}

/* Returns for each rank the idle share of its steps, or null if the rank has no step. */
static json_t *idle_of(const json_t *events, json_int_t ranks) {
  rank_time *times;
  if (ad_new((size_t)ranks, &times)) return NULL;
  json_t *shares = json_array();
  add_times(events, times, ranks);
  for (json_int_t rank = 0; rank < ranks; rank++) {
    const rank_time *time = &times[rank];
    json_array_append_new(shares, time->steps > 0 ? json_real(time->idle / time->steps) : json_null());
  }
  ad_release(times);
  return shares;
}

/* ---- writing the timeline ---- */

static json_t *steps_of(const shown *steps) {
  return early(steps) == steps->last ? json_pack("[I]", steps->last) : json_pack("[II]", early(steps), steps->last);
}

ad_status ad_report_timeline(const json_t *trace, json_t **out) {
  const json_t *events = json_object_get(trace, "traceEvents");
  if (!json_is_array(events))
    return ad_fail(AD_IO,
                   "trace.json is not the trace of a training run, since the list traceEvents is missing; use the "
                   "trace.json that `addend train` wrote");
  shown steps = find_steps(events);
  json_int_t ranks = 0;
  if (steps.last < 0) return *out = NULL, AD_OK;
  json_t *spans = spans_of(events, &steps, &ranks);
  *out = json_pack("{s:o, s:I, s:o, s:o}", "steps", steps_of(&steps), "ranks", ranks, "spans", spans, "idle",
                   idle_of(events, ranks));
  return *out ? AD_OK : ad_fail(AD_MEMORY, "no memory for the timeline");
}
