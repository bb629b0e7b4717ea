/* Tests tables as objects and as texts: what is added, what is refused, that what is written is read again, and that
 * nothing is left behind when memory is short. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/schedule.h"
#include "base/memory.h"
#include "says.h"
#include "schedule/passes.h"

static ad_table *make(const char *name, int32_t stages, int32_t ranks, int32_t microbatches) {
  ad_table *table;
  ad_table_shape shape = {.size = sizeof shape, .stages = stages, .microbatches = microbatches, .ranks = ranks};
  assert_int_equal(ad_table_make(name, &shape, &table), AD_OK);
  return table;
}

static ad_status parse(const char *text, ad_table **out, size_t *overlapped) {
  return ad_table_parse(text, strlen(text), "test", out, overlapped);
}

static void same(const ad_table *a, const ad_table *b) {
  assert_int_equal(ad_table_rank_count(a), ad_table_rank_count(b));
  assert_int_equal(ad_table_stage_count(a), ad_table_stage_count(b));
  assert_int_equal(ad_table_microbatch_count(a), ad_table_microbatch_count(b));
  assert_int_equal(ad_table_parts(a), ad_table_parts(b));
  for (int32_t r = 0; r < ad_table_rank_count(a); r++) {
    assert_int_equal(ad_table_action_count(a, r), ad_table_action_count(b, r));
    for (size_t i = 0; i < ad_table_action_count(a, r); i++) {
      char x[AD_ACTION_TEXT_MAX], y[AD_ACTION_TEXT_MAX];
      assert_string_equal(ad_action_print(ad_table_action(a, r, i), x, sizeof x),
                          ad_action_print(ad_table_action(b, r, i), y, sizeof y));
    }
  }
}

/* ---- adding actions ---- */

static void refuses_action(ad_table *table, int32_t rank, ad_action action) {
  size_t before = ad_table_action_count(table, 0);
  assert_int_equal(ad_table_add(table, rank, &action), AD_INVALID);
  assert_int_equal(ad_table_action_count(table, 0), before);
  assert_int_equal(ad_table_parts(table), 0);
}

static void actions_that_are_none_are_refused(void **state) {
  ad_table *table;
  assert_int_equal(ad_table_create(0, &table), AD_INVALID);
  assert_int_equal(ad_table_create(AD_TABLE_RANKS_MAX + 1, &table), AD_INVALID);
  assert_int_equal(ad_table_create(2, &table), AD_OK);
  refuses_action(table, 2, (ad_action){AD_ACTION_F, 0, 0, 0});
  assert_says("ranks 0", "1", "rank 2");
  refuses_action(table, -1, (ad_action){AD_ACTION_F, 0, 0, 0});
  assert_says("rank -1");
  refuses_action(table, 0, (ad_action){AD_ACTION_COUNT, 0, 0, 0});
  assert_says("17", "0", "16");
  refuses_action(table, 0, (ad_action){(ad_action_kind)-1, 0, 0, 0});
  assert_says("-1", "0", "16");
  refuses_action(table, 0, (ad_action){AD_ACTION_F, -1, 0, 0});
  assert_says("F", "0", "4095", "-1");
  refuses_action(table, 0, (ad_action){AD_ACTION_F, AD_TABLE_STAGES_MAX, 0, 0});
  assert_says("F", "0", "4095", "4096");
  refuses_action(table, 0, (ad_action){AD_ACTION_F, 0, -1, 0});
  assert_says("F", "stage 0", "-1");
  refuses_action(table, 0, (ad_action){AD_ACTION_F, 4095, 4095, 0});
  assert_says("4096 stages", "4096 microbatches", "1048576");
  refuses_action(table, 0, (ad_action){AD_ACTION_F, 0, 0, 1});
  assert_says("F", "hop", "0", "1");
  refuses_action(table, 0, (ad_action){AD_ACTION_GATHER, 0, 1, 0});
  assert_says("GATHER", "microbatch", "0", "1");
  refuses_action(table, 0, (ad_action){AD_ACTION_REDUCE, 0, -2, 0});
  assert_says("REDUCE", "stage 0", "-1", "-2");
  refuses_action(table, 0, (ad_action){AD_ACTION_SUMS, 1, 0, 0});
  assert_says("SUMS", "stage", "0", "1");
  refuses_action(table, 0, (ad_action){AD_ACTION_SEND_B, 0, 0, 0});
  assert_says("SEND_B", "stage 0", "hop");
  refuses_action(table, 0, (ad_action){AD_ACTION_SEND_F, 0, 0, INT32_MAX});
  assert_says("SEND_F", "stage 0", "hop", "2147483647");
  assert_null(ad_table_action(table, 0, 0));
  assert_null(ad_table_action(table, 2, 0));
  assert_int_equal(ad_table_action_count(table, -1), 0);
  assert_string_equal(ad_action_name((ad_action_kind)99), "unknown");
  ad_table_destroy(table);
}

