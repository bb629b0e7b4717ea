/* Records spans of time and gathers those of all ranks. trace_file.c has the file format. */
#include "step/trace.h"

#include "base/clock.h"
#include "base/memory.h"
#include "comm/agree.h"

enum { EVENT_WORDS = sizeof(ad_trace_event) / sizeof(int64_t) };

const char *ad_trace_kind_name(int64_t kind) {
  static const char *const names[] = {
#define TRACE_NAME(code, name) name,
      AD_TRACE_LIST(TRACE_NAME)
#undef TRACE_NAME
  };
  return names[kind];
}

ad_status ad_trace_create(ad_trace *out) {
  ad_trace trace = {0};
  ad_status status = ad_new(AD_TRACE_EVENTS_MAX, &trace.events);
  if (!status) status = ad_new(AD_TRACE_EVENTS_MAX, &trace.late);
  if (status)
    ad_trace_destroy(&trace);
  else
    *out = trace;
  return status;
}

void ad_trace_destroy(ad_trace *trace) {
  ad_release(trace->events);
  ad_release(trace->late);
  *trace = (ad_trace){0};
}

/* ---- the common time 0 of all ranks' clocks ---- */

/* CLOCK_MONOTONIC counts from the start of each machine, so machines cannot compare it. They compare their wall clocks
 * instead. */
ad_status ad_trace_start(ad_trace *trace, ad_comm *comm, const ad_group *group) {
  int64_t ahead = ad_wall_clock_ahead(), origin = ad_now() + ahead;
  AD_TRY(ad_share_first(comm, group, &origin, 1, AD_HERE));
  trace->origin = origin - ahead;
  return AD_OK;
}

static int64_t time_of(const ad_trace *trace) { return ad_now() - trace->origin; }

/* ---- recording spans ---- */

void ad_trace_begin_step(ad_trace *trace, int64_t step) {
  trace->recording = 1;
  trace->steps++;
  trace->step = step;
  trace->in_flight = 0;
  trace->waited = trace->reducing = trace->transfer = 0;
  ad_trace_begin(trace, AD_TRACE_STEP, step, 0);
}

void ad_trace_end_step(ad_trace *trace) {
  ad_trace_end(trace, AD_TRACE_STEP, trace->step);
  trace->recording = 0;
}

static int is_early(const ad_trace *trace) { return trace->steps <= AD_TRACE_FIRST_STEPS; }

static ad_trace_event *late_event(const ad_trace *trace, size_t number) {
  return &trace->late[number % AD_TRACE_EVENTS_MAX];
}

/* Returns the slot for the next event, or NULL if the memory for the first steps is full. */
static ad_trace_event *next_event(ad_trace *trace) {
  if (!is_early(trace)) return late_event(trace, trace->late_count++);
  return trace->count < AD_TRACE_EVENTS_MAX ? &trace->events[trace->count++] : NULL;
}

static void begin_event(ad_trace *trace, ad_trace_event event) {
  ad_trace_event *to = trace->recording ? next_event(trace) : NULL;
  if (!to) return;
  *to = event;
  to->step = trace->step;
}

/* Returns the event that was recorded `back` events ago, or NULL if there is none or it is of an earlier step. */
static ad_trace_event *earlier_event(const ad_trace *trace, size_t back) {
  size_t count = is_early(trace) ? trace->count : trace->late_count;
  if (back > count || back > AD_TRACE_EVENTS_MAX) return NULL;
  ad_trace_event *event = is_early(trace) ? &trace->events[count - back] : late_event(trace, count - back);
  return event->step == trace->step ? event : NULL;
}

static void end_at(ad_trace *trace, ad_trace_kind kind, int64_t index, int64_t time) {
  ad_trace_event *event;
  if (!trace->recording) return;
  for (size_t back = 1; (event = earlier_event(trace, back)); back++) {
    if (event->kind != (int64_t)kind || event->index != index || event->end) continue;
    event->end = time;
    return;
  }
}

void ad_trace_begin(ad_trace *trace, ad_trace_kind kind, int64_t index, size_t bytes) {
  begin_event(trace, (ad_trace_event){.kind = kind, .index = index, .begin = time_of(trace), .bytes = (int64_t)bytes});
}

void ad_trace_begin_pass(ad_trace *trace, ad_trace_kind kind, size_t stage, size_t microbatch) {
  begin_event(trace, (ad_trace_event){
                         .kind = kind, .index = (int64_t)microbatch, .begin = time_of(trace), .stage = (int64_t)stage});
}

void ad_trace_end(ad_trace *trace, ad_trace_kind kind, int64_t index) { end_at(trace, kind, index, time_of(trace)); }

static ad_trace_event event_of(ad_trace_kind kind, const ad_bucket_step *step, int64_t time) {
  return (ad_trace_event){.kind = kind,
                          .index = step->bucket,
                          .begin = time,
                          .bytes = (int64_t)step->bytes,
                          .move = step->move,
                          .axes = step->axes};
}

static void post_bucket(ad_trace *trace, const ad_bucket_step *step, int64_t time) {
  if (!trace->in_flight++) trace->reduction_begin = time;
  begin_event(trace, event_of(AD_TRACE_REDUCTION, step, time));
}

