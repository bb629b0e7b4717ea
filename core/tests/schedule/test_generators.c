/* Tests the generated schedules: their orders written out, their costs against closed forms, and that every shape gives
 * a table that obeys the laws. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "addend/schedule.h"
#include "says.h"

static ad_table *make(const char *name, int32_t stages, int32_t ranks, int32_t microbatches) {
  ad_table *table;
  ad_table_shape shape = {.size = sizeof shape, .stages = stages, .microbatches = microbatches, .ranks = ranks};
  if (ad_table_make(name, &shape, &table)) fail_msg("%s", ad_last_error());
  return table;
}

/* Prints one rank's list as "F0 F1 B0"; with `stages` as "0F0 2F0". */
static const char *list_of(const ad_table *table, int32_t rank, int stages, char text[4096]) {
  text[0] = 0;
  for (size_t i = 0; i < ad_table_action_count(table, rank); i++) {
    char one[AD_ACTION_TEXT_MAX];
    ad_action_print(ad_table_action(table, rank, i), one, sizeof one);
    size_t used = strlen(text);
    snprintf(text + used, 4096 - used, "%s%s", used ? " " : "", stages ? one : one + strspn(one, "0123456789"));
  }
  return text;
}

static void is(const char *name, int32_t stages, int32_t ranks, int32_t microbatches, int with_stages,
               const char *const *expected) {
  char text[4096];
  ad_table *table = make(name, stages, ranks, microbatches);
  for (int32_t r = 0; r < ad_table_rank_count(table); r++)
    assert_string_equal(list_of(table, r, with_stages, text), expected[r]);
  ad_table_destroy(table);
}

static ad_table_worth worth_of(const ad_table *table, const ad_table_options *options) {
  ad_table_worth worth = {.size = sizeof worth};
  if (ad_table_measure(table, options, &worth)) fail_msg("%s", ad_last_error());
  return worth;
}

/* ---- orders of the schedules ---- */

static void every_schedule_has_its_order(void **state) {
  is("gpipe", 2, 0, 3, 0, (const char *[]){"F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"});
  is("gpipe", 4, 2, 1, 1, (const char *[]){"0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0"});
  is("1f1b", 3, 0, 4, 0,
     (const char *[]){"F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"});
  is("1f1b", 3, 0, 1, 0, (const char *[]){"F0 B0", "F0 B0", "F0 B0"});
  is("zb", 3, 0, 4, 0,
     (const char *[]){"F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3", "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
                      "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"});
  is("zb", 3, 0, 1, 0, (const char *[]){"F0 I0 W0", "F0 I0 W0", "F0 I0 W0"});
  is("accumulate", 1, 0, 3, 0, (const char *[]){"F0 B0 F1 B1 F2 B2"});
  is("accumulate", 2, 1, 2, 1, (const char *[]){"0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1"});
  is("leads", 3, 0, 3, 0, (const char *[]){"F0 F1 F2 B0 B1 B2", "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"});
}

/* Megatron-LM's order for two ranks with two stages each: the warm-up of rank r has 2 (p - 1 - r) + (v -
 * 1) p actions. */
static void interleaved_goes_in_groups(void **state) {
  is("interleaved", 4, 2, 4, 1,
     (const char *[]){"0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
                      "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"});
  is("interleaved", 3, 3, 2, 0, (const char *[]){"F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"});
}

/* Five microbatches have the order of six, without the sixth. */
static void a_group_that_is_not_full_leaves_places_out(void **state) {
  char five[4096], six[4096], *at;
  ad_table *odd = make("interleaved", 4, 2, 5), *even = make("interleaved", 4, 2, 6);
  for (int32_t r = 0; r < 2; r++) {
    list_of(odd, r, 1, five);
    list_of(even, r, 1, six);
    char kept[4096] = "";
    for (at = strtok(six, " "); at; at = strtok(NULL, " ")) {
      if (at[2] == '5') continue;
      if (*kept) strcat(kept, " ");
      strcat(kept, at);
    }
    assert_string_equal(five, kept);
  }
  ad_table_destroy(odd);
  ad_table_destroy(even);
}

/* ---- tables of every shape ---- */

/* Checks that each send and each reduction is waited for, and that a rank has one reduction in flight at a time. */
static void waits_for_all(const ad_table *table) {
  int counts[AD_ACTION_COUNT] = {0};
  for (int32_t r = 0; r < ad_table_rank_count(table); r++) {
    for (size_t i = 0; i < ad_table_action_count(table, r); i++) {
      counts[ad_table_action(table, r, i)->kind]++;
      int under_way = counts[AD_ACTION_REDUCE] - counts[AD_ACTION_WAIT_REDUCE];
      assert_true(under_way == 0 || under_way == 1);
    }
    assert_int_equal(counts[AD_ACTION_REDUCE], counts[AD_ACTION_WAIT_REDUCE]);
  }
  assert_int_equal(counts[AD_ACTION_SEND_F], counts[AD_ACTION_WAIT_SEND_F]);
  assert_int_equal(counts[AD_ACTION_SEND_B], counts[AD_ACTION_WAIT_SEND_B]);
}