static void edges_that_are_none_are_refused(void **state) {
  ad_table *table;
  assert_int_equal(ad_table_create(2, &table), AD_OK);
  assert_int_equal(ad_table_connect(table, 1, 1, AD_STAGE_BOTH_WAYS), AD_INVALID);
  assert_int_equal(ad_table_connect(table, 2, 1, AD_STAGE_BOTH_WAYS), AD_INVALID);
  assert_int_equal(ad_table_connect(table, 0, AD_TABLE_STAGES_MAX, AD_STAGE_BOTH_WAYS), AD_INVALID);
  assert_int_equal(ad_table_connect(table, 0, 1, (ad_stage_way)7), AD_INVALID);
  assert_int_equal(ad_table_connect(table, 0, 2, AD_STAGE_BOTH_WAYS), AD_OK);
  assert_int_equal(ad_table_connect(table, 0, 2, AD_STAGE_ONE_WAY), AD_INVALID);
  assert_listed();
  ad_action far = {AD_ACTION_F, 0, (AD_TABLE_CELLS_MAX >> 2) - 1, 0};
  assert_int_equal(ad_table_add(table, 0, &far), AD_OK);
  assert_int_equal(ad_table_connect(table, 0, 4, AD_STAGE_BOTH_WAYS), AD_INVALID);
  assert_says("5", "262144");
  assert_int_equal(ad_table_stage_count(table), 3);
  ad_table_destroy(table);
}

/* Each stage finds its edges in any order of adding. */
static void edges_are_found_in_any_order(void **state) {
  static const int edges[][2] = {{2, 3}, {0, 3}, {1, 2}, {0, 1}, {1, 3}};
  static const int32_t rank_of[] = {0, 1, 2, 3};
  ad_table *table;
  char *json;
  assert_int_equal(ad_table_create(4, &table), AD_OK);
  for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
    assert_int_equal(ad_table_connect(table, edges[i][0], edges[i][1], AD_STAGE_BOTH_WAYS), AD_OK);
  assert_int_equal(ad_table_add_leads(table, rank_of, 4, 2), AD_OK);
  assert_int_equal(ad_table_lower(table, NULL), AD_OK);
  assert_int_equal(ad_table_json(table, &json), AD_OK);
  assert_non_null(strstr(json, "\"edges\": [[0, 1], [0, 3], [1, 2], [1, 3], [2, 3]]"));
  for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
    char text[64];
    snprintf(text, sizeof text, edges[i][1] == edges[i][0] + 1 ? "\"%dSEND_F1\"" : "\"%dSEND_F1>%d\"", edges[i][0],
             edges[i][1]);
    assert_non_null(strstr(json, text));
  }
  free(json);
  ad_table_destroy(table);
}

/* ---- lowering: inserting communication ---- */

