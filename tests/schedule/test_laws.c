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
  breaks("0F0,0B0\n2F0,2B0\n", "stages", "no rank computes stage 1, but there are 3 stages");
  breaks("0F0,1F0\n1B0,0B0\n", "stages", "rank 1, place 0 (1B0): stage 1 lies on rank 0, where its first action is");
  breaks("0F0,0B0,0REDUCE\n1F0,1B0,1REDUCE,0UPDATE\n", "stages", "rank 1, place 3 (0UPDATE): stage 0 lies on rank 0");
  ad_table *table;
  assert_int_equal(ad_table_create(2, &table), AD_OK);
  assert_int_equal(ad_table_check(table, NULL), AD_INVALID);
  assert_listed();
  ad_table_destroy(table);
  breaks("SUMS,NORM\n", "stages", "the table computes nothing; give its ranks F and B");
}

static void every_microbatch_goes_forward_and_back_once(void **state) {
  holds("0F0,0I0,0F1,0W0,0B1\n");
  breaks("0F0,0B0,0B1\n", "once", "rank 0: stage 0 never computes microbatch 1 forward; put 0F1 into its list");
  breaks("0F0,0F1,0B0\n", "once", "rank 0: stage 0 never takes microbatch 1 back; put 0B1, or 0I1 and 0W1,");
  breaks("0F0,0F0,0B0\n", "once", "rank 0, place 1 (0F0): the same action is also at place 0 of rank 0");
  breaks("0F0,0I0\n", "once", "rank 0, place 1 (0I0): the gradient of the weights is never computed; put 0W0 behind");
  breaks("0F0,0W0\n", "once", "rank 0, place 1 (0W0): the gradient of the inputs is never computed; put 0I0 before");
  breaks("0F0,0B0,0W0\n", "once",
         "rank 0, place 1 (0B0): B is the whole backward, but W of the same stage and microbatch is at place 2");
  breaks("0F0,0B0,0I0\n", "once", "but I of the same stage and microbatch is at place 2");
}

static void transfers_pair_off_in_one_order(void **state) {
  holds("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  breaks("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0\n", "pairs",
         "rank 0, place 2 (0RECV_B0): nothing is sent for it to receive; put 1SEND_B0 into the list of rank 1");
  breaks("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", "pairs",
         "rank 0, place 1 (0SEND_F0): no rank receives what it sends; put 1RECV_F0 into the list of rank 1");
  breaks("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n", "pairs",
         "rank 1: stage 0 needs a gradient of microbatch 0 from stage 1 on rank 1, and it is not sent; put 1SEND_B0");
  breaks("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n", "pairs",
         "rank 0, place 1 (0SEND_F0): stages 0 and 1 lie on the same rank, so nothing travels");
  breaks("0F0,0B0,0SEND_F0\n", "pairs", "stages 0 and 1 hand nothing to each other");
  breaks(
      "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
      "pairs",
      "rank 1, place 0 (1RECV_F1): it is receive number 0 from rank 0 to rank 1, but send number 0 is 0SEND_F0 (rank "
      "0, place 2), so it takes the value of stage 0, microbatch 0; put the sends (line 1) and the receives (line 2) "
      "into one order");
}

static void gradients_have_one_order_too(void **state) {
  breaks(
      "{\"schedule\": 1, \"ranks\": [[\"0F0\", \"0F1\", \"0SEND_F0\", \"0SEND_F1\", \"0RECV_B1\", \"0RECV_B0\", "
      "\"0B0\", \"0B1\"], [\"1RECV_F0\", \"1RECV_F1\", \"1F0\", \"1F1\", \"1B0\", \"1SEND_B0\", \"1B1\", "
      "\"1SEND_B1\"]]}",
      "pairs",
      "rank 0, place 4 (0RECV_B1): it is receive number 0 between the two stages, but send number 0 is 1SEND_B0 (rank "
      "1, place 5), so it takes the gradient of stage 1, microbatch 0; put the sends and the receives into one order");
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
  const char *sentence =
      "rank 1, place 7 (1RECV_B0): it is receive number 2 from rank 0 to rank 1, but send number 2 is 0SEND_F1 (rank "
      "0, place 8), so it takes the value of stage 0, microbatch 1; put the sends (line 1) and the receives (line 2) "
      "into one order";
  breaks_with(wrong, &ranks, "pairs", sentence);
  breaks_with(wrong, &buffered, "pairs", sentence);
  reports_both_transfers(wrong);
  /* The same table as JSON is no table of PyTorch, so each edge is asked alone, unless the caller says otherwise. */
  ad_table *table = table_of(wrong), *copy;
  char *json;
  assert_int_equal(ad_table_json(table, &json), AD_OK);
  assert_int_equal(ad_table_parse(json, strlen(json), "test", &copy, NULL), AD_OK);
  table_holds(copy, &buffered);
  breaks_with(json, &ranks, "pairs", "put the sends and the receives into one order");
  assert_int_equal(ad_table_check(table, &none), AD_INVALID);
  assert_says("3");
  free(json);
  ad_table_destroy(table);
}

