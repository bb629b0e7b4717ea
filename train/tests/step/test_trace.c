/* Tests the trace in memory: what is recorded, and how long it is kept. */
#include "says.h"
#include "world.h"

#include <jansson.h>
#include <unistd.h>

#include "step/trace.h"

static void pass_bucket(ad_trace *trace, ad_bucket_event event, int bucket, size_t bytes) {
  ad_bucket_step step = {bucket, bucket ? AD_MOVE_ALL_REDUCE : AD_MOVE_REDUCE_SCATTER, AD_AXES(AD_DP_SHARD), bytes};
  ad_trace_bucket(trace, event, &step);
}

static void spans_end_where_they_began(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  ad_trace_begin_step(&trace, 5);
  pass_bucket(&trace, AD_BUCKET_POST, 0, 100);
  pass_bucket(&trace, AD_BUCKET_POST, 1, 200);
  pass_bucket(&trace, AD_BUCKET_WAIT, 0, 100);
  pass_bucket(&trace, AD_BUCKET_DONE, 0, 100);
  ad_trace_end_step(&trace);
  assert_int_equal(trace.count, 4);
  assert_int_equal(trace.events[1].kind, AD_TRACE_REDUCTION);
  assert_int_equal(trace.events[1].bytes, 100);
  assert_int_equal(trace.events[1].move, AD_MOVE_REDUCE_SCATTER);
  assert_int_equal(trace.events[2].move, AD_MOVE_ALL_REDUCE);
  assert_int_equal(trace.events[2].axes, AD_AXES(AD_DP_SHARD));
  assert_true(trace.events[1].end >= trace.events[1].begin);
  assert_true(trace.events[2].end == 0);  // the reduction of bucket 1 never ended
  assert_true(trace.events[3].end > 0);
  assert_true(trace.events[0].end >= trace.events[3].end);
  ad_trace_destroy(&trace);
}

static void nothing_is_recorded_outside_a_step(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  ad_trace_begin(&trace, AD_TRACE_FORWARD, 0, 0);
  ad_trace_end(&trace, AD_TRACE_FORWARD, 0);
  assert_int_equal(trace.count, 0);
  ad_trace_destroy(&trace);
}

static void take_steps(ad_trace *trace, int steps, int events) {
  for (int step = 0; step < steps; step++) {
    ad_trace_begin_step(trace, step);
    for (int i = 0; i < events; i++) {
      ad_trace_begin(trace, AD_TRACE_FORWARD, i, 0);
      ad_trace_end(trace, AD_TRACE_FORWARD, i);
    }
    ad_trace_end_step(trace);
  }
}

static void memory_is_bounded_whatever_the_steps(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  take_steps(&trace, 100, 2000);
  assert_int_equal(trace.count, AD_TRACE_EVENTS_MAX);
  must(ad_trace_settle(&trace));
  assert_int_equal(trace.count, AD_TRACE_EVENTS_MAX + AD_TRACE_LAST_STEPS * 2001);
  ad_trace_destroy(&trace);
}

static void the_first_steps_and_the_last_are_kept_whole(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  take_steps(&trace, 5000, 9);  // more events than the ring buffer holds
  must(ad_trace_settle(&trace));
  assert_int_equal(trace.count, (AD_TRACE_FIRST_STEPS + AD_TRACE_LAST_STEPS) * 10);
  for (size_t i = 0; i < trace.count; i++) {
    const ad_trace_event *event = &trace.events[i];
    int64_t number = (int64_t)i / 10, late = 5000 - AD_TRACE_LAST_STEPS - AD_TRACE_FIRST_STEPS;
    assert_int_equal(event->step, number < AD_TRACE_FIRST_STEPS ? number : number + late);
    assert_int_equal(event->kind, i % 10 ? AD_TRACE_FORWARD : AD_TRACE_STEP);
    assert_true(event->end >= event->begin && event->end > 0);
  }
  size_t count = trace.count;
  must(ad_trace_settle(&trace));
  assert_int_equal(trace.count, count);
  ad_trace_destroy(&trace);
}