static void a_part_is_inserted_once(void **state) {
  ad_table *table = make("1f1b", 2, 2, 2), *wrong;
  ad_table_lowering end = {.size = sizeof end, .parts = AD_TABLE_END};
  assert_int_equal(ad_table_lower(table, &end), AD_INVALID);
  assert_listed();
  assert_int_equal(ad_table_parts(table), AD_TABLE_COMPUTE);
  assert_int_equal(ad_table_lower(table, NULL), AD_OK);
  assert_int_equal(ad_table_lower(table, NULL), AD_INVALID);
  assert_listed();
  end.parts = 64;
  assert_int_equal(ad_table_lower(table, &end), AD_INVALID);
  end = (ad_table_lowering){.size = sizeof end, .gathered = -1};
  assert_int_equal(ad_table_lower(table, &end), AD_INVALID);
  ad_table_destroy(table);
  assert_int_equal(parse("0B0,0F0\n", &wrong, NULL), AD_OK);
  assert_int_equal(ad_table_lower(wrong, NULL), AD_INVALID);
  assert_int_equal(ad_table_action_count(wrong, 0), 2);
  ad_table_destroy(wrong);
}

static void lowered(const char *name, int32_t stages, int32_t ranks, int32_t microbatches,
                    const ad_table_lowering *options, const char *expected) {
  ad_table *table = make(name, stages, ranks, microbatches);
  char *json;
  assert_int_equal(ad_table_lower(table, options), AD_OK);
  assert_int_equal(ad_table_json(table, &json), AD_OK);
  assert_string_equal(json, expected);
  free(json);
  ad_table_destroy(table);
}

static void passes_insert_what_they_say(void **state) {
  lowered("1f1b", 2, 2, 2, NULL,
          "{\n  \"schedule\": 1,\n  \"ranks\": [\n"
          "    [\"0F0\", \"0SEND_F0\", \"0F1\", \"0SEND_F1\", \"0RECV_B0\", \"0B0\", \"0RECV_B1\", \"0B1\", "
          "\"0REDUCE\", \"SUMS\", \"NORM\", \"0UPDATE\"],\n"
          "    [\"1RECV_F0\", \"1F0\", \"1RECV_F1\", \"1B0\", \"1SEND_B0\", \"1F1\", \"1B1\", \"1SEND_B1\", "
          "\"1REDUCE\", \"SUMS\", \"NORM\", \"1UPDATE\"]\n  ]\n}\n");
  ad_table_lowering one = {
      .size = sizeof one, .parts = AD_TABLE_GATHERS | AD_TABLE_REDUCTIONS, .gathered = 1, .reduces_each = 1};
  lowered("accumulate", 2, 1, 2, &one,
          "{\n  \"schedule\": 1,\n  \"ranks\": [\n"
          "    [\"0GATHER\", \"0F0\", \"0RELEASE\", \"1GATHER\", \"1F0\", \"1B0\", \"1REDUCE0\", \"1RELEASE\", "
          "\"0GATHER\", \"0B0\", \"0REDUCE0\", \"0F1\", \"0RELEASE\", \"1GATHER\", \"1F1\", \"1B1\", \"1REDUCE\", "
          "\"1RELEASE\", \"0GATHER\", \"0B1\", \"0REDUCE\", \"0RELEASE\"]\n  ]\n}\n");
}

/* The wait for a sent value is where its gradient is used, or at the end if no gradient comes back; the wait for a sent
 * gradient is at the end. */