static void wait_for_bucket(ad_trace *trace, const ad_bucket_step *step, int64_t time) {
  trace->wait_begin = time;
  begin_event(trace, event_of(AD_TRACE_WAIT, step, time));
}

static void end_bucket(ad_trace *trace, int bucket, int64_t time) {
  trace->waited += time - trace->wait_begin;
  if (!--trace->in_flight) trace->reducing += time - trace->reduction_begin;
  end_at(trace, AD_TRACE_WAIT, bucket, time);
  end_at(trace, AD_TRACE_REDUCTION, bucket, time);
}

void ad_trace_bucket(void *context, ad_bucket_event event, const ad_bucket_step *step) {
  ad_trace *trace = context;
  int64_t time = time_of(trace);
  switch (event) {
    case AD_BUCKET_POST:
      post_bucket(trace, step, time);
      break;
    case AD_BUCKET_WAIT:
      wait_for_bucket(trace, step, time);
      break;
    case AD_BUCKET_DONE:
      end_bucket(trace, step->bucket, time);
  }
}

/* ---- keeping the events of the last steps ---- */

/* Returns the number of the first event in the ring that is kept: the beginning of the earliest of the last steps. */
static size_t first_late(const ad_trace *trace) {
  size_t first = trace->late_count;
  int steps = 0;
  for (size_t back = 1; back <= trace->late_count && back <= AD_TRACE_EVENTS_MAX; back++) {
    if (late_event(trace, trace->late_count - back)->kind != AD_TRACE_STEP) continue;
    first = trace->late_count - back;
    if (++steps == AD_TRACE_LAST_STEPS) break;
  }
  return first;
}

ad_status ad_trace_settle(ad_trace *trace) {
  size_t first = first_late(trace);
  if (first == trace->late_count) return AD_OK;
  AD_TRY(ad_grow(&trace->events, AD_TRACE_EVENTS_MAX, AD_TRACE_EVENTS_MAX + trace->late_count - first));
  for (size_t i = first; i < trace->late_count; i++) trace->events[trace->count++] = *late_event(trace, i);
  trace->late_count = 0;
  return AD_OK;
}

/* ---- gathering the events of all ranks ---- */

void ad_timeline_destroy(ad_timeline *timeline) {
  ad_release(timeline->events);
  ad_release(timeline->counts);
  *timeline = (ad_timeline){0};
}

static ad_status gather_counts(ad_comm *comm, const ad_group *group, int64_t own, ad_timeline *timeline) {
  timeline->ranks = ad_group_size(group);
  AD_TRY(ad_new((size_t)timeline->ranks, &timeline->counts));
  ad_collective gather = {.size = sizeof gather,
                          .op = AD_ALL_GATHER,
                          .group = *group,
                          .in = &own,
                          .out = timeline->counts,
                          .count = 1,
                          .dtype = AD_I64,
                          .site = AD_HERE};
  return ad_comm_run(comm, &gather);
}

static ad_status send_events(ad_comm *comm, const ad_group *group, const ad_trace *trace) {
  ad_message message = {.peer = 0, .send = trace->events, .count = trace->count * EVENT_WORDS};
  ad_collective send = {.size = sizeof send,
                        .op = AD_EXCHANGE,
                        .group = *group,
                        .messages = &message,
                        .message_count = 1,
                        .dtype = AD_I64,
                        .site = AD_HERE};
  return ad_comm_run(comm, &send);
}

static ad_status receive_events(ad_comm *comm, const ad_group *group, const ad_trace *trace, ad_message *messages,
                                ad_timeline *timeline) {
  ad_trace_event *next = timeline->events;
  for (size_t i = 0; i < trace->count; i++) *next++ = trace->events[i];
  for (int64_t rank = 1; rank < timeline->ranks; rank++) {
    messages[rank - 1] =
        (ad_message){.peer = rank, .receive = next, .count = (size_t)timeline->counts[rank] * EVENT_WORDS};
    next += timeline->counts[rank];
  }
  ad_collective receive = {.size = sizeof receive,
                           .op = AD_EXCHANGE,
                           .group = *group,
                           .messages = messages,
                           .message_count = (size_t)timeline->ranks - 1,
                           .dtype = AD_I64,
                           .site = AD_HERE};
  return ad_comm_run(comm, &receive);
}

static ad_status collect(ad_comm *comm, const ad_group *group, const ad_trace *trace, ad_timeline *timeline) {
  int64_t total = 0;
  for (int64_t i = 0; i < timeline->ranks; i++) total += timeline->counts[i];
  AD_TRY(ad_new((size_t)total, &timeline->events));
  ad_message *messages;
  AD_TRY(ad_new((size_t)timeline->ranks, &messages));
  ad_status status = receive_events(comm, group, trace, messages, timeline);
  ad_release(messages);
  return status;
}

ad_status ad_timeline_gather(ad_comm *comm, const ad_group *group, const ad_trace *trace, ad_timeline *out) {
  ad_timeline timeline = {0};
  int is_first = ad_group_index(group, ad_comm_rank(comm)) == 0;
  ad_status status = gather_counts(comm, group, (int64_t)trace->count, &timeline);
  if (!status) status = is_first ? collect(comm, group, trace, &timeline) : send_events(comm, group, trace);
  if (status || !is_first) ad_timeline_destroy(&timeline);
  if (status) return status;
  *out = timeline;
  return AD_OK;
}