static void a_late_step_without_its_begin_is_left_out(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  take_steps(&trace, AD_TRACE_FIRST_STEPS, 1);
  size_t early = trace.count;
  ad_trace_begin_step(&trace, 20);
  for (int i = 0; i < AD_TRACE_EVENTS_MAX + 5; i++) ad_trace_begin(&trace, AD_TRACE_FORWARD, i, 0);
  ad_trace_end_step(&trace);
  must(ad_trace_settle(&trace));
  assert_int_equal(trace.count, early);
  ad_trace_destroy(&trace);
}

static void a_step_says_how_long_reductions_took(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  ad_trace_begin_step(&trace, 0);
  pass_bucket(&trace, AD_BUCKET_POST, 0, 8);
  pass_bucket(&trace, AD_BUCKET_POST, 1, 8);
  pass_bucket(&trace, AD_BUCKET_WAIT, 0, 8);
  pass_bucket(&trace, AD_BUCKET_DONE, 0, 8);
  pass_bucket(&trace, AD_BUCKET_WAIT, 1, 8);
  pass_bucket(&trace, AD_BUCKET_DONE, 1, 8);
  pass_bucket(&trace, AD_BUCKET_POST, 0, 8);
  pass_bucket(&trace, AD_BUCKET_WAIT, 0, 8);
  pass_bucket(&trace, AD_BUCKET_DONE, 0, 8);
  const ad_trace_event *at = trace.events;  // the events: step, two reductions, two waits, a reduction, a wait
  assert_int_equal(trace.reducing, at[2].end - at[1].begin + at[5].end - at[5].begin);
  assert_int_equal(trace.waited, at[3].end - at[3].begin + at[4].end - at[4].begin + at[6].end - at[6].begin);
  ad_trace_begin_step(&trace, 1);
  assert_int_equal(trace.reducing, 0);
  assert_int_equal(trace.waited, 0);
  ad_trace_destroy(&trace);
}

static void a_file_that_cannot_be_written_is_named(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  assert_int_equal(ad_trace_write(&trace, 0, "/nowhere/trace.json"), AD_IO);
  assert_says("/nowhere/trace.json");
  assert_int_equal(ad_trace_write(&trace, 0, "/dev/full"), AD_IO);
  assert_says("/dev/full");
  ad_trace_destroy(&trace);
}

static void assert_has(const char *text, int count, const char *wanted) {
  for (const char *at = text; (at = strstr(at, wanted)); at++) count--;
  if (count) fail_msg("%d times too few: %s in %s", count, wanted, text);
}

/* Both ends of a reduction's event name its operation and axes, in the event's name and as keys. */
static void a_reduction_is_written_with_its_operation_and_axes(void **state) {
  char path[] = "/tmp/test_trace_XXXXXX", text[8192] = "";
  ad_trace trace;
  must(ad_trace_create(&trace));
  ad_trace_begin_step(&trace, 0);
  for (int bucket = 0; bucket < 2; bucket++) pass_bucket(&trace, AD_BUCKET_POST, bucket, 8);
  for (int bucket = 0; bucket < 2; bucket++) {
    pass_bucket(&trace, AD_BUCKET_WAIT, bucket, 8);
    pass_bucket(&trace, AD_BUCKET_DONE, bucket, 8);
  }
  ad_trace_end_step(&trace);
  int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  must(ad_trace_write(&trace, 3, path));
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  assert_true(fread(text, 1, sizeof text - 1, file) > 0);
  fclose(file);
  close(descriptor);
  unlink(path);
  assert_has(text, 2, "\"name\":\"bucket 0: reduce_scatter over dp_shard\"");
  assert_has(text, 2, "\"bytes\":8,\"op\":\"reduce_scatter\",\"axes\":\"dp_shard\"}");
  assert_has(text, 2, "\"name\":\"bucket 1: all_reduce over dp_shard\"");
  assert_has(text, 2, "\"bytes\":8,\"op\":\"all_reduce\",\"axes\":\"dp_shard\"}");
  ad_trace_destroy(&trace);
}