static void waits_are_where_they_cost_nothing(void **state) {
  ad_table_lowering waiting = {.size = sizeof waiting, .waits = 1};
  lowered("1f1b", 2, 2, 2, &waiting,
          "{\n  \"schedule\": 1,\n  \"ranks\": [\n"
          "    [\"0F0\", \"0SEND_F0\", \"0F1\", \"0SEND_F1\", \"0RECV_B0\", \"0B0\", \"0WAIT_SEND_F0\", \"0RECV_B1\", "
          "\"0B1\", \"0WAIT_SEND_F1\", \"0REDUCE\", \"0WAIT_REDUCE\", \"SUMS\", \"NORM\", \"0UPDATE\"],\n"
          "    [\"1RECV_F0\", \"1F0\", \"1RECV_F1\", \"1B0\", \"1SEND_B0\", \"1F1\", \"1B1\", \"1SEND_B1\", "
          "\"1REDUCE\", \"1WAIT_SEND_B0\", \"1WAIT_SEND_B1\", \"1WAIT_REDUCE\", \"SUMS\", \"NORM\", \"1UPDATE\"]\n"
          "  ]\n}\n");
  ad_table *table;
  char *json;
  waiting.parts = AD_TABLE_TRANSFERS;
  assert_int_equal(parse("{\"schedule\": 1, \"edges\": [[0, 1, \"one_way\"], [0, 2]], \"ranks\": [[\"0F0\", \"0B0\"], "
                         "[\"1F0\", \"1B0\"], [\"2F0\", \"2B0\"]]}",
                         &table, NULL),
                   AD_OK);
  assert_int_equal(ad_table_lower(table, &waiting), AD_OK);
  assert_int_equal(ad_table_json(table, &json), AD_OK);
  assert_text_says(json, "0F0", "0SEND_F0", "0SEND_F0>2", "0RECV_B0>2", "0B0", "0WAIT_SEND_F0>2", "0WAIT_SEND_F0");
  assert_text_says(json, "2RECV_F0>0", "2F0", "2B0", "2SEND_B0>0", "2WAIT_SEND_B0>0");
  free(json);
  ad_table_destroy(table);
}

/* Two of four stages may be gathered at a time; the one whose next use is last is released. Forward gathers each stage;
 * backward finds the last two gathered and gathers the first two again. */
static void what_is_used_last_is_released_first(void **state) {
  ad_table *table = make("accumulate", 4, 1, 1);
  ad_table_lowering two = {.size = sizeof two, .parts = AD_TABLE_GATHERS, .gathered = 2};
  char text[AD_ACTION_TEXT_MAX], order[512] = "";
  assert_int_equal(ad_table_lower(table, &two), AD_OK);
  for (size_t i = 0; i < ad_table_action_count(table, 0); i++) {
    const ad_action *action = ad_table_action(table, 0, i);
    strcat(strcat(order, i ? " " : ""), ad_action_print(action, text, sizeof text));
  }
  assert_string_equal(order,
                      "0GATHER 0F0 1GATHER 1F0 0RELEASE 2GATHER 2F0 1RELEASE 3GATHER 3F0 3B0 3RELEASE 2B0 2RELEASE "
                      "1GATHER 1B0 1RELEASE 0GATHER 0B0 0RELEASE");
  ad_table_destroy(table);
}

/* The fewest gathers with which a rank that holds at most `most` stages computes uses [at, count): it tries every stage
 * that could be released. */
static int fewest_gathers(const int *uses, int count, int at, unsigned held, int most) {
  while (at < count && held >> uses[at] & 1) at++;
  if (at == count) return 0;
  unsigned with = held | 1u << uses[at];
  if (__builtin_popcount(with) <= most) return 1 + fewest_gathers(uses, count, at + 1, with, most);
  int fewest = count;
  for (int s = 0; s < 8; s++) {
    if (!(held >> s & 1)) continue;
    int tried = 1 + fewest_gathers(uses, count, at + 1, with & ~(1u << s), most);
    if (tried < fewest) fewest = tried;
  }
  return fewest;
}

/* Follows the list of rank 0: each stage is gathered where it is used and not gathered twice, at most `most` are held,
 * and none at the end. Returns the number of gathers. */
static int follow_gathers(const ad_table *table, int most) {
  int gathers = 0;
  unsigned held = 0;
  for (size_t i = 0; i < ad_table_action_count(table, 0); i++) {
    const ad_action *action = ad_table_action(table, 0, i);
    unsigned stage = 1u << action->stage;
    assert_int_equal(!(held & stage), action->kind == AD_ACTION_GATHER);
    if (action->kind != AD_ACTION_F) held ^= stage;
    gathers += action->kind == AD_ACTION_GATHER;
    assert_true(!most || __builtin_popcount(held) <= most);
  }
  assert_int_equal(held, 0);
  return gathers;
}

