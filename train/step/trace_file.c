/* Writes traces in the Chrome trace format. Each rank is a process, whose work is on thread 0. Reductions overlap, so
 * they are asynchronous spans. */
#include "base/unfinished.h"
#include "base/locale.h"
#include "step/trace.h"

static void write_process(FILE *file, int64_t rank) {
  fprintf(file, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%lld,\"args\":{\"name\":\"rank %lld\"}},\n",
          (long long)rank, (long long)rank);
  fprintf(file, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%lld,\"tid\":0,\"args\":{\"name\":\"compute\"}}",
          (long long)rank);
}

static int is_pass(const ad_trace_event *event) {
  return event->kind == AD_TRACE_FORWARD || event->kind == AD_TRACE_BACKWARD || event->kind == AD_TRACE_WEIGHTS;
}

static void write_span(FILE *file, const ad_trace_event *event, int64_t rank) {
  fprintf(file,
          ",\n{\"ph\":\"X\",\"name\":\"%s %lld\",\"cat\":\"%s\",\"pid\":%lld,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f,"
          "\"args\":{\"step\":%lld,\"index\":%lld,\"bytes\":%lld",
          ad_trace_kind_name(event->kind), (long long)event->index, ad_trace_kind_name(event->kind), (long long)rank,
          (double)event->begin / 1e3, (double)(event->end - event->begin) / 1e3, (long long)event->step,
          (long long)event->index, (long long)event->bytes);
  if (is_pass(event)) fprintf(file, ",\"stage\":%lld", (long long)event->stage);
  fputs("}}", file);
}

static void write_overlapping_end(FILE *file, const ad_trace_event *event, int64_t rank, char phase, int64_t time) {
  char axes[80];
  ad_axes_print((ad_axes)event->axes, axes, sizeof axes);
  fprintf(
      file,
      ",\n{\"ph\":\"%c\",\"name\":\"bucket %lld: %s over %s\",\"cat\":\"reduction\",\"id\":%lld,\"pid\":%lld,\"tid\":0,"
      "\"ts\":%.3f,\"args\":{\"step\":%lld,\"index\":%lld,\"bytes\":%lld,\"op\":\"%s\",\"axes\":\"%s\"}}",
      phase, (long long)event->index, ad_move_name((ad_move)event->move), axes, (long long)event->index,
      (long long)rank, (double)time / 1e3, (long long)event->step, (long long)event->index, (long long)event->bytes,
      ad_move_name((ad_move)event->move), axes);
}

static void write_event(FILE *file, const ad_trace_event *event, int64_t rank) {
  if (!event->end) return;
  if (event->kind != AD_TRACE_REDUCTION) {
    write_span(file, event, rank);
    return;
  }
  write_overlapping_end(file, event, rank, 'b', event->begin);
  write_overlapping_end(file, event, rank, 'e', event->end);
}

static void write_rank(FILE *file, const ad_trace_event *events, size_t count, int64_t rank) {
  ad_locale locale = ad_locale_enter();
  write_process(file, rank);
  for (size_t i = 0; i < count; i++) write_event(file, &events[i], rank);
  ad_locale_leave(locale);
}

static void begin_trace(FILE *file) { fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file); }
static void end_trace(FILE *file) { fputs("\n]}\n", file); }

typedef struct rank_trace {
  const ad_trace *trace;
  int64_t rank;
} rank_trace;

static ad_status print_rank(FILE *file, void *context) {
  const rank_trace *of = context;
  begin_trace(file);
  write_rank(file, of->trace->events, of->trace->count, of->rank);
  end_trace(file);
  return AD_OK;
}

ad_status ad_trace_write(const ad_trace *trace, int64_t rank, const char *path) {
  return ad_unfinished_write(path, print_rank, &(rank_trace){trace, rank}, NULL);
}

void ad_timeline_print(const ad_timeline *timeline, FILE *file) {
  const ad_trace_event *events = timeline->events;
  begin_trace(file);
  for (int64_t rank = 0; rank < timeline->ranks; rank++) {
    if (rank) fputs(",\n", file);
    write_rank(file, events, (size_t)timeline->counts[rank], rank);
    events += timeline->counts[rank];
  }
  end_trace(file);
}
