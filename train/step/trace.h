/* Records what a rank does and when: spans of time in the first and the last steps, in memory that is allocated once,
 * and how long the reductions of the present step take. Traces are written in the Chrome trace format, which Perfetto
 * opens. */
#ifndef TRAIN_TRACE_H
#define TRAIN_TRACE_H
#include <stdio.h>
#include "addend/reduce.h"

/* The kinds of spans, with their names in a trace. */
#define AD_TRACE_LIST(X)                     \
  X(AD_TRACE_STEP, "step")                   \
  X(AD_TRACE_READ, "read batch")             \
  X(AD_TRACE_FORWARD, "forward")             \
  X(AD_TRACE_BACKWARD, "backward")           \
  X(AD_TRACE_WEIGHTS, "backward of weights") \
  X(AD_TRACE_REDUCTION, "reduction")         \
  X(AD_TRACE_WAIT, "wait for bucket")        \
  X(AD_TRACE_VALUE, "wait for value")        \
  X(AD_TRACE_GRADIENT, "wait for gradient")  \
  X(AD_TRACE_SENT, "wait for room")          \
  X(AD_TRACE_NORM, "loss and norm")          \
  X(AD_TRACE_UPDATE, "update")

typedef enum ad_trace_kind {
#define AD_TRACE_CODE(code, name) code,
  AD_TRACE_LIST(AD_TRACE_CODE)
#undef AD_TRACE_CODE
      AD_TRACE_COUNT
} ad_trace_kind;

/* An event of a trace. All members are 64-bit integers, because ranks send events to each other as integers. */
typedef struct ad_trace_event {
  int64_t kind, index; /* index: of the microbatch or of the bucket */
  int64_t step;
  int64_t begin, end; /* nanoseconds since the trace's origin; end is 0 if the span did not end */
  int64_t bytes;
  int64_t move, axes; /* only in events of reductions: an ad_move and ad_axes */
  int64_t stage;      /* only in events of a phase's pass over a microbatch: the phase's index */
} ad_trace_event;

/* A trace keeps the events of this many first steps and of this many last steps, at most AD_TRACE_EVENTS_MAX of
 * each. */
enum { AD_TRACE_FIRST_STEPS = 20, AD_TRACE_LAST_STEPS = 4, AD_TRACE_EVENTS_MAX = 1 << 14 };

typedef struct ad_trace {
  ad_trace_event *events; /* events of the first steps; ad_trace_settle appends those of the last steps */
  size_t count;
  ad_trace_event *late; /* a ring: event number i is late[i % AD_TRACE_EVENTS_MAX] */
  size_t late_count;    /* number of events that were written to the ring so far */
  int64_t origin;       /* the value of ad_now() that counts as 0 */
  int64_t steps, step;  /* number of steps that began so far; number of the present step */
  int recording;        /* 1 from the begin of a step to its end */
  int in_flight;        /* number of reductions that are posted and not waited for yet */
  int64_t wait_begin, reduction_begin;
  int64_t waited, reducing; /* nanoseconds of the present step: in which this rank waited for a reduction; in which a
                             * reduction was in flight */
  int64_t transfer; /* nanoseconds of the present step: in which this rank posted transfers between modules or waited
                     * for them */
} ad_trace;

/* Creates a trace whose origin is that of CLOCK_MONOTONIC, which all ranks on a machine share. */
ad_status ad_trace_create(ad_trace *out) AD_CHECKED;
void ad_trace_destroy(ad_trace *trace);
/* Makes the present moment the origin on all ranks, as exactly as the clocks of their machines agree. Collective over
 * the group. */
ad_status ad_trace_start(ad_trace *trace, ad_comm *comm, const ad_group *group) AD_CHECKED;
/* Begins to record; ad_trace_end_step stops. */
void ad_trace_begin_step(ad_trace *trace, int64_t step);
void ad_trace_end_step(ad_trace *trace);
/* Appends the events of the last steps to `events`, except those of steps whose begin the ring has overwritten. Called
 * after the last step. */
ad_status ad_trace_settle(ad_trace *trace) AD_CHECKED;
void ad_trace_begin(ad_trace *trace, ad_trace_kind kind, int64_t index, size_t bytes);
/* Begins the span of a phase's pass over a microbatch; ad_trace_end ends it. */
void ad_trace_begin_pass(ad_trace *trace, ad_trace_kind kind, size_t stage, size_t microbatch);
void ad_trace_end(ad_trace *trace, ad_trace_kind kind, int64_t index);
/* The trace function in a reducer's options; `context` is an ad_trace. */
void ad_trace_bucket(void *context, ad_bucket_event event, const ad_bucket_step *step);

/* The events of all ranks of a group, on the group's first rank; empty on other ranks. */
typedef struct ad_timeline {
  ad_trace_event *events; /* the events of the first rank, then those of the second, and so on */
  int64_t *counts;        /* the number of events of each rank */
  int64_t ranks;
} ad_timeline;
/* Gathers the events on the group's first rank. Collective over the group. */
ad_status ad_timeline_gather(ad_comm *comm, const ad_group *group, const ad_trace *trace, ad_timeline *out) AD_CHECKED;
void ad_timeline_destroy(ad_timeline *timeline);
const char *ad_trace_kind_name(int64_t kind);

/* Writes one rank's settled trace to a file. Returns AD_IO with the path in the message. */
ad_status ad_trace_write(const ad_trace *trace, int64_t rank, const char *path) AD_CHECKED;
void ad_timeline_print(const ad_timeline *timeline, FILE *file);

#endif
