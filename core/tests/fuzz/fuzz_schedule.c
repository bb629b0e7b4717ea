/* Fuzzes schedule tables: what is accepted is judged the same way twice and is written as text that reads as the same
 * table; a table that holds can be timed, lowered and drawn. */
#include <stdlib.h>
#include <string.h>
#include "addend/schedule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
  if (!holds) abort();
}

static void require_same(const ad_table *table) {
  ad_table *again;
  char *text, *second;
  require(!ad_table_json(table, &text));
  require(!ad_table_parse(text, strlen(text), "fuzz", &again, NULL));
  require(!ad_table_json(again, &second));
  require(!strcmp(text, second));
  ad_table_destroy(again);
  free(second);
  free(text);
}

/* If messages keep their order between two ranks, they also keep it on each edge. */
static void judge_pairs(const ad_table *table) {
  ad_table_options ranks = {.size = sizeof ranks, .pairs = AD_TABLE_PAIRS_RANKS},
                   edge = {.size = sizeof edge, .pairs = AD_TABLE_PAIRS_EDGE};
  require(ad_table_check(table, &ranks) || !ad_table_check(table, &edge));
}

static void judge(ad_table *table) {
  int right, drawn_right;
  char *report, *again, *text;
  ad_table_worth worth = {.size = sizeof worth};
  require(!ad_table_report(table, NULL, &right, &report));
  require(!ad_table_report(table, NULL, &drawn_right, &again));
  require(right == drawn_right && !strcmp(report, again));
  require(right == !ad_table_check(table, NULL) && right == !ad_table_measure(table, NULL, &worth));
  require(!ad_table_text(table, NULL, AD_COLOURED_TEXT, 0, &drawn_right, &text) && right == drawn_right);
  judge_pairs(table);
  free(report);
  free(again);
  free(text);
  unsigned parts = ad_table_parts(table);
  ad_table_lowering lowering = {
      .size = sizeof lowering, .parts = 30 & ~parts, .waits = ad_table_microbatch_count(table) % 2};
  if (right && lowering.parts)
    require(!ad_table_lower(table, &lowering) && (ad_table_parts(table) | AD_TABLE_TRANSFERS) == 31);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ad_table *table = NULL;
  if (ad_table_parse((const char *)data, size, "fuzz", &table, NULL)) {
    require(!table && ad_last_error()[0]);
    return 0;
  }
  require_same(table);
  if (ad_table_stage_count(table) <= 256 && ad_table_microbatch_count(table) <= 256) judge(table);
  ad_table_destroy(table);
  return 0;
}
