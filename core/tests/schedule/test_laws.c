/* Tests each law of schedule tables by its message: the law, rank, place, action, and what to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "judged.h"
#include "says.h"

static void stages_are_all_there_and_lie_on_one_rank(void **state) {
  holds("0F0,0B0\n1F0,1B0\n");
  holds("0F0,0B0\n\n1F0,1B0\n"); /* a rank may have no stage */
  breaks("0F0,0B0\n2F0,2B0\n", "stages", "stage 1", "3 stages");
  breaks("0F0,1F0\n1B0,0B0\n", "stages", "rank 1", "place 0", "1B0", "stage 1", "rank 0");
  breaks("0F0,0B0,0REDUCE\n1F0,1B0,1REDUCE,0UPDATE\n", "stages", "rank 1", "place 3", "0UPDATE", "stage 0", "rank 0");
  ad_table *table;
  assert_int_equal(ad_table_create(2, &table), AD_OK);
  assert_int_equal(ad_table_check(table, NULL), AD_INVALID);
  assert_listed();
  ad_table_destroy(table);
  breaks("SUMS,NORM\n", "stages", "F", "B");
}

static void every_microbatch_goes_forward_and_back_once(void **state) {
  holds("0F0,0I0,0F1,0W0,0B1\n");
  breaks("0F0,0B0,0B1\n", "once", "rank 0", "stage 0", "microbatch 1", "0F1");
  breaks("0F0,0F1,0B0\n", "once", "rank 0", "stage 0", "microbatch 1", "0B1", "0I1", "0W1");
  breaks("0F0,0F0,0B0\n", "once", "rank 0", "place 1", "0F0", "place 0");
  breaks("0F0,0I0\n", "once", "rank 0", "place 1", "0I0", "0W0");
  breaks("0F0,0W0\n", "once", "rank 0", "place 1", "0W0", "0I0");
  breaks("0F0,0B0,0W0\n", "once", "rank 0", "place 1", "0B0", "B", "W", "place 2");
  breaks("0F0,0B0,0I0\n", "once", "I", "place 2");
}

static void transfers_pair_off_in_one_order(void **state) {
  holds("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  breaks("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0\n", "pairs", "rank 0", "place 2", "0RECV_B0", "1SEND_B0",
         "rank 1");
  breaks("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", "pairs", "rank 0", "place 1", "0SEND_F0", "1RECV_F0",
         "rank 1");
  breaks("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n", "pairs", "rank 1", "stage 0", "microbatch 0", "stage 1", "1SEND_B0");
  breaks("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n", "pairs", "rank 0", "place 1", "0SEND_F0", "stages 0", "1");
  breaks("0F0,0B0,0SEND_F0\n", "pairs", "0SEND_F0", "stages 0", "1");
  breaks(
      "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
      "pairs", "rank 1", "place 0", "1RECV_F1", "number 0", "rank 0", "0SEND_F0", "place 2", "stage 0", "microbatch 0",
      "line 1", "line 2");
}

static void gradients_have_one_order_too(void **state) {
  breaks(
      "{\"schedule\": 1, \"ranks\": [[\"0F0\", \"0F1\", \"0SEND_F0\", \"0SEND_F1\", \"0RECV_B1\", \"0RECV_B0\", "
      "\"0B0\", \"0B1\"], [\"1RECV_F0\", \"1RECV_F1\", \"1F0\", \"1F1\", \"1B0\", \"1SEND_B0\", \"1B1\", "
      "\"1SEND_B1\"]]}",
      "pairs", "rank 0", "place 4", "0RECV_B1", "number 0", "1SEND_B0", "rank 1", "place 5", "stage 1", "microbatch 0");
}

/* Two ranks with two stages each. Rank 1 takes the gradient of stage 3 before the value of stage 1, microbatch 1, and
 * rank 0 sends them the other way round: on each edge the order is right, between the two ranks it is not. */
static const char *const two_stages_a_rank[] = {
    "0F0,0SEND_F0,2RECV_F0,2F0,2SEND_F0,2RECV_B0,2B0,",
    ",0RECV_B0,0B0,2RECV_F1,2F1,2SEND_F1,2RECV_B1,2B1,2SEND_B1,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,1RECV_B0,1B0,1SEND_B0,1RECV_F1,1F1,1SEND_F1,3RECV_F1,3F1,3B1,"
    "3SEND_B1,1RECV_B1,1B1,1SEND_B1\n"};