/* The events of a trace file, or of a timeline that is printed, must be these. */
static void has_events(const json_t *trace, const char *expected) {
  json_t *events = json_object_get(trace, "traceEvents"), *wanted = json_loads(expected, 0, NULL);
  assert_non_null(wanted);
  assert_string_equal(json_string_value(json_object_get(trace, "displayTimeUnit")), "ms");
  if (!json_equal(events, wanted)) {
    char *text = json_dumps(events, JSON_COMPACT);
    fail_msg("%s, not %s", text ? text : "no events", expected);
  }
  json_decref(wanted);
}

#define RANK(rank)                                                                                   \
  "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": " rank ", \"args\": {\"name\": \"rank " rank \
  "\"}},"                                                                                            \
  "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": " rank ", \"tid\": 0, \"args\": {\"name\": \"compute\"}}"

/* Spans in microseconds: a pass with its stage, other work without, a reduction as two events, and nothing of what did
 * not end. */
static ad_trace_event events[] = {
    {.kind = AD_TRACE_FORWARD, .index = 3, .step = 7, .begin = 1500, .end = 4000, .stage = 2},
    {.kind = AD_TRACE_WAIT, .index = 1, .step = 7, .begin = 5000, .end = 5250, .bytes = 640, .stage = 9},
    {.kind = AD_TRACE_REDUCTION,
     .index = 4,
     .step = 8,
     .begin = 1000,
     .end = 3500,
     .bytes = 96,
     .move = AD_MOVE_ALL_REDUCE,
     .axes = AD_AXES(AD_TP)},
    {.kind = AD_TRACE_BACKWARD, .index = 5, .step = 8, .begin = 6000, .stage = 1},
    {.kind = AD_TRACE_WEIGHTS, .index = 6, .step = 9, .begin = 7000, .end = 7001, .stage = 0},
};
#define FORWARD(rank)                                                               \
  ", {\"ph\": \"X\", \"name\": \"forward 3\", \"cat\": \"forward\", \"pid\": " rank \
  ", \"tid\": 0, \"ts\": 1.5, "                                                     \
  "\"dur\": 2.5, \"args\": {\"step\": 7, \"index\": 3, \"bytes\": 0, \"stage\": 2}}"
#define OTHERS(rank)                                                                                                          \
  ", {\"ph\": \"X\", \"name\": \"wait for bucket 1\", \"cat\": \"wait for bucket\", \"pid\": " rank                           \
  ", \"tid\": 0, "                                                                                                            \
  "\"ts\": 5.0, \"dur\": 0.25, \"args\": {\"step\": 7, \"index\": 1, \"bytes\": 640}}" REDUCTION(rank, "b", "1.0") REDUCTION( \
      rank, "e",                                                                                                              \
      "3.5") ", {\"ph\": \"X\", \"name\": \"backward of weights 6\", \"cat\": \"backward of weights\", \"pid\": " rank        \
             ", \"tid\": 0, "                                                                                                 \
             "\"ts\": 7.0, \"dur\": 0.001, \"args\": {\"step\": 9, \"index\": 6, \"bytes\": 0, \"stage\": 0}}"
#define REDUCTION(rank, phase, time)                                                                  \
  ", {\"ph\": \"" phase                                                                               \
  "\", \"name\": \"bucket 4: all_reduce over tp\", \"cat\": \"reduction\", \"id\": 4, \"pid\": " rank \
  ", \"tid\": 0, \"ts\": " time                                                                       \
  ", \"args\": {\"step\": 8, \"index\": 4, \"bytes\": 96, \"op\": \"all_reduce\", "                   \
  "\"axes\": \"tp\"}}"

static void a_trace_has_every_number_of_its_spans(void **state) {
  char path[] = "/tmp/test_trace_XXXXXX";
  ad_trace trace = {.events = events, .count = sizeof events / sizeof *events};
  int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  must(ad_trace_write(&trace, 3, path));
  json_t *written = json_load_file(path, 0, NULL);
  has_events(written, "[" RANK("3") FORWARD("3") OTHERS("3") "]");
  json_decref(written);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  int64_t counts[] = {1, 0, 4};
  ad_timeline timeline = {.events = events, .counts = counts, .ranks = 3};
  ad_timeline_print(&timeline, file);
  fclose(file);
  written = json_load_file(path, 0, NULL);
  has_events(written, "[" RANK("0") FORWARD("0") "," RANK("1") "," RANK("2") OTHERS("2") "]");
  json_decref(written);
  close(descriptor);
  unlink(path);
}