static void what_is_needed_stands_before(void **state) {
  breaks("0B0,0F0\n", "given", "rank 0, place 0 (0B0): it needs 0F0, which comes later, at place 1");
  breaks("0F0,0W0,0I0\n", "given", "rank 0, place 1 (0W0): it needs 0I0, which comes later, at place 2");
  breaks("1F0,0F0,1B0,0B0\n", "given", "rank 0, place 0 (1F0): it needs 0F0");
  breaks("0F0,1F0,0B0,1B0\n", "given", "rank 0, place 2 (0B0): it needs 1B0");
  breaks("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "given", "rank 0, place 0 (0SEND_F0): it needs 0F0");
  breaks("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", "given", "rank 1, place 0 (1F0): it needs 1RECV_F0");
}

/* No gradient goes back over a one-way edge, so no rank waits for one. */
static void one_way_edges_take_no_gradient_back(void **state) {
  holds("{\"schedule\": 1, \"edges\": [[0, 1, \"one_way\"]], \"ranks\": [[\"0F0\", \"1F0\", \"0B0\", \"1B0\"]]}");
  breaks("{\"schedule\": 1, \"edges\": [[0, 1]], \"ranks\": [[\"0F0\", \"1F0\", \"0B0\", \"1B0\"]]}", "given",
         "rank 0, place 2 (0B0): it needs 1B0");
  breaks(
      "{\"schedule\": 1, \"edges\": [[0, 1, \"one_way\"]], \"ranks\": [[\"0F0\", \"0SEND_F0\", \"0RECV_B0\", \"0B0\"], "
      "[\"1RECV_F0\", \"1F0\", \"1B0\", \"1SEND_B0\"]]}",
      "pairs", "no gradient goes back from stage 1 to stage 0");
}

static void parameters_are_gathered_where_they_are_used(void **state) {
  holds("0UNSHARD,0F0,0RESHARD,0GATHER,0B0,0RELEASE\n");
  breaks("0F0,0GATHER,0B0,0RELEASE\n", "gathered",
         "rank 0, place 0 (0F0): the parameters of stage 0 are not gathered here; put 0GATHER before it");
  breaks("0GATHER,0F0,0RELEASE,0B0\n", "gathered", "rank 0, place 3 (0B0)");
  breaks("0GATHER,0F0,0GATHER,0B0,0RELEASE\n", "gathered",
         "rank 0, place 2 (0GATHER): stage 0 was gathered at place 0 and is not released yet");
  breaks("0GATHER,0F0,0B0,0RELEASE,0RELEASE\n", "gathered", "rank 0, place 4 (0RELEASE): stage 0 is not gathered here");
  breaks("0GATHER,0F0,0B0\n", "pending",
         "rank 0, place 0 (0GATHER): the parameters that it gathers are never released; put 0RELEASE behind the last "
         "action of stage 0");
}

static void reductions_stand_behind_the_last_addend(void **state) {
  holds("0F0,0F1,0B0,0REDUCE0,0B1,0REDUCE\n");
  holds("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n");
  breaks("0F0,0F1,0B0,0REDUCE,0B1\n", "reduced",
         "rank 0, place 4 (0B1): the last reduction of stage 0 is earlier, at place 3, so this addend would be in "
         "no sum");
  breaks("0F0,0I0,0REDUCE,0W0\n", "reduced", "rank 0, place 3 (0W0)");
  breaks("0F0,0B0,0REDUCE\n1F0,1B0\n", "reduced",
         "rank 1: the gradient of stage 1 is never reduced: its addends stay on their ranks; put 1REDUCE behind");
  breaks("0F0,0B0,0REDUCE,0REDUCE\n", "reduced",
         "rank 0, place 3 (0REDUCE): the same action is also at place 2 of rank 0");
  breaks("0F0,0F1,0REDUCE0,0B0,0B1,0REDUCE\n", "reduced",
         "rank 0, place 2 (0REDUCE0): the addend of microbatch 0 comes later, at place 3");
  breaks("0F0,0F1,0B0,0REDUCE0,0REDUCE0,0B1,0REDUCE\n", "reduced",
         "rank 0, place 4 (0REDUCE0): the addend of microbatch 0 was reduced before");
  holds("0F0,0F1,0B0,0REDUCE0,0WAIT_REDUCE,0B1,0REDUCE,0WAIT_REDUCE\n");
  breaks("0F0,0F1,0B0,0REDUCE0,0B1,0REDUCE,0WAIT_REDUCE\n", "pending",
         "rank 0, place 5 (0REDUCE): the reduction at place 3 is not waited for yet; put 0WAIT_REDUCE before this");
  breaks("0F0,0B0,0WAIT_REDUCE,0REDUCE\n", "reduced", "no reduction of stage 0 is under way");
  breaks("0F0,0B0,0REDUCE,0WAIT_REDUCE\n1F0,1B0,1REDUCE\n", "pending",
         "rank 1, place 2 (1REDUCE): it is still under way at the end; put 1WAIT_REDUCE behind it");
}

/* Each decision of the law of reductions, right on one side of it and wrong on the other. */
static void a_reduction_takes_each_addend_once(void **state) {
  /* the last reduction takes all addends, also of microbatches that have none of their own */
  holds("0F0,0F1,0B0,0B1,0REDUCE0,0REDUCE\n");
  breaks("0F0,0F1,0B0,0B1,0REDUCE,0REDUCE0\n", "reduced", "rank 0, place 5 (0REDUCE0): the addend of microbatch 0 was");
  breaks("0F0,0F1,0B0,0REDUCE0,0B1,0REDUCE1\n", "reduced", "the gradient of stage 0 is never reduced");
  /* the addend of a backward in two halves is the second half's */
  holds("0F0,0F1,0I0,0W0,0REDUCE0,0I1,0W1,0REDUCE\n");
  breaks("0F0,0F1,0I0,0REDUCE0,0W0,0I1,0W1,0REDUCE\n", "reduced",
         "rank 0, place 3 (0REDUCE0): the addend of microbatch "
         "0 comes later, at place 4");
  breaks("0F0,0F1,0I0,0W0,0I1,0REDUCE,0W1\n", "reduced",
         "rank 0, place 6 (0W1): the last reduction of stage 0 is "
         "earlier, at place 5");
  /* each stage and each microbatch has its own */
  holds("0F0,1F0,1B0,1REDUCE,0B0,0REDUCE\n");
  holds("0F0,1F0,1B0,1REDUCE0,0B0,0REDUCE0,0F1,1F1,1B1,1REDUCE1,0B1,0REDUCE1,0F2,1F2,1B2,1REDUCE,0B2,0REDUCE\n");
  breaks("0F0,1F0,1B0,1REDUCE,0REDUCE,0B0\n", "reduced",
         "rank 0, place 5 (0B0): the last reduction of stage 0 is "
         "earlier, at place 4");
}

static void a_reduction_is_waited_for_by_the_next_of_its_stage(void **state) {
  /* another stage's reduction may be under way beside it */
  holds("0F0,1F0,1B0,1REDUCE,0B0,0REDUCE,1WAIT_REDUCE,0WAIT_REDUCE\n");
  holds("0F0,1F0,1B0,1REDUCE,0B0,0REDUCE,0WAIT_REDUCE,1WAIT_REDUCE,SUMS,NORM,0UPDATE,1UPDATE\n");
  /* a wait ends one reduction, and only that of its stage */
  breaks("0F0,1F0,1B0,1REDUCE,0B0,0WAIT_REDUCE,0REDUCE,1WAIT_REDUCE\n", "reduced", "rank 0, place 5 (0WAIT_REDUCE)");
  /* the stage that never waits has its fault at its last reduction, and none at those before */
  breaks("0F0,1F0,1B0,1REDUCE0,0B0,0REDUCE0,0WAIT_REDUCE,0F1,1F1,1B1,1REDUCE,0B1,0REDUCE,0WAIT_REDUCE\n", "pending",
         "rank 0, place 10 (1REDUCE): it is still under way at the end; put 1WAIT_REDUCE behind it");
  breaks("0F0,1F0,1B0,1REDUCE0,0B0,0REDUCE0,0F1,1F1,1B1,1REDUCE,1WAIT_REDUCE,0B1,0REDUCE\n", "pending",
         "rank 0, place 9 (1REDUCE): the reduction at place 3 is not waited for yet; put 1WAIT_REDUCE before this");
  breaks("0F0,0F1,0B0,0REDUCE0,0B1,0WAIT_REDUCE,0REDUCE\n", "pending",
         "rank 0, place 6 (0REDUCE): it is still under way "
         "at the end");
}

static void the_end_stands_behind_what_it_needs(void **state) {
  holds("0F0,0B0,SUMS,0REDUCE,NORM,0UPDATE\n");
  breaks("0F0,0B0,SUMS,NORM,0UPDATE\n", "reduced", "the gradient of stage 0 is never reduced");
  breaks("0F0,0B0,0REDUCE,NORM,0UPDATE\n", "end", "rank 0: there is no SUMS, in which all ranks take part");
  breaks("0F0,0B0,0REDUCE,SUMS,0UPDATE\n", "end", "rank 0: there is no NORM");
  breaks("0F0,0B0,0REDUCE,SUMS,NORM\n", "end", "rank 0: stage 0 is never updated; put 0UPDATE at the end of the list");
  breaks("0F0,0B0,0REDUCE,0UPDATE,SUMS,NORM\n", "end", "rank 0, place 3 (0UPDATE): it needs NORM");
  breaks("0F0,0B0,SUMS,NORM,0REDUCE,0UPDATE\n", "end", "rank 0, place 3 (NORM): it needs 0REDUCE");
  breaks("0F0,0B0,0REDUCE,NORM,SUMS,0UPDATE\n", "end", "rank 0, place 3 (NORM): it needs SUMS");
  breaks("SUMS,0F0,0B0,0REDUCE,NORM,0UPDATE\n", "end", "rank 0, place 0 (SUMS): it needs 0F0");
  breaks("0F0,0B0,0REDUCE,SUMS,SUMS,NORM,0UPDATE\n", "end", "the same action is also at place 3 of rank 0");
  breaks("0F0,0B0,0REDUCE,SUMS,NORM,0UPDATE,0WAIT_REDUCE\n", "end",
         "rank 0, place 5 (0UPDATE): the reduction of stage 0 is not waited for yet; move it behind a 0WAIT_REDUCE");
  breaks("0F0,0B0,0REDUCE,SUMS,NORM,0WAIT_REDUCE,0UPDATE\n", "end", "rank 0, place 4 (NORM): it needs 0WAIT_REDUCE");
}

static void sends_that_are_waited_for_are_all(void **state) {
  holds(
      "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n");
  breaks(
      "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0\n",
      "pending",
      "rank 1, place 3 (1SEND_B0): other sends of the table are waited for, but this one is still under way");
  breaks(
      "0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n",
      "given", "rank 0, place 1 (0WAIT_SEND_F0): it needs 0SEND_F0");
}

/* In a table without transfers, ranks wait for each other's compute actions. */
static void nobody_waits_in_a_circle(void **state) {
  ad_table_options buffered = {.size = sizeof buffered, .buffered = 1};
  breaks("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n", "circle",
         "with buffered sends ranks wait in a circle: rank 0 at place 1 (0B0) for 1B0 of rank 1 (place 2); rank 1 at "
         "place 0 (1F1) for 0F1 of rank 0 (place 2)");
  /* A 1F1B in which rank 0 sends the next value before it receives the gradient: right only if sends are buffered. */
  const char *crossed =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  holds_with(crossed, &buffered);
  breaks(crossed, "circle",
         "rank 0, place 3 (0SEND_F1): with blocking sends ranks wait in a circle: rank 0 at place 3 (0SEND_F1) for "
         "1RECV_F1 of rank 1 (place 4); rank 1 at place 3 (1SEND_B0) for 0RECV_B0 of rank 0 (place 4)");
  /* A send with a separate WAIT blocks at that WAIT. */
  holds(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0WAIT_SEND_F0,0WAIT_SEND_F1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1\n");
  breaks(
      "0F0,0SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0WAIT_SEND_F0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1WAIT_SEND_B1\n",
      "circle", "rank 0 at place 4 (0WAIT_SEND_F1) for 1RECV_F1 of rank 1 (place 5)");
  /* Waiting in a collective counts as a wait too. */
  breaks(
      "0F0,0SEND_F0,SUMS,0RECV_B0,0B0,0REDUCE,NORM,0UPDATE\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE,SUMS,NORM,1UPDATE\n",
      "circle", "rank 0 at place 2 (SUMS) for SUMS of rank 1 (place 5)");
}

static void activations_stay_below_a_limit(void **state) {
  ad_table_options options = {.size = sizeof options, .in_flight = 2};
  holds_with("0F0,0F1,0B0,0F2,0B1,0B2\n", &options);
  breaks_with("0F0,0F1,0F2,0B0,0B1,0B2\n", &options, "in_flight",
              "rank 0, place 2 (0F2): with it 3 activations are in flight, and the limit is 2");
  /* Memory that a W still holds has a limit of its own. */
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
      cmocka_unit_test(what_is_needed_stands_before),
      cmocka_unit_test(one_way_edges_take_no_gradient_back),
      cmocka_unit_test(parameters_are_gathered_where_they_are_used),
      cmocka_unit_test(reductions_stand_behind_the_last_addend),
      cmocka_unit_test(a_reduction_takes_each_addend_once),
      cmocka_unit_test(a_reduction_is_waited_for_by_the_next_of_its_stage),
      cmocka_unit_test(the_end_stands_behind_what_it_needs),
      cmocka_unit_test(sends_that_are_waited_for_are_all),
      cmocka_unit_test(nobody_waits_in_a_circle),
      cmocka_unit_test(activations_stay_below_a_limit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
