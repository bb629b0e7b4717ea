/* Tests the messages for calls that do not match and for waits that do not end: the words are the same on every
 * backend. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/mesh.h"
#include "base/error.h"
#include "comm/words.h"
#include "says.h"
#include "mesh/group.h"

enum { MEMBERS = 4 };

typedef struct world {
  ad_group_shape shape;
  ad_signature sum, longer;
  char words[AD_MESSAGE_MAX];
  ad_text text;
} world;

static world w;

static int make_world(void **state) {
  ad_mesh *mesh;
  if (ad_mesh_create("dp_shard=4 tp=2", &mesh)) return 1;
  ad_group group = ad_mesh_group(mesh, AD_AXES(AD_DP_SHARD), 1);
  w.shape = ad_group_canonical(&group);
  ad_mesh_destroy(mesh);
  ad_call call = {.op = AD_ALL_REDUCE, .operation = ad_comm_operation_of(AD_ALL_REDUCE), .dtype = AD_F32, .count = 4};
  call.reducing.out_dtype = AD_F32;
  ad_signature_take(&call, &w.sum);
  call.count = 5;
  ad_signature_take(&call, &w.longer);
  w.text = ad_text_on(w.words, sizeof w.words);
  return 0;
}

static ad_reported_call reported(const ad_signature *signature, const char *site, uint64_t number) {
  return (ad_reported_call){signature, AD_AXES(AD_DP_SHARD), &w.shape, site, number};
}

static void ranks_with_one_call_are_named_together_and_the_silent_not_at_all(void **state) {
  ad_reported_call calls[MEMBERS] = {
      reported(&w.sum, "a.c:1", 7), {0}, reported(&w.longer, "b.c:2", 8), reported(&w.sum, "c.c:3", 9)};
  ad_mismatch_words(&w.text, 2, calls, MEMBERS, 2);
  assert_text_says(w.words, "call 3", "dp_shard", "{1,3,5,7}", "ranks 1", "all_reduce(sum)", "4", "f32", "a.c:1", "#7",
                   "rank 5", "b.c:2", "#8");
}

static void a_block_is_reported_from_both_sides(void **state) {
  ad_reported_block sent = {1, 6, reported(&w.sum, "a.c:1", 1)}, received = {3, 2, reported(&w.longer, "b.c:2", 1)};
  ad_block_words(&w.text, 0, &sent, &received);
  assert_text_says(w.words, "call 1", "rank 1", "6 elements", "rank 3", "all_reduce(sum)", "4", "f32", "dp_shard",
                   "{1,3,5,7}", "a.c:1", "b.c:2");
}

static void a_message_is_reported_from_both_sides_or_as_none(void **state) {
  ad_reported_message sent = {.rank = 5, .exists = 1, .dtype = AD_F64, .bytes = 24, .site = "a.c:1"};
  ad_reported_message received = {.rank = 7, .site = "b.c:2"};
  ad_message_words(&w.text, 1, AD_AXES(AD_DP_SHARD), &w.shape, 0, &sent, &received);
  assert_text_says(w.words, "call 2", "dp_shard", "{1,3,5,7}", "1 from", "rank 5", "rank 7", "f64", "a.c:1", "b.c:2");
}

static void a_circle_is_reported_wait_by_wait(void **state) {
  char waits[AD_MESSAGE_MAX];
  ad_text of_waits = ad_text_on(waits, sizeof waits);
  ad_reported_call call = reported(&w.sum, "a.c:1", 1);
  ad_wait_words(&of_waits, 1, 3, 0, &call);
  ad_circle_words(&w.text, waits);
  assert_text_says(w.words, "rank 1", "rank 3", "call 1", "all_reduce(sum)", "4", "f32", "dp_shard", "{1,3,5,7}",
                   "a.c:1");
}

static void leaving_is_reported_with_the_exit_status_where_there_is_one(void **state) {
  ad_reported_call call = reported(&w.sum, "a.c:1", 1);
  ad_left_words(&w.text, 3, 4, 1, 5, &call);
  assert_text_says(w.words, "rank 3", "4", "rank 1", "call 6", "all_reduce(sum)", "f32", "dp_shard", "{1,3,5,7}",
                   "a.c:1");
  w.text = ad_text_on(w.words, sizeof w.words);
  ad_leaving_words(&w.text, 3, 0);
  assert_text_says(w.words, "rank 3");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(ranks_with_one_call_are_named_together_and_the_silent_not_at_all, make_world),
      cmocka_unit_test_setup(a_block_is_reported_from_both_sides, make_world),
      cmocka_unit_test_setup(a_message_is_reported_from_both_sides_or_as_none, make_world),
      cmocka_unit_test_setup(a_circle_is_reported_wait_by_wait, make_world),
      cmocka_unit_test_setup(leaving_is_reported_with_the_exit_status_where_there_is_one, make_world),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