/* Checks `broken` of the report: both transfers with their ranks, places and lines. */
static void reports_both_transfers(const char *csv) {
  ad_table *table = table_of(csv);
  char *json;
  int right, rank, line, place, other_rank, other_line, other_place;
  const char *pairs, *law, *action;
  assert_int_equal(ad_table_report(table, NULL, &right, &json), AD_OK);
  json_t *document = json_loads(json, 0, NULL);
  assert_int_equal(json_unpack(document, "{s:s, s:[{s:s, s:i, s:i, s:i, s:{s:i, s:i, s:i, s:s}}]}", "pairs", &pairs,
                               "broken", "law", &law, "rank", &rank, "line", &line, "place", &place, "other", "rank",
                               &other_rank, "line", &other_line, "place", &other_place, "action", &action),
                   0);
  assert_string_equal(pairs, "ranks");
  assert_string_equal(law, "pairs");
  assert_string_equal(action, "0SEND_F1");
  const int found[] = {right, rank, line, place, other_rank, other_line, other_place},
            expected[] = {0, 1, 2, 7, 0, 1, 8};
  assert_memory_equal(found, expected, sizeof found);
  json_decref(document);
  free(json);
  ad_table_destroy(table);
}

static void transfers_between_two_ranks_have_one_order(void **state) {
  ad_table_options edge = {.size = sizeof edge, .buffered = 1, .pairs = AD_TABLE_PAIRS_EDGE},
                   ranks = {.size = sizeof ranks, .buffered = 1, .pairs = AD_TABLE_PAIRS_RANKS},
                   none = {.size = sizeof none, .pairs = (ad_table_pairs)3}, buffered = edge;
  char right[1024], wrong[1024];
  snprintf(right, sizeof right, "%s2SEND_B0,0F1,0SEND_F1%s", two_stages_a_rank[0], two_stages_a_rank[1]);
  snprintf(wrong, sizeof wrong, "%s0F1,0SEND_F1,2SEND_B0%s", two_stages_a_rank[0], two_stages_a_rank[1]);
  buffered.pairs = AD_TABLE_PAIRS_OF_SOURCE;
  holds_with(right, &ranks);
  holds_with(right, &edge);
  holds_with(wrong, &edge);
  const ad_table_options *const asked[] = {&ranks, &buffered};
  for (int i = 0; i < 2; i++)
    breaks_with(wrong, asked[i], "pairs", "rank 1", "place 7", "1RECV_B0", "rank 0", "number 2", "0SEND_F1", "place 8",
                "stage 0", "microbatch 1", "line 1", "line 2");
  reports_both_transfers(wrong);
  /* The same table as JSON is no table of PyTorch, so each edge is asked alone, unless the caller says otherwise. */
  ad_table *table = table_of(wrong), *copy;
  char *json;
  assert_int_equal(ad_table_json(table, &json), AD_OK);
  assert_int_equal(ad_table_parse(json, strlen(json), "test", &copy, NULL), AD_OK);
  table_holds(copy, &buffered);
  breaks_with(json, &ranks, "pairs", "rank 1", "1RECV_B0", "0SEND_F1");
  assert_int_equal(ad_table_check(table, &none), AD_INVALID);
  assert_says("3");
  free(json);
  ad_table_destroy(table);
}