/* A span gets its own numbers, and ends where the last open one of its kind and index does. */
static void a_span_is_recorded_with_its_numbers(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  ad_trace_begin_step(&trace, 5);
  ad_trace_begin_pass(&trace, AD_TRACE_BACKWARD, 2, 3);
  ad_trace_begin(&trace, AD_TRACE_READ, 4, 128);
  ad_trace_begin_pass(&trace, AD_TRACE_BACKWARD, 1, 6);
  ad_trace_begin(&trace, AD_TRACE_READ, 4, 256);
  ad_trace_end(&trace, AD_TRACE_READ, 4);
  ad_trace_end(&trace, AD_TRACE_BACKWARD, 3);
  ad_trace_end(&trace, AD_TRACE_UPDATE, 4);
  static const ad_trace_event expected[] = {
      {.kind = AD_TRACE_STEP, .index = 5, .step = 5},
      {.kind = AD_TRACE_BACKWARD, .index = 3, .step = 5, .stage = 2, .end = 1},
      {.kind = AD_TRACE_READ, .index = 4, .step = 5, .bytes = 128},
      {.kind = AD_TRACE_BACKWARD, .index = 6, .step = 5, .stage = 1},
      {.kind = AD_TRACE_READ, .index = 4, .step = 5, .bytes = 256, .end = 1},
  };
  assert_int_equal(trace.count, 5);
  for (size_t i = 0; i < trace.count; i++) {
    const ad_trace_event *found = &trace.events[i], *wanted = &expected[i];
    if (found->kind != wanted->kind || found->index != wanted->index || found->step != wanted->step ||
        found->bytes != wanted->bytes || found->stage != wanted->stage || (found->end > 0) != wanted->end ||
        found->begin <= 0)
      fail_msg("event %zu", i);
  }
  ad_trace_begin_step(&trace, 6);  // what an earlier step left open does not end in a later one
  ad_trace_end(&trace, AD_TRACE_BACKWARD, 6);
  assert_int_equal(trace.events[3].end, 0);
  ad_trace_destroy(&trace);
}

/* The last steps are those of the ring, which may be few, and begin with their step. */
static void steps_after_the_first_ones_are_kept_from_their_begin(void **state) {
  for (int late = 0; late <= AD_TRACE_LAST_STEPS + 1; late++) {
    ad_trace trace;
    must(ad_trace_create(&trace));
    take_steps(&trace, AD_TRACE_FIRST_STEPS + late, 2);
    must(ad_trace_settle(&trace));
    int kept = late < AD_TRACE_LAST_STEPS ? late : AD_TRACE_LAST_STEPS;
    assert_int_equal(trace.count, 3 * (AD_TRACE_FIRST_STEPS + kept));
    assert_int_equal(trace.events[trace.count - 1].step, AD_TRACE_FIRST_STEPS + late - 1);
    assert_int_equal(trace.events[(size_t)3 * AD_TRACE_FIRST_STEPS - 3].kind, AD_TRACE_STEP);
    ad_trace_destroy(&trace);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(spans_end_where_they_began),
      cmocka_unit_test(nothing_is_recorded_outside_a_step),
      cmocka_unit_test(memory_is_bounded_whatever_the_steps),
      cmocka_unit_test(the_first_steps_and_the_last_are_kept_whole),
      cmocka_unit_test(a_late_step_without_its_begin_is_left_out),
      cmocka_unit_test(a_step_says_how_long_reductions_took),
      cmocka_unit_test(a_reduction_is_written_with_its_operation_and_axes),
      cmocka_unit_test(a_trace_has_every_number_of_its_spans),
      cmocka_unit_test(a_span_is_recorded_with_its_numbers),
      cmocka_unit_test(steps_after_the_first_ones_are_kept_from_their_begin),
      cmocka_unit_test(a_file_that_cannot_be_written_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
