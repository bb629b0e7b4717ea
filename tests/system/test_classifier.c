/* Tests the operation and the batch of train/examples/classifier.c, in the file that a reader copies. */
int classifier_main(int argc, char **argv);
#define main classifier_main
#include "../../train/examples/classifier.c"
#include "says.h"
#undef main

#include <stdarg.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

static ad_operation_trial trial_of(const ad_shape shapes[2], const int32_t below[2]) {
  return (ad_operation_trial){
      .size = sizeof(ad_operation_trial), .shapes = shapes, .count = 2, .below = below, .seed = 1};
}

static void one_call_holds_the_margin_to_its_record(void **state) {
  ad_shape shapes[2] = {{2, {7, 3}}, {1, {7}}};
  int32_t below[2] = {0, 3};
  ad_operation_trial trial = trial_of(shapes, below);
  must(ad_check_operation(&margin, &trial));
}

/* A wrong backward: the gradient of the other class's logit is left out. */
static ad_status half_backward(ad_tape *t, ad_tensor *out, const ad_gradient_slot *slot) {
  AD_TRY(margin_backward(t, out, slot));
  ad_slot_put(&(ad_gradient_slot){slot[0].data, 0, slot[0].dtype}, 0, 0);
  return AD_OK;
}

static void a_backward_that_leaves_an_element_out_is_seen(void **state) {
  ad_shape shapes[2] = {{2, {7, 3}}, {1, {7}}};
  int32_t below[2] = {0, 3};
  ad_operation_trial trial = trial_of(shapes, below);
  ad_operation wrong = margin;
  wrong.backward = half_backward;
  assert_int_equal(ad_check_operation(&wrong, &trial), AD_INVALID);
  assert_listed();
}

/* If the classes were cut, each rank would compare with its own classes alone. All rows have class 0, and every rank
 * has two classes, so that the error stays inside its memory. */
static void classes_may_not_be_sharded(void **state) {
  ad_shape shapes[2] = {{2, {7, 6}}, {1, {7}}};
  int32_t below[2] = {0, 1};
  ad_operation_trial trial = trial_of(shapes, below);
  ad_operation wrong = margin;
  wrong.full = "";
  assert_int_not_equal(ad_check_operation(&wrong, &trial), AD_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_call_holds_the_margin_to_its_record),
      cmocka_unit_test(a_backward_that_leaves_an_element_out_is_seen),
      cmocka_unit_test(classes_may_not_be_sharded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