static void gathers_are_fewest(const int *uses, int count, int most) {
  ad_table *table;
  assert_int_equal(ad_table_create(1, &table), AD_OK);
  for (int i = 0; i < count; i++) {
    ad_action use = {.kind = AD_ACTION_F, .stage = uses[i], .microbatch = i};
    assert_int_equal(ad_table_add(table, 0, &use), AD_OK);
  }
  assert_int_equal(ad_table_insert_gathers(table, most), AD_OK);
  assert_int_equal(follow_gathers(table, most), fewest_gathers(uses, count, 0, 0, most ? most : 8));
  ad_table_destroy(table);
}

/* Every order in which a rank can use four stages six times. */
static void no_order_of_releases_gathers_less(void **state) {
  enum { STAGES = 4, USES = 6 };
  int uses[USES] = {0}, at = 0;
  while (at < USES) {
    for (int most = 0; most < STAGES; most++) gathers_are_fewest(uses, USES, most);
    for (at = 0; at < USES && uses[at] == STAGES - 1; at++) uses[at] = 0;
    if (at < USES) uses[at]++;
  }
}

/* ---- tables as texts ---- */

static void what_is_written_is_read_again(void **state) {
  for (size_t i = 0; ad_table_schedule_name(i); i++) {
    const char *name = ad_table_schedule_name(i);
    ad_table *table = make(name, 4, !strcmp(name, "interleaved") ? 2 : 0, 3), *again;
    char *text, *second;
    assert_int_equal(ad_table_csv(table, &text), AD_OK);
    assert_int_equal(parse(text, &again, NULL), AD_OK);
    same(table, again);
    ad_table_destroy(again);
    free(text);
    assert_int_equal(ad_table_lower(table, NULL), AD_OK);
    assert_int_equal(ad_table_json(table, &text), AD_OK);
    assert_int_equal(parse(text, &again, NULL), AD_OK);
    same(table, again);
    assert_int_equal(ad_table_json(again, &second), AD_OK);
    assert_string_equal(text, second);
    free(second);
    ad_table_destroy(again);
    free(text);
    ad_table_destroy(table);
  }
}

static void edges_are_written_and_read(void **state) {
  ad_table *table, *again;
  char *text;
  assert_int_equal(parse("{\"schedule\": 1, \"edges\": [[0, 2], [1, 2, \"one_way\"]],\n"
                         "\"ranks\": [[\"0F0\", \"0B0\"], [\"1F0\", \"1B0\"], [\"2F0\", \"2B0\"]]}",
                         &table, NULL),
                   AD_OK);
  assert_int_equal(ad_table_check(table, NULL), AD_OK);
  assert_int_equal(ad_table_csv(table, &text), AD_INVALID);
  assert_says("JSON");
  assert_int_equal(ad_table_lower(table, NULL), AD_OK);
  assert_int_equal(ad_table_json(table, &text), AD_OK);
  assert_non_null(strstr(text, "\"edges\": [[0, 2], [1, 2, \"one_way\"]]"));
  assert_non_null(strstr(text, "\"0SEND_F0>2\""));
  assert_non_null(strstr(text, "\"2RECV_F0>0\""));
  assert_non_null(strstr(text, "\"0RECV_B0>2\""));
  assert_null(strstr(text, "1RECV_B0"));
  assert_int_equal(parse(text, &again, NULL), AD_OK);
  same(table, again);
  assert_int_equal(ad_table_check(again, NULL), AD_OK);
  free(text);
  ad_table_destroy(table);
  ad_table_destroy(again);
}

static void cells_are_read_as_pytorch_writes_them(void **state) {
  ad_table *table;
  size_t overlapped;
  char text[AD_ACTION_TEXT_MAX];
  assert_int_equal(parse(",,0F0, \"1F0\" ,,(0F1;1BW0)OVERLAP_F_B,1F1,1B1,0B0,0B1\r\n\r\n\r\n", &table, &overlapped),
                   AD_OK);
  assert_int_equal(overlapped, 1);
  assert_int_equal(ad_table_rank_count(table), 1);
  assert_int_equal(ad_table_action_count(table, 0), 8);
  assert_string_equal(ad_action_print(ad_table_action(table, 0, 2), text, sizeof text), "0F1");
  assert_string_equal(ad_action_print(ad_table_action(table, 0, 3), text, sizeof text), "1B0");
  assert_int_equal(ad_table_check(table, NULL), AD_OK);
  ad_table_destroy(table);
}

