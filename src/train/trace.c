/* Recording spans of time and bringing those of all ranks together. The file format is in trace_file.c. */
#include "train/trace.h"

#include "base/clock.h"
#include "base/memory.h"

enum { STEPS_MAX = 20, EVENTS_MAX = 1 << 14, EVENT_WORDS = sizeof(ad_trace_event) / sizeof(int64_t) };

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
  AD_TRY(ad_new(EVENTS_MAX, &trace.events));
  *out = trace;
  return AD_OK;
}

void ad_trace_destroy(ad_trace *trace) {
  ad_release(trace->events);
  *trace = (ad_trace){0};
}

void ad_trace_begin_step(ad_trace *trace, int64_t step) {
  trace->recording = trace->steps < STEPS_MAX;
  trace->step = step;
  ad_trace_begin(trace, AD_TRACE_STEP, step, 0);
}

void ad_trace_end_step(ad_trace *trace) {
  ad_trace_end(trace, AD_TRACE_STEP, trace->step);
  trace->steps += trace->recording;
  trace->recording = 0;
}

void ad_trace_begin(ad_trace *trace, ad_trace_kind kind, int64_t index, size_t bytes) {
  if (!trace->recording || trace->count == EVENTS_MAX) return;
  trace->events[trace->count++] = (ad_trace_event){kind, index, trace->step, ad_now(), 0, (int64_t)bytes};
}

void ad_trace_end(ad_trace *trace, ad_trace_kind kind, int64_t index) {
  if (!trace->recording) return;
  for (size_t i = trace->count; i-- > 0 && trace->events[i].step == trace->step;) {
    ad_trace_event *event = &trace->events[i];
    if (event->kind == kind && event->index == index && !event->end) {
      event->end = ad_now();
      return;
    }
  }
}

void ad_trace_bucket(void *context, ad_bucket_event event, int bucket, size_t bytes) {
  ad_trace *trace = context;
  switch (event) {
    case AD_BUCKET_POST:
      ad_trace_begin(trace, AD_TRACE_REDUCTION, bucket, bytes);
      break;
    case AD_BUCKET_WAIT:
      ad_trace_begin(trace, AD_TRACE_WAIT, bucket, bytes);
      break;
    case AD_BUCKET_DONE:
      ad_trace_end(trace, AD_TRACE_WAIT, bucket);
      ad_trace_end(trace, AD_TRACE_REDUCTION, bucket);
  }
}

void ad_timeline_destroy(ad_timeline *timeline) {
  ad_release(timeline->events);
  ad_release(timeline->counts);
  *timeline = (ad_timeline){0};
}

static ad_status gather_counts(ad_comm *comm, const ad_group *group, int64_t own, ad_timeline *timeline) {
  timeline->ranks = ad_group_size(group);
  AD_TRY(ad_new((size_t)timeline->ranks, &timeline->counts));
  ad_collective gather = {.op = AD_ALL_GATHER,
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
  ad_collective send = {
      .op = AD_EXCHANGE, .group = *group, .messages = &message, .message_count = 1, .dtype = AD_I64, .site = AD_HERE};
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
  ad_collective receive = {.op = AD_EXCHANGE,
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
