/* What happened when on a rank: spans of time of the first steps and of the last, in memory that is taken once, and the
 * time that reductions took in the present step. Written in the Chrome trace format, which Perfetto opens. */
#ifndef TRAIN_TRACE_H
#define TRAIN_TRACE_H
#include <stdio.h>
#include "addend/reduce.h"

/* code, the name that a trace shows */
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

/* Sixty-four bit integers only: events travel between ranks as such. */
typedef struct ad_trace_event {
  int64_t kind, index; /* of the microbatch or bucket */
  int64_t step;
  int64_t begin, end; /* ns since the trace's origin; end 0: never ended */
  int64_t bytes;
  int64_t move, axes; /* of a reduction */
  int64_t stage;      /* of a pass over a microbatch: the phase's number */
} ad_trace_event;

enum { AD_TRACE_FIRST_STEPS = 20, AD_TRACE_LAST_STEPS = 4, AD_TRACE_EVENTS_MAX = 1 << 14 /* of either */ };

typedef struct ad_trace {
  ad_trace_event *events; /* of the first steps; ad_trace_settle puts those of the last behind them */
  size_t count;
  ad_trace_event *late; /* a ring: event number i lies at i % AD_TRACE_EVENTS_MAX */
  size_t late_count;    /* that were put there */
  int64_t origin;       /* of ad_now */
  int64_t steps, step;  /* begun so far; the present one */
  int recording;        /* between the begin and the end of a step */
  int under_way;        /* reductions that were posted and not waited for */
  int64_t wait_begin, reduction_begin;
  int64_t waited, reducing; /* ns of the present step: stood waiting for a reduction; some reduction was under way */
  int64_t crossing; /* the same: posted values and gradients that go between modules, or stood waiting for them */
} ad_trace;

/* Its origin is CLOCK_MONOTONIC's, which the ranks of a machine share. */
ad_status ad_trace_create(ad_trace *out) AD_CHECKED;
void ad_trace_destroy(ad_trace *trace);
/* From now on times count from this moment, the same on all ranks; of ranks on several machines, as well as their
 * clocks agree. Collective over the group. */
ad_status ad_trace_start(ad_trace *trace, ad_comm *comm, const ad_group *group) AD_CHECKED;
/* Records until ad_trace_end_step. */
void ad_trace_begin_step(ad_trace *trace, int64_t step);
void ad_trace_end_step(ad_trace *trace);
/* After the last step: `events` then holds the first steps, and those of the last that are there from their begin. */
ad_status ad_trace_settle(ad_trace *trace) AD_CHECKED;
void ad_trace_begin(ad_trace *trace, ad_trace_kind kind, int64_t index, size_t bytes);
/* Of a pass of a phase over a microbatch; it ends with ad_trace_end. */
void ad_trace_begin_pass(ad_trace *trace, ad_trace_kind kind, size_t stage, size_t microbatch);
void ad_trace_end(ad_trace *trace, ad_trace_kind kind, int64_t index);
/* For the reducer's options; `context` is an ad_trace. */
void ad_trace_bucket(void *context, ad_bucket_event event, const ad_bucket_step *step);

/* The events of all ranks of a group, on its first member; empty on the others. */
typedef struct ad_timeline {
  ad_trace_event *events; /* rank after rank */
  int64_t *counts;        /* of each rank */
  int64_t ranks;
} ad_timeline;
/* Collective over the group. */
ad_status ad_timeline_gather(ad_comm *comm, const ad_group *group, const ad_trace *trace, ad_timeline *out) AD_CHECKED;
void ad_timeline_destroy(ad_timeline *timeline);
const char *ad_trace_kind_name(int64_t kind);

/* One rank's, settled. AD_IO names the path. */
ad_status ad_trace_write(const ad_trace *trace, int64_t rank, const char *path) AD_CHECKED;
void ad_timeline_print(const ad_timeline *timeline, FILE *file);

#endif