static void holds_lowered(ad_table *table, const char *name, int waits) {
  ad_table_lowering lowering = {.size = sizeof lowering,
                                .parts = AD_TABLE_TRANSFERS | AD_TABLE_GATHERS | AD_TABLE_REDUCTIONS | AD_TABLE_END,
                                .gathered = 1,
                                .reduces_each = waits,
                                .waits = waits};
  if (ad_table_check(table, NULL) || ad_table_lower(table, &lowering) || ad_table_check(table, NULL))
    fail_msg("%s, %d stages, %d ranks, %d microbatches: %s", name, ad_table_stage_count(table),
             ad_table_rank_count(table), ad_table_microbatch_count(table), ad_last_error());
  assert_int_equal(ad_table_parts(table), ad_table_rank_count(table) > 1 ? 31 : 31 & ~AD_TABLE_TRANSFERS);
  if (waits) waits_for_all(table);
}

static void holds_in_every_way(const char *name, int32_t stages, int32_t ranks, int32_t microbatches) {
  for (int waits = 0; waits < 2; waits++) {
    ad_table *table = make(name, stages, ranks, microbatches);
    holds_lowered(table, name, waits);
    ad_table_destroy(table);
  }
}

static void every_shape_gives_a_table_that_holds(void **state) {
  int count = 0;
  for (size_t i = 0; ad_table_schedule_name(i); i++) {
    const char *name = ad_table_schedule_name(i);
    int several = !strcmp(name, "interleaved") || !strcmp(name, "gpipe");
    for (int32_t ranks = 1; ranks <= 5; ranks++) {
      for (int32_t each = 1; each <= (several ? 3 : 1); each++) {
        for (int32_t microbatches = 1; microbatches <= 11; microbatches++, count++) {
          int one = !strcmp(name, "accumulate");
          holds_in_every_way(name, ranks * each, one ? 1 : ranks, microbatches);
        }
      }
    }
  }
  assert_int_equal(count, 11 * 5 * (3 + 3 + 4));
}

/* Transfers that cost nothing change no times: what they need is ready, and what was sent has arrived
 * before the wait. */
static void transfers_change_no_times(void **state) {
  ad_table_lowering waiting = {.size = sizeof waiting, .waits = 1};
  static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb", "leads"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    int several = !strcmp(names[i], "interleaved");
    for (int32_t microbatches = 1; microbatches <= 9; microbatches++) {
      ad_table *table = make(names[i], several ? 8 : 4, 4, microbatches);
      double before = worth_of(table, NULL).makespan;
      assert_int_equal(ad_table_lower(table, microbatches % 2 ? NULL : &waiting), AD_OK);
      assert_true(worth_of(table, NULL).makespan == before);
      ad_table_destroy(table);
    }
  }
}

/* ---- costs against closed forms ---- */

static void near(double a, double b) { assert_true(fabs(a - b) < 1e-12); }

static void bubbles_are_those_of_the_papers(void **state) {
  for (int32_t p = 1; p <= 6; p++) {
    for (int32_t m = 1; m <= 13; m++) {
      ad_table *gpipe = make("gpipe", p, p, m), *one = make("1f1b", p, p, m), *zb = make("zb", p, p, m);
      near(worth_of(gpipe, NULL).bubble, (double)(p - 1) / (m + p - 1));
      near(worth_of(one, NULL).bubble, (double)(p - 1) / (m + p - 1));
      near(worth_of(one, NULL).makespan, 3 * (m + p - 1));
      if (m >= p) near(worth_of(zb, NULL).makespan, 3 * m + p - 1); /* the bubble is (p - 1) (F + I - W) */
      if (m >= p) near(worth_of(zb, NULL).bubble, (double)(p - 1) / (3 * m + p - 1));
      assert_int_equal(worth_of(gpipe, NULL).in_flight, m);
      assert_int_equal(worth_of(one, NULL).in_flight, m < p ? m : p);
      assert_int_equal(worth_of(zb, NULL).in_flight, m < p ? m : p);
      assert_int_equal(worth_of(one, NULL).deferred, 0);
      assert_int_equal(worth_of(zb, NULL).deferred, m < p ? m : p);
      /* rank r is r microbatches behind with W */
      assert_int_equal(worth_of(zb, NULL).deferred_rank, (m < p ? m : p) - 1);
      ad_table_destroy(gpipe);
      ad_table_destroy(one);
      ad_table_destroy(zb);
    }
  }
}

