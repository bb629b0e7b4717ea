/* Tests injection points: the places in the code where a known bug can be installed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "says.h"
#include "base/known_bugs.h"

static int all_clear(void **state) { return ad_injections_clear(), 0; }

static int injections_with_a_function(void) {
  int count = 0;
  for (int point = 0; point < AD_INJECT_COUNT; point++)
    count += ad_injection_at((ad_injection_point)point).function != NULL;
  return count;
}

static void halve(void *context, void *passing) {
  *(double *)passing /= 2;
  ((ad_known_bug_scene *)context)->fired = 1;
}
static void count_step(void *context, void *passing) { ((ad_known_bug_scene *)context)->steps++; }

static const ad_known_bug bug = {.name = "halved-norm",
                                 .words = "the norm is halved",
                                 .at = {{AD_INJECT_NORM, halve}, {AD_INJECT_GRADIENTS, count_step}}};

static void what_passes_an_empty_injection_point_stays_as_it_is(void **state) {
  double norm = 4;
  assert_int_equal(injections_with_a_function(), 0);
  for (int point = 0; point < AD_INJECT_COUNT; point++) ad_inject((ad_injection_point)point, &norm);
  assert_true(norm == 4);
}

static void an_injected_bug_is_made_at_its_injection_points_and_nowhere_else(void **state) {
  ad_known_bug_scene scene = {0};
  double norm = 4;
  ad_known_bug_inject(&bug, &scene);
  assert_int_equal(injections_with_a_function(), 2);
  ad_inject(AD_INJECT_READ, &norm);
  assert_true(norm == 4 && !scene.fired);
  ad_inject(AD_INJECT_NORM, &norm);
  assert_true(norm == 2 && scene.fired);
  ad_inject(AD_INJECT_GRADIENTS, &norm);
  assert_int_equal(scene.steps, 1);
}

static void injecting_begins_the_scene_anew_but_for_rank_and_microbatches(void **state) {
  ad_known_bug_scene scene = {.rank = 3, .microbatch = 1, .microbatches = 2, .steps = 5, .fired = 1};
  ad_known_bug_inject(&bug, &scene);
  assert_int_equal(scene.rank, 3);
  assert_int_equal(scene.microbatches, 2);
  assert_int_equal(scene.microbatch, -1);
  assert_true(!scene.steps && !scene.fired);
}

static void cleared_injection_points_make_no_bug(void **state) {
  ad_known_bug_scene scene = {0};
  double norm = 4;
  ad_known_bug_inject(&bug, &scene);
  ad_injections_clear();
  assert_int_equal(injections_with_a_function(), 0);
  ad_inject(AD_INJECT_NORM, &norm);
  assert_true(norm == 4 && !scene.fired);
}

/* If several needs are missing, the sentence names the first. */
static void every_need_has_a_sentence_of_its_own(void **state) {
  for (int i = 0; i < AD_NEED_COUNT; i++) {
    const char *sentence = ad_need_sentence((ad_needs)1 << i);
    assert_true(strlen(sentence) > 10 && strchr(sentence, ' '));
    for (int k = 0; k < i; k++) assert_string_not_equal(sentence, ad_need_sentence((ad_needs)1 << k));
  }
  assert_string_equal(ad_need_sentence(AD_NEED_TOKENS | AD_NEED_F16), ad_need_sentence(AD_NEED_TOKENS));
  assert_string_equal(ad_need_sentence(AD_NEED_MICROBATCHES | AD_NEED_WIDE_SUMS),
                      ad_need_sentence(AD_NEED_MICROBATCHES));
  assert_says_in("AD_NEED_TOKENS", ad_need_sentence(AD_NEED_TOKENS), SAYS_FACTS(NULL));
  assert_says_in("AD_NEED_MICROBATCHES", ad_need_sentence(AD_NEED_MICROBATCHES), SAYS_FACTS(NULL));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(what_passes_an_empty_injection_point_stays_as_it_is, all_clear),
      cmocka_unit_test_teardown(an_injected_bug_is_made_at_its_injection_points_and_nowhere_else, all_clear),
      cmocka_unit_test_teardown(injecting_begins_the_scene_anew_but_for_rank_and_microbatches, all_clear),
      cmocka_unit_test_teardown(cleared_injection_points_make_no_bug, all_clear),
      cmocka_unit_test(every_need_has_a_sentence_of_its_own),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
