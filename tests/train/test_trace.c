/* The trace in memory: what is recorded, and for how long. */
#include "world.h"

#include "train/trace.h"

static void spans_end_where_they_began(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  ad_trace_begin_step(&trace, 5);
  ad_trace_bucket(&trace, AD_BUCKET_POST, 0, 100);
  ad_trace_bucket(&trace, AD_BUCKET_POST, 1, 200);
  ad_trace_bucket(&trace, AD_BUCKET_WAIT, 0, 100);
  ad_trace_bucket(&trace, AD_BUCKET_DONE, 0, 100);
  ad_trace_end_step(&trace);
  assert_int_equal(trace.count, 4);
  assert_int_equal(trace.events[1].kind, AD_TRACE_REDUCTION);
  assert_int_equal(trace.events[1].bytes, 100);
  assert_true(trace.events[1].end >= trace.events[1].begin);
  assert_true(trace.events[2].end == 0);  // bucket 1 never came back
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

static void memory_is_bounded_whatever_the_steps(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  for (int step = 0; step < 100; step++) {
    ad_trace_begin_step(&trace, step);
    for (int i = 0; i < 2000; i++) ad_trace_begin(&trace, AD_TRACE_FORWARD, i, 0);
    ad_trace_end_step(&trace);
  }
  assert_int_equal(trace.steps, 20);
  assert_int_equal(trace.count, 1 << 14);
  ad_trace_destroy(&trace);
}

static void a_file_that_cannot_be_written_is_named(void **state) {
  ad_trace trace;
  must(ad_trace_create(&trace));
  assert_int_equal(ad_trace_write(&trace, 0, "/nowhere/trace.json"), AD_IO);
  assert_non_null(strstr(ad_last_error(), "/nowhere/trace.json"));
  assert_int_equal(ad_trace_write(&trace, 0, "/dev/full"), AD_IO);
  assert_non_null(strstr(ad_last_error(), "/dev/full"));
  ad_trace_destroy(&trace);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(spans_end_where_they_began),
      cmocka_unit_test(nothing_is_recorded_outside_a_step),
      cmocka_unit_test(memory_is_bounded_whatever_the_steps),
      cmocka_unit_test(a_file_that_cannot_be_written_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