static void what_is_needed_comes_before(void **state) {
  breaks("0B0,0F0\n", "given", "rank 0", "place 0", "0B0", "0F0", "place 1");
  breaks("0F0,0W0,0I0\n", "given", "rank 0", "place 1", "0W0", "0I0", "place 2");
  breaks("1F0,0F0,1B0,0B0\n", "given", "rank 0", "place 0", "1F0", "0F0");
  breaks("0F0,1F0,0B0,1B0\n", "given", "rank 0", "place 2", "0B0", "1B0");
  breaks("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "given", "rank 0", "place 0", "0SEND_F0", "0F0");
  breaks("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", "given", "rank 1", "place 0", "1F0", "1RECV_F0");
}

/* No gradient goes back over a one-way edge, so no rank waits for one. */
static void one_way_edges_take_no_gradient_back(void **state) {
  holds("{\"schedule\": 1, \"edges\": [[0, 1, \"one_way\"]], \"ranks\": [[\"0F0\", \"1F0\", \"0B0\", \"1B0\"]]}");
  breaks("{\"schedule\": 1, \"edges\": [[0, 1]], \"ranks\": [[\"0F0\", \"1F0\", \"0B0\", \"1B0\"]]}", "given", "rank 0",
         "place 2", "0B0", "1B0");
  breaks(
      "{\"schedule\": 1, \"edges\": [[0, 1, \"one_way\"]], \"ranks\": [[\"0F0\", \"0SEND_F0\", \"0RECV_B0\", \"0B0\"], "
      "[\"1RECV_F0\", \"1F0\", \"1B0\", \"1SEND_B0\"]]}",
      "pairs", "stage 1", "stage 0");
}

static void parameters_are_gathered_where_they_are_used(void **state) {
  holds("0UNSHARD,0F0,0RESHARD,0GATHER,0B0,0RELEASE\n");
  breaks("0F0,0GATHER,0B0,0RELEASE\n", "gathered", "rank 0", "place 0", "0F0", "stage 0", "0GATHER");
  breaks("0GATHER,0F0,0RELEASE,0B0\n", "gathered", "rank 0", "place 3", "0B0");
  breaks("0GATHER,0F0,0GATHER,0B0,0RELEASE\n", "gathered", "rank 0", "place 2", "0GATHER", "stage 0", "place 0");
  breaks("0GATHER,0F0,0B0,0RELEASE,0RELEASE\n", "gathered", "rank 0", "place 4", "0RELEASE", "stage 0");
  breaks("0GATHER,0F0,0B0\n", "pending", "rank 0", "place 0", "0GATHER", "0RELEASE", "stage 0");
}

static void reductions_follow_the_last_addend(void **state) {
  holds("0F0,0F1,0B0,0REDUCE0,0B1,0REDUCE\n");
  holds("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n");
  breaks("0F0,0F1,0B0,0REDUCE,0B1\n", "reduced", "rank 0", "place 4", "0B1", "stage 0", "place 3");
  breaks("0F0,0I0,0REDUCE,0W0\n", "reduced", "rank 0", "place 3", "0W0");
  breaks("0F0,0B0,0REDUCE\n1F0,1B0\n", "reduced", "rank 1", "stage 1", "1REDUCE");
  breaks("0F0,0B0,0REDUCE,0REDUCE\n", "reduced", "rank 0", "place 3", "0REDUCE", "place 2");
  breaks("0F0,0F1,0REDUCE0,0B0,0B1,0REDUCE\n", "reduced", "rank 0", "place 2", "0REDUCE0", "microbatch 0", "place 3");
  breaks("0F0,0F1,0B0,0REDUCE0,0REDUCE0,0B1,0REDUCE\n", "reduced", "rank 0", "place 4", "0REDUCE0", "microbatch 0");
  holds("0F0,0F1,0B0,0REDUCE0,0WAIT_REDUCE,0B1,0REDUCE,0WAIT_REDUCE\n");
  breaks("0F0,0F1,0B0,0REDUCE0,0B1,0REDUCE,0WAIT_REDUCE\n", "pending", "rank 0", "place 5", "0REDUCE", "place 3",
         "0WAIT_REDUCE");
  breaks("0F0,0B0,0WAIT_REDUCE,0REDUCE\n", "reduced", "stage 0", "0WAIT_REDUCE");
  breaks("0F0,0B0,0REDUCE,0WAIT_REDUCE\n1F0,1B0,1REDUCE\n", "pending", "rank 1", "place 2", "1REDUCE", "1WAIT_REDUCE");
}

/* Each decision of the law of reductions, right on one side of it and wrong on the other. */
static void a_reduction_takes_each_addend_once(void **state) {
  /* the last reduction takes all addends, also of microbatches that have no reduction */
  holds("0F0,0F1,0B0,0B1,0REDUCE0,0REDUCE\n");
  breaks("0F0,0F1,0B0,0B1,0REDUCE,0REDUCE0\n", "reduced", "rank 0", "place 5", "0REDUCE0", "microbatch 0");
  breaks("0F0,0F1,0B0,0REDUCE0,0B1,0REDUCE1\n", "reduced", "stage 0", "0REDUCE");
  /* the addend of a backward in two halves is the second half's */
  holds("0F0,0F1,0I0,0W0,0REDUCE0,0I1,0W1,0REDUCE\n");
  breaks("0F0,0F1,0I0,0REDUCE0,0W0,0I1,0W1,0REDUCE\n", "reduced", "rank 0", "place 3", "0REDUCE0", "microbatch 0",
         "place 4");
  breaks("0F0,0F1,0I0,0W0,0I1,0REDUCE,0W1\n", "reduced", "rank 0", "place 6", "0W1", "stage 0", "place 5");
  /* each stage and each microbatch has its own */
  holds("0F0,1F0,1B0,1REDUCE,0B0,0REDUCE\n");
  holds("0F0,1F0,1B0,1REDUCE0,0B0,0REDUCE0,0F1,1F1,1B1,1REDUCE1,0B1,0REDUCE1,0F2,1F2,1B2,1REDUCE,0B2,0REDUCE\n");
  breaks("0F0,1F0,1B0,1REDUCE,0REDUCE,0B0\n", "reduced", "rank 0", "place 5", "0B0", "stage 0", "place 4");
}

static void a_reduction_is_waited_for_by_the_next_of_its_stage(void **state) {
  /* another stage's reduction may be in flight beside it */
  holds("0F0,1F0,1B0,1REDUCE,0B0,0REDUCE,1WAIT_REDUCE,0WAIT_REDUCE\n");
  holds("0F0,1F0,1B0,1REDUCE,0B0,0REDUCE,0WAIT_REDUCE,1WAIT_REDUCE,SUMS,NORM,0UPDATE,1UPDATE\n");
  /* a wait ends one reduction, and only that of its stage */
  breaks("0F0,1F0,1B0,1REDUCE,0B0,0WAIT_REDUCE,0REDUCE,1WAIT_REDUCE\n", "reduced", "rank 0", "place 5", "0WAIT_REDUCE");
  /* the stage that never waits has its fault at its last reduction, and none at those before */
  breaks("0F0,1F0,1B0,1REDUCE0,0B0,0REDUCE0,0WAIT_REDUCE,0F1,1F1,1B1,1REDUCE,0B1,0REDUCE,0WAIT_REDUCE\n", "pending",
         "rank 0", "place 10", "1REDUCE", "1WAIT_REDUCE");
  breaks("0F0,1F0,1B0,1REDUCE0,0B0,0REDUCE0,0F1,1F1,1B1,1REDUCE,1WAIT_REDUCE,0B1,0REDUCE\n", "pending", "rank 0",
         "place 9", "1REDUCE", "place 3", "1WAIT_REDUCE");
  breaks("0F0,0F1,0B0,0REDUCE0,0B1,0WAIT_REDUCE,0REDUCE\n", "pending", "rank 0", "place 6", "0REDUCE");
}

static void the_end_follows_what_it_needs(void **state) {
  holds("0F0,0B0,SUMS,0REDUCE,NORM,0UPDATE\n");
  breaks("0F0,0B0,SUMS,NORM,0UPDATE\n", "reduced", "stage 0", "0REDUCE");
  breaks("0F0,0B0,0REDUCE,NORM,0UPDATE\n", "end", "rank 0", "SUMS");
  breaks("0F0,0B0,0REDUCE,SUMS,0UPDATE\n", "end", "rank 0", "NORM");
  breaks("0F0,0B0,0REDUCE,SUMS,NORM\n", "end", "rank 0", "stage 0", "0UPDATE");
  breaks("0F0,0B0,0REDUCE,0UPDATE,SUMS,NORM\n", "end", "rank 0", "place 3", "0UPDATE", "NORM");
  breaks("0F0,0B0,SUMS,NORM,0REDUCE,0UPDATE\n", "end", "rank 0", "place 3", "NORM", "0REDUCE");
  breaks("0F0,0B0,0REDUCE,NORM,SUMS,0UPDATE\n", "end", "rank 0", "place 3", "NORM", "SUMS");
  breaks("SUMS,0F0,0B0,0REDUCE,NORM,0UPDATE\n", "end", "rank 0", "place 0", "SUMS", "0F0");
  breaks("0F0,0B0,0REDUCE,SUMS,SUMS,NORM,0UPDATE\n", "end", "place 3", "rank 0");
  breaks("0F0,0B0,0REDUCE,SUMS,NORM,0UPDATE,0WAIT_REDUCE\n", "end", "rank 0", "place 5", "0UPDATE", "stage 0",
         "0WAIT_REDUCE");
  breaks("0F0,0B0,0REDUCE,SUMS,NORM,0WAIT_REDUCE,0UPDATE\n", "end", "rank 0", "place 4", "NORM", "0WAIT_REDUCE");
}

static void sends_that_are_waited_for_are_all(void **state) {
  holds(
      "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n");
  breaks(
      "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0\n",
      "pending", "rank 1", "place 3", "1SEND_B0");
  breaks(
      "0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n",
      "given", "rank 0", "place 1", "0WAIT_SEND_F0", "0SEND_F0");
}

/* In a table without transfers, ranks wait for each other's compute actions. */
static void nobody_waits_in_a_circle(void **state) {
  ad_table_options buffered = {.size = sizeof buffered, .buffered = 1};
  breaks("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n", "circle", "rank 0", "place 1", "0B0", "1B0", "rank 1", "place 2",
         "place 0", "1F1", "0F1");
  /* A 1F1B in which rank 0 sends the next value before it receives the gradient: right only if sends are buffered. */
  const char *crossed =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  holds_with(crossed, &buffered);
  breaks(crossed, "circle", "rank 0", "place 3", "0SEND_F1", "1RECV_F1", "rank 1", "place 4", "1SEND_B0", "0RECV_B0");
  /* A send with a separate WAIT blocks at that WAIT. */
  holds(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0WAIT_SEND_F0,0WAIT_SEND_F1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1\n");
  breaks(
      "0F0,0SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0WAIT_SEND_F0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1WAIT_SEND_B1\n",
      "circle", "rank 0", "place 4", "0WAIT_SEND_F1", "1RECV_F1", "rank 1", "place 5");
  /* Waiting in a collective counts as a wait too. */
  breaks(
      "0F0,0SEND_F0,SUMS,0RECV_B0,0B0,0REDUCE,NORM,0UPDATE\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE,SUMS,NORM,1UPDATE\n",
      "circle", "rank 0", "place 2", "SUMS", "rank 1", "place 5");
}

static void activations_stay_below_a_limit(void **state) {
  ad_table_options options = {.size = sizeof options, .in_flight = 2};
  holds_with("0F0,0F1,0B0,0F2,0B1,0B2\n", &options);
  breaks_with("0F0,0F1,0F2,0B0,0B1,0B2\n", &options, "in_flight", "rank 0", "place 2", "0F2", "3 activations");
  /* Memory that a W still holds has its own limit. */
  holds_with("0F0,0F1,0I0,0F2,0I1,0I2,0W0,0W1,0W2\n", &options);
  options.in_flight = -1;
  ad_table *table = table_of("0F0,0B0\n");
  assert_int_equal(ad_table_check(table, &options), AD_INVALID);
  assert_says("1", "-1");
  ad_table_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stages_are_all_there_and_lie_on_one_rank),
      cmocka_unit_test(every_microbatch_goes_forward_and_back_once),
      cmocka_unit_test(transfers_pair_off_in_one_order),
      cmocka_unit_test(gradients_have_one_order_too),
      cmocka_unit_test(transfers_between_two_ranks_have_one_order),
      cmocka_unit_test(what_is_needed_comes_before),
      cmocka_unit_test(one_way_edges_take_no_gradient_back),
      cmocka_unit_test(parameters_are_gathered_where_they_are_used),
      cmocka_unit_test(reductions_follow_the_last_addend),
      cmocka_unit_test(a_reduction_takes_each_addend_once),
      cmocka_unit_test(a_reduction_is_waited_for_by_the_next_of_its_stage),
      cmocka_unit_test(the_end_follows_what_it_needs),
      cmocka_unit_test(sends_that_are_waited_for_are_all),
      cmocka_unit_test(nobody_waits_in_a_circle),
      cmocka_unit_test(activations_stay_below_a_limit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