static void is_no_table(const char *text) {
  ad_table *table = NULL;
  assert_int_equal(parse(text, &table, NULL), AD_INVALID);
  assert_null(table);
}
#define refuses_text(text, ...) (is_no_table(text), assert_says(__VA_ARGS__))

static void texts_that_are_none_are_refused(void **state) {
  refuses_text("", NULL);
  refuses_text(" \n\n", NULL);
  refuses_text("0F0\n0F0,0X1\n", "0X1", "line 2", "cell 2");
  refuses_text("F0\n", "F0", "line 1", "cell 1");
  refuses_text("0F\n", "0F");
  refuses_text("0F0x\n", "0F0x");
  refuses_text("0F0>1\n", ">");
  refuses_text("0SEND_F0>0\n", ">");
  refuses_text("0SEND_F0>\n", ">");
  refuses_text("0UNSHARD1\n", NULL);
  refuses_text("0SUMS\n", NULL);
  refuses_text("99999999999999999999F0\n", NULL);
  refuses_text("0F99999999999999999999\n", NULL);
  refuses_text("5000F0\n", "F", "0", "4095", "5000");
  refuses_text("(0F0;1B0\n", "(", ")OVERLAP_F_B");
  refuses_text("(0F0;1X0)OVERLAP_F_B\n", "1X0");
  refuses_text("\x1b[31m\n", "\\x1b[31m");
  refuses_text("0SEND_B0\n", "hop", "line 1", "cell 1", "SEND_B", "stage 0");
  refuses_text("{", "JSON", "line 1");
  refuses_text("{\"ranks\": [[]]}", "schedule", "1");
  refuses_text("{\"schedule\": 2, \"ranks\": [[]]}", "schedule", "1");
  refuses_text("{\"schedule\": 1, \"ranks\": [[]], \"ranks\": [[\"0F0\"]]}", NULL);
  refuses_text("{\"schedule\": 1}", "ranks");
  refuses_text("{\"schedule\": 1, \"ranks\": []}", "ranks", "1", "4096");
  refuses_text("{\"schedule\": 1, \"ranks\": [1]}", "rank 0");
  refuses_text("{\"schedule\": 1, \"ranks\": [[\"0F0\", 1]]}", "rank 0", "place 1");
  refuses_text("{\"schedule\": 1, \"ranks\": [[\"0Q0\"]]}", "0Q0", "rank 0", "place 0");
  refuses_text("{\"schedule\": 1, \"edges\": 1, \"ranks\": [[]]}", "edges");
  refuses_text("{\"schedule\": 1, \"edges\": [[0]], \"ranks\": [[]]}", "edge 0");
  refuses_text("{\"schedule\": 1, \"edges\": [[0, 1, \"two\"]], \"ranks\": [[]]}", "edge 0");
  refuses_text("{\"schedule\": 1, \"edges\": [[0, 5000]], \"ranks\": [[]]}", "0", "4095");
  refuses_text("{\"schedule\": 1, \"edges\": [[1, 0]], \"ranks\": [[]]}", "edge 0");
  char rows[AD_TABLE_RANKS_MAX + 8];
  memset(rows, '\n', sizeof rows);
  memcpy(rows + AD_TABLE_RANKS_MAX, "0F0", 4);
  refuses_text(rows, "4097 rows", "4096 ranks");
  char lists[4 * AD_TABLE_RANKS_MAX + 64] = "{\"schedule\": 1, \"ranks\": [[]";
  size_t used = strlen(lists);
  for (int i = 0; i < AD_TABLE_RANKS_MAX; i++, used += 3) memcpy(lists + used, ",[]", 3);
  memcpy(lists + used, "]}", 3);
  refuses_text(lists, "ranks", "1", "4096");
  ad_table *table;
  assert_int_equal(ad_table_parse("0F0", ((size_t)1 << 26) + 1, "test", &table, NULL), AD_INVALID);
  assert_says("67108865", "67108864");
  assert_int_equal(ad_table_read("/nonexistent/table.csv", &table, NULL), AD_IO);
  assert_says("/nonexistent/table.csv");
}

