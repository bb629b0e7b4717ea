/* Tests which bridges a plan shows as one exchange: those with the same pools, layouts and dtypes, and no others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>
#include "plan/exchanges.h"

/* A plan of modules with these names, each in its own pool. */
static json_t *plan_of(const char *const *names, size_t count) {
  json_t *plan = json_pack("{s:[], s:[], s:[]}", "modules", "pools", "bridges");
  for (size_t i = 0; i < count; i++) {
    json_array_append_new(json_object_get(plan, "modules"),
                          json_pack("{s:s, s:s, s:I}", "name", names[i], "mesh", "dp=2", "pool", (json_int_t)i));
    json_array_append_new(json_object_get(plan, "pools"),
                          json_pack("{s:I, s:I}", "first_rank", (json_int_t)(2 * i), "ranks", (json_int_t)2));
  }
  return plan;
}

typedef struct bridge {
  const char *site, *from, *to;
  json_int_t from_pool, to_pool;
  const char *from_layout, *to_layout, *forward, *backward;
  json_int_t times, bytes, bytes_back;
} bridge;

static void add(json_t *plan, bridge b) {
  json_t *from = json_pack("{s:s, s:I, s:s}", "module", b.from, "pool", b.from_pool, "layout", b.from_layout);
  json_t *to = json_pack("{s:s, s:I, s:s}", "module", b.to, "pool", b.to_pool, "layout", b.to_layout);
  json_t *there = json_pack("{s:s, s:I}", "dtype", b.forward, "bytes", b.bytes);
  json_t *back = json_pack("{s:s, s:I}", "dtype", b.backward, "bytes", b.bytes_back);
  json_array_append_new(json_object_get(plan, "bridges"),
                        json_pack("{s:s, s:o, s:o, s:I, s:o, s:o}", "site", b.site, "from", from, "to", to, "times",
                                  b.times, "forward", there, "backward", back));
}

static const bridge first = {"x.1", "a", "b", 0, 1, "dp=S0", "dp=R", "bf16", "f32", 2, 10, 20};

static ad_exchanges exchanges_of(const json_t *plan) {
  ad_exchanges x;
  assert_int_equal(ad_exchanges_of(plan, &x), AD_OK);
  return x;
}

static void what_differs_in_nothing_but_its_name_is_one_exchange(void **state) {
  static const char *const names[] = {"a", "b"};
  json_t *plan = plan_of(names, 2);
  bridge smaller = first, other = first;
  smaller.times = 1, smaller.bytes = 7, smaller.bytes_back = 9;
  other.site = "x.2", other.times = 3;
  add(plan, first);
  add(plan, smaller); /* a bridge of the same value, for a microbatch of another size */
  add(plan, other);
  ad_exchanges x = exchanges_of(plan);
  assert_int_equal(x.count, 1);
  assert_int_equal(x.list[0].values, 2);
  assert_int_equal(x.list[0].bytes[0], 2 * 10 + 7 + 3 * 10);
  assert_int_equal(x.list[0].bytes[1], 2 * 20 + 9 + 3 * 20);
  char text[64];
  assert_string_equal(ad_exchange_text(&x.list[0], text, sizeof text), "x.*, 2 values");
  ad_exchanges_release(&x);
  json_decref(plan);
}

/* Each of the other bridges differs from the first in one thing. */
static void layouts_and_dtypes_both_ways_are_told_apart(void **state) {
  static const char *const names[] = {"a", "b"};
  json_t *plan = plan_of(names, 2);
  bridge others[] = {first, first, first, first};
  others[0].from_layout = "dp=R";
  others[1].to_layout = "dp=S0";
  others[2].forward = "f16";
  others[3].backward = "bf16";
  add(plan, first);
  for (int i = 0; i < 4; i++) add(plan, others[i]);
  ad_exchanges x = exchanges_of(plan);
  assert_int_equal(x.count, 5);
  for (size_t i = 0; i < 5; i++) assert_int_equal(x.list[i].values, 1);
  assert_false(ad_exchanges_join_values(&x));
  assert_string_equal(ad_exchange_dtype(&x.list[3], 0), "f16");
  assert_string_equal(ad_exchange_dtype(&x.list[4], 1), "bf16");
  ad_exchanges_release(&x);
  json_decref(plan);
}

static bridge between(json_int_t from, json_int_t to) {
  static const char *const names[] = {"a", "b", "c"};
  bridge b = first;
  b.from = names[from], b.from_pool = from;
  b.to = names[to], b.to_pool = to;
  return b;
}

/* Exchanges are sorted by the sending party, then by the receiving one. */
static void exchanges_are_listed_as_their_parties_are(void **state) {
  static const char *const names[] = {"a", "b", "c"};
  static const size_t wanted[][2] = {{0, 1}, {0, 2}, {1, 0}, {2, 1}};
  json_t *plan = plan_of(names, 3);
  add(plan, between(2, 1));
  add(plan, between(0, 2));
  add(plan, between(1, 0));
  add(plan, between(0, 1));
  ad_exchanges x = exchanges_of(plan);
  assert_int_equal(x.count, 4);
  for (size_t i = 0; i < 4; i++) {
    assert_int_equal(x.list[i].from, wanted[i][0]);
    assert_int_equal(x.list[i].to, wanted[i][1]);
  }
  ad_exchanges_release(&x);
  json_decref(plan);
}

/* Up to eight parties are shown each by itself; of nine modules those with one name are shown as one party. */
static void namesakes_are_one_party_where_there_are_more_than_eight(void **state) {
  static const char *const names[] = {"a", "b", "b", "b", "b", "b", "b", "b", "b"};
  for (size_t count = 8; count <= 9; count++) {
    json_t *plan = plan_of(names, count);
    ad_exchanges x = exchanges_of(plan);
    char text[32];
    assert_int_equal(x.party_count, count == 8 ? 8 : 2);
    assert_string_equal(ad_party_text(&x.parties[1], text, sizeof text), count == 8 ? "b 1 of 7" : "b");
    assert_int_equal(x.parties[1].modules, count == 8 ? 1 : 8);
    assert_int_equal(x.parties[1].first_rank, 2);
    assert_int_equal(x.parties[1].ranks, count == 8 ? 2 : 16);
    assert_int_equal(ad_party_begins_in(&x, 1), 1);
    assert_int_equal(ad_party_begins_in(&x, 7), count == 8);
    ad_exchanges_release(&x);
    json_decref(plan);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_differs_in_nothing_but_its_name_is_one_exchange),
      cmocka_unit_test(layouts_and_dtypes_both_ways_are_told_apart),
      cmocka_unit_test(exchanges_are_listed_as_their_parties_are),
      cmocka_unit_test(namesakes_are_one_party_where_there_are_more_than_eight),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