/* Narayanan et al.: v stages a rank divide the bubble by v: it is (p - 1) / (v m + p - 1), for m a multiple of p. */
static void interleaving_divides_the_bubble(void **state) {
  for (int32_t p = 2; p <= 5; p++) {
    for (int32_t v = 2; v <= 4; v++) {
      for (int32_t m = p; m <= 3 * p; m += p) {
        ad_table *table = make("interleaved", p * v, p, m);
        near(worth_of(table, NULL).bubble, (double)(p - 1) / (v * m + p - 1));
        ad_table_destroy(table);
      }
    }
  }
}

/* ---- costs of single actions and stages ---- */

static void costs_are_of_kinds_and_stages(void **state) {
  ad_table *table = make("1f1b", 2, 2, 1);
  double factors[] = {1, 10};
  ad_table_costs costs = {.size = sizeof costs, .f = 3, .b = 5, .transfer = 7, .of_stage = factors, .stage_count = 2};
  ad_table_options options = {.size = sizeof options, .costs = &costs};
  double begin[32], end[32];
  near(worth_of(table, &options).makespan, 3 + 30 + 50 + 5);
  ad_table *busy = make("accumulate", 3, 1, 7); /* sums of tenths must not look like a bubble */
  ad_table_costs tenths = {.size = sizeof tenths, .f = 0.1, .b = 0.7};
  ad_table_options with_tenths = {.size = sizeof with_tenths, .costs = &tenths};
  assert_true(worth_of(busy, &with_tenths).bubble == 0);
  ad_table_destroy(busy);
  assert_int_equal(ad_table_lower(table, NULL), AD_OK);
  near(worth_of(table, &options).makespan, 3 + 7 + 30 + 50 + 7 + 5);
  near(worth_of(table, &options).bubble, 1 - 88 / (2.0 * 102));
  assert_int_equal(ad_table_times(table, &options, begin, end), AD_OK);
  near(begin[0], 0); /* the order: 0F0 0SEND_F0 0RECV_B0 0B0 ... */
  near(end[0], 3);
  near(end[1], 3);
  near(end[2], 3 + 7 + 80 + 7);
  near(end[3], 102);
  for (size_t i = 0; i < ad_table_action_count(table, 0) + ad_table_action_count(table, 1); i++)
    assert_true(begin[i] <= end[i] && end[i] <= 102);
  costs.stage_count = 1;
  assert_int_equal(ad_table_check(table, &options), AD_INVALID);
  assert_says("1", "2");
  costs = (ad_table_costs){.size = sizeof costs, .b = -1};
  assert_int_equal(ad_table_check(table, &options), AD_INVALID);
  assert_says("0");
  ad_table_destroy(table);
}

/* A transfer that came before its RECV begins ends when the RECV begins. */
static void a_late_receive_ends_as_it_begins(void **state) {
  ad_table *table;
  double begin[32], end[32];
  const char *text =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1\n";
  assert_int_equal(ad_table_parse(text, strlen(text), "test", &table, NULL), AD_OK);
  ad_table_options options = {.size = sizeof options, .buffered = 1};
  assert_int_equal(ad_table_times(table, &options, begin, end), AD_OK);
  near(end[3], 2);    /* 0SEND_F1 */
  near(begin[11], 4); /* 1RECV_F1, after 1B0 */
  near(end[11], 4);
  ad_table_destroy(table);
}

/* ---- schedule `leads`: phases that run ahead of others ---- */

enum { PHASES = 4, MICROBATCHES = 5 };

/* The order of a step, written once more: all phases forward, `lead` microbatches ahead, then all phases back. */
static void order_of_step(const int32_t *rank_of, const int32_t *lead, int32_t rank, char *text) {
  int32_t under_way = 1;
  for (int p = 0; p < PHASES; p++)
    if (lead[p] + 1 > under_way) under_way = lead[p] + 1;
  *text = 0;
  for (int32_t m = 1 - under_way; m < MICROBATCHES; m++) {
    for (int32_t p = 0; p < PHASES; p++) {
      int32_t own = m + lead[p];
      if (own >= 0 && own < MICROBATCHES && rank_of[p] == rank)
        sprintf(text + strlen(text), "%s%dF%d", *text ? " " : "", p, own);
    }
    for (int32_t p = PHASES; m >= 0 && p-- > 0;)
      if (rank_of[p] == rank) sprintf(text + strlen(text), "%s%dB%d", *text ? " " : "", p, m);
  }
}