/* ---- drawings of tables ---- */

static const char *drawing(const char *csv, int columns, const ad_table_options *options, char text[8192]) {
  ad_table *table;
  char *drawn;
  int right;
  assert_int_equal(parse(csv, &table, NULL), AD_OK);
  assert_int_equal(ad_table_text(table, options, AD_PLAIN_TEXT, columns, &right, &drawn), AD_OK);
  snprintf(text, 8192, "%s", drawn);
  free(drawn);
  ad_table_destroy(table);
  return text;
}

static void a_drawing_has_ranks_over_time(void **state) {
  char text[8192];
  const char *two = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
  assert_string_equal(
      drawing(two, 80, NULL, text),
      "rank 0    F0 F1       B0---    B1---\n"
      "rank 1       F0 B0--- F1 B1---\n"
      "right: 2 ranks, 2 stages, 2 microbatches, 8 actions; not checked, since the table has none: transfers, gathers, "
      "reductions, the end of the step\n"
      "bubble 33.3 % of 9; activations in flight: 2 at most (rank 0)\n");
  assert_non_null(strstr(drawing("0F0,0I0,0W0\n", 80, NULL, text), "rank 0    F0 I0 W0\n"));
  assert_text_says(text, "1", "rank 0");
  assert_non_null(strstr(drawing("0F0,1F0,1B0,0B0\n", 80, NULL, text), "rank 0    0F0 1F0 1B0---- 0B0----\n"));
  ad_table *many = make("1f1b", 4, 4, 40);
  char *drawn;
  int right;
  static const size_t widths[][2] = {{50, 50}, {41, 41}, {40, 40}, {39, 40}, {1, 40}, {0, 100}}; /* asked for, drawn */
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
    assert_int_equal(ad_table_text(many, NULL, AD_PLAIN_TEXT, widths[i][0], &right, &drawn), AD_OK);
    for (char *line = strtok(drawn, "\n"); line && !strncmp(line, "rank", 4); line = strtok(NULL, "\n"))
      assert_int_equal(strlen(line), widths[i][1]);
    free(drawn);
  }
  ad_table_destroy(many);
  assert_string_equal(
      drawing("0B0,0F0\n", 80, NULL, text),
      "given: rank 0, place 0 (0B0): this action needs 0F0, which comes later, at place 1; move this action "
      "after that place\nwrong: 1 rank, 1 stage, 1 microbatch, 2 actions\n");
}

static void rows_of_a_drawing_are_ranks_of_a_world(void **state) {
  ad_table *table;
  ad_table_shape shape = {.size = sizeof shape, .stages = 3, .microbatches = 2};
  ad_table_drawing drawing = {.size = sizeof drawing, .title = "a", .subtitle = "b < c", .ranks_per_row = 125000};
  char *svg = NULL;
  assert_int_equal(ad_table_make("1f1b", &shape, &table), AD_OK);
  assert_int_equal(ad_table_svg(table, NULL, &drawing, &svg), AD_OK);
  assert_non_null(strstr(svg, ">ranks 250000 to 374999<"));
  assert_non_null(strstr(svg, ">b &lt; c<"));
  free(svg);
  drawing.title = NULL;
  assert_int_equal(ad_table_svg(table, NULL, &drawing, &svg), AD_INVALID);
  ad_table_destroy(table);
}

static void a_wrong_table_has_no_picture(void **state) {
  ad_table *table;
  assert_int_equal(parse("0B0,0F0\n", &table, NULL), AD_OK);
  assert_int_equal(ad_table_picture(table, NULL, "wrong", "/nonexistent/wrong.svg"), AD_INVALID);
  assert_says("0F0");
  assert_int_equal(ad_table_picture(table, NULL, NULL, "wrong.svg"), AD_INVALID);
  assert_int_equal(ad_table_check(NULL, NULL), AD_INVALID);
  ad_table_destroy(table);
  ad_table_destroy(NULL);
}

/* Makes the table that core/docs/pipeline.md shows. */
static ad_status make_own(const char *path) {
  ad_table *table;
  AD_TRY(ad_table_create(2, &table));
  for (int32_t stage = 0; stage < 2; stage++) {
    ad_action forward = {AD_ACTION_F, stage, 0, 0}, back = {AD_ACTION_B, stage, 0, 0};
    AD_TRY(ad_table_add(table, stage, &forward));
    AD_TRY(ad_table_add(table, stage, &back));
  }
  AD_TRY(ad_table_lower(table, NULL));
  AD_TRY(ad_table_picture(table, NULL, "mine & <yours>", path));
  ad_table_destroy(table);
  return AD_OK;
}

static void a_schedule_of_ones_own_is_drawn(void **state) {
  char path[] = "/tmp/addend-table-XXXXXX", text[16384];
  int file = mkstemp(path);
  assert_true(file >= 0);
  assert_int_equal(make_own(path), AD_OK);
  FILE *drawn = fopen(path, "r");
  text[fread(text, 1, sizeof text - 1, drawn)] = 0;
  fclose(drawn);
  remove(path);
  assert_non_null(strstr(text, "mine &amp; &lt;yours&gt;"));
  assert_non_null(strstr(text, "bubble 50.0 % of 6; activations in flight: 1 at most<"));
}

/* ---- allocations that fail ---- */

static void use_all(const char *path) {
  ad_table *table = NULL, *again = NULL;
  ad_table_shape shape = {.size = sizeof shape, .stages = 4, .microbatches = 3, .ranks = 2};
  char *text = NULL;
  int right;
  ad_table_worth worth = {.size = sizeof worth};
  ad_table_lowering waiting = {.size = sizeof waiting, .waits = 1};
  ad_status status = ad_table_make("interleaved", &shape, &table);
  if (!status) status = ad_table_lower(table, &waiting);
  if (!status) status = ad_table_measure(table, NULL, &worth);
  if (!status) status = ad_table_json(table, &text);
  if (!status) status = ad_table_parse(text, strlen(text), "test", &again, NULL);
  free(text);
  text = NULL;
  if (!status) status = ad_table_text(again, NULL, AD_PLAIN_TEXT, 80, &right, &text);
  if (!status) status = ad_table_picture(again, NULL, "test", path);
  assert_true(status == AD_OK || status == AD_MEMORY);
  free(text);
  ad_table_destroy(table);
  ad_table_destroy(again);
}

static void memory_that_is_not_there_leaves_nothing(void **state) {
  char path[] = "/tmp/addend-table-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  ad_memory_fail_at(0);
  use_all(path);
  long all = ad_memory_fail_at(0);
  assert_true(all > 50);
  for (long n = 1; n <= all; n++) {
    ad_memory_fail_at(n);
    use_all(path);
  }
  ad_memory_fail_at(0);
  remove(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(actions_that_are_none_are_refused),
      cmocka_unit_test(edges_that_are_none_are_refused),
      cmocka_unit_test(edges_are_found_in_any_order),
      cmocka_unit_test(a_part_is_inserted_once),
      cmocka_unit_test(passes_insert_what_they_say),
      cmocka_unit_test(waits_are_where_they_cost_nothing),
      cmocka_unit_test(what_is_used_last_is_released_first),
      cmocka_unit_test(no_order_of_releases_gathers_less),
      cmocka_unit_test(what_is_written_is_read_again),
      cmocka_unit_test(edges_are_written_and_read),
      cmocka_unit_test(cells_are_read_as_pytorch_writes_them),
      cmocka_unit_test(texts_that_are_none_are_refused),
      cmocka_unit_test(a_drawing_has_ranks_over_time),
      cmocka_unit_test(rows_of_a_drawing_are_ranks_of_a_world),
      cmocka_unit_test(a_wrong_table_has_no_picture),
      cmocka_unit_test(a_schedule_of_ones_own_is_drawn),
      cmocka_unit_test(memory_that_is_not_there_leaves_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