/* Edges 0 -> 1, 0 -> 2, 1 -> 3, 2 -> 3; phases 0 and 2 share a rank. Phases 1 and 2 are one microbatch ahead of 3, and
 * phase 0 is two ahead. */
static void leads_are_those_of_the_step(void **state) {
  static const int32_t rank_of[PHASES] = {0, 1, 0, 2}, lead[PHASES] = {2, 1, 1, 0};
  ad_table *table;
  char expected[4096], found[4096];
  assert_int_equal(ad_table_create(3, &table), AD_OK);
  assert_int_equal(ad_table_connect(table, 0, 1, AD_STAGE_BOTH_WAYS), AD_OK);
  assert_int_equal(ad_table_connect(table, 0, 2, AD_STAGE_BOTH_WAYS), AD_OK);
  assert_int_equal(ad_table_connect(table, 1, 3, AD_STAGE_ONE_WAY), AD_OK);
  assert_int_equal(ad_table_connect(table, 2, 3, AD_STAGE_BOTH_WAYS), AD_OK);
  assert_int_equal(ad_table_add_leads(table, rank_of, PHASES, MICROBATCHES), AD_OK);
  for (int32_t r = 0; r < 3; r++) {
    order_of_step(rank_of, lead, r, expected);
    assert_string_equal(list_of(table, r, 1, found), expected);
  }
  holds_lowered(table, "leads", 1);
  ad_table_destroy(table);
}

/* ---- shapes that do not fit a schedule ---- */

static void is_refused(const char *name, int32_t stages, int32_t ranks, int32_t microbatches) {
  ad_table *table = NULL;
  ad_table_shape shape = {.size = sizeof shape, .stages = stages, .microbatches = microbatches, .ranks = ranks};
  assert_int_equal(ad_table_make(name, &shape, &table), AD_INVALID);
  assert_null(table);
}
#define refuses(name, stages, ranks, microbatches, ...) \
  (is_refused((name), (stages), (ranks), (microbatches)), assert_says(__VA_ARGS__))

static void shapes_that_do_not_fit_are_refused(void **state) {
  refuses("1f1b", 4, 2, 8, "1f1b", "4", "2");
  refuses("zb", 2, 3, 8, "2", "3");
  refuses("interleaved", 5, 2, 8, "2 ranks", "5");
  refuses("accumulate", 2, 2, 8, "2 ranks");
  refuses("1f1", 2, 2, 8, "1f1", "1f1b");
  refuses("nonsense", 2, 2, 8, "nonsense", "1f1b");
  refuses("gpipe", 0, 0, 8, "4096 stages", "0");
  refuses("gpipe", 2, 0, 0, "1", "524288 microbatches", "0");
  refuses("gpipe", 4096, 4096, 257, "1", "256 microbatches", "257");
  refuses("gpipe", 2, -1, 1, "4096 ranks", "-1");
}

/* Costs of each action of one microbatch on two stages, in the order of kinds F, B, I, W. */
static void costs_may_be_of_each_action(void **state) {
  ad_table *table = make("1f1b", 2, 2, 1);
  double own[] = {2, 3, 11, 13, 0, 0, 0, 0};
  ad_table_costs costs = {.size = sizeof costs, .f = 100, .of_action = own, .stage_count = 2, .microbatch_count = 1};
  ad_table_options options = {.size = sizeof options, .costs = &costs};
  ad_table_worth worth = {.size = sizeof worth};
  near(worth_of(table, &options).makespan, 2 + 3 + 13 + 11);
  near(worth_of(table, &options).bubble, 0.5);
  own[3] = 0;
  assert_int_equal(ad_table_measure(table, &options, &worth), AD_INVALID);
  assert_says("1B0", "0");
  costs.microbatch_count = 2;
  assert_int_equal(ad_table_measure(table, &options, &worth), AD_INVALID);
  costs.stage_count = 1;
  assert_int_equal(ad_table_measure(table, &options, &worth), AD_INVALID);
  ad_table_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_schedule_has_its_order),
      cmocka_unit_test(interleaved_goes_in_groups),
      cmocka_unit_test(a_group_that_is_not_full_leaves_places_out),
      cmocka_unit_test(every_shape_gives_a_table_that_holds),
      cmocka_unit_test(transfers_change_no_times),
      cmocka_unit_test(bubbles_are_those_of_the_papers),
      cmocka_unit_test(interleaving_divides_the_bubble),
      cmocka_unit_test(costs_are_of_kinds_and_stages),
      cmocka_unit_test(costs_may_be_of_each_action),
      cmocka_unit_test(a_late_receive_ends_as_it_begins),
      cmocka_unit_test(leads_are_those_of_the_step),
      cmocka_unit_test(shapes_that_do_not_fit_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
