/* Reports on a table as one JSON document. */
#include "schedule/report.h"

#include <jansson.h>

#include "base/error.h"
#include "files/json.h"
#include "schedule/laws.h"

/* ---- judging a table: its faults and times ---- */

ad_status ad_table_judged_create(const ad_table *table, const ad_table_options *given, ad_table_judged *out) {
  ad_table_costs costs;
  ad_table_index index;
  *out = (ad_table_judged){.table = table};
  AD_TRY(ad_table_take_options(table, given, &out->options, &costs));
  ad_status status = ad_table_judge_all(table, &out->options, &index, &out->faults);
  ad_table_index_destroy(&index);
  if (status) return status;
  out->holds = !out->faults.count;
  if (!out->holds) return AD_OK;
  AD_TRY(ad_table_times_create(table, given, &out->times));
  out->worth = ad_table_worth_of(&out->times);
  return AD_OK;
}

void ad_table_judged_destroy(ad_table_judged *judged) {
  if (judged->holds) ad_table_times_destroy(&judged->times);
}

/* ---- making the report's document ---- */

static json_t *parts_of(unsigned parts) {
  static const char *const names[] = {"compute", "transfers", "gathers", "reductions", "end"};
  json_t *list = json_array();
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
    if (parts & (1u << i)) json_array_append_new(list, json_string(names[i]));
  return list;
}

static json_t *or_null(int32_t number) { return number < 0 ? json_null() : json_integer(number); }
static json_t *line_or_null(int line) { return line ? json_integer(line) : json_null(); }

/* Returns the second action of a fault as JSON; null if there is none. */
static json_t *other_of(const ad_table *table, ad_table_spot at) {
  char text[AD_ACTION_TEXT_MAX];
  if (at.rank < 0) return json_null();
  const ad_action *action = &table->rows[at.rank].actions[at.place];
  return json_pack("{s:i, s:i, s:o, s:s}", "rank", at.rank, "place", at.place, "line",
                   line_or_null(ad_table_line(table, at.rank)), "action", ad_action_print(action, text, sizeof text));
}

/* Returns the faults as a JSON list. */
static json_t *faults_of(const ad_table *table, const ad_table_faults *faults) {
  json_t *list = json_array();
  for (size_t i = 0; i < faults->count && i < AD_TABLE_FAULTS_MAX; i++) {
    const ad_table_fault *fault = &faults->list[i];
    json_array_append_new(
        list,
        json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "law", ad_table_law_name(fault->law), "rank",
                  or_null(fault->rank), "line", line_or_null(fault->rank < 0 ? 0 : ad_table_line(table, fault->rank)),
                  "place", or_null(fault->place), "stage", or_null(fault->stage), "microbatch",
                  or_null(fault->microbatch), "other", other_of(table, fault->other), "message", fault->text));
  }
  return list;
}

static json_t *ranks_of(const ad_table_judged *judged) {
  json_t *list = json_array();
  for (int32_t r = 0; r < judged->table->ranks; r++) {
    ad_table_rank_worth own = ad_table_rank_worth_of(&judged->times, r);
    json_array_append_new(list,
                          json_pack("{s:f, s:f, s:i, s:i}", "busy", own.busy, "idle", judged->worth.makespan - own.busy,
                                    "in_flight", own.in_flight, "deferred", own.deferred));
  }
  return list;
}

static int add_worth(json_t *document, const ad_table_judged *judged) {
  json_t *worth =
      json_pack("{s:f, s:f, s:i, s:i, s:o}", "makespan", judged->worth.makespan, "bubble", judged->worth.bubble,
                "in_flight", judged->worth.in_flight, "deferred", judged->worth.deferred, "per_rank", ranks_of(judged));
  int failed = json_object_update(document, worth);
  json_decref(worth);
  return failed;
}

/* Returns the report as JSON: sizes, parts, faults and, if the table breaks no law, its times and memory. */
static json_t *document_of(const ad_table_judged *judged) {
  const ad_table *table = judged->table;
  json_t *document = json_pack("{s:i, s:i, s:i, s:I, s:o, s:s, s:b, s:I, s:o}", "ranks", table->ranks, "stages",
                               table->stages, "microbatches", table->microbatches, "actions",
                               (json_int_t)table->action_count, "parts", parts_of(table->parts), "pairs",
                               judged->options.pairs == AD_TABLE_PAIRS_RANKS ? "ranks" : "edge", "right", judged->holds,
                               "faults", (json_int_t)judged->faults.count, "broken", faults_of(table, &judged->faults));
  if (document && judged->holds && add_worth(document, judged)) {
    json_decref(document);
    return NULL;
  }
  return document;
}

ad_status ad_table_report(const ad_table *table, const ad_table_options *options, int *holds, char **json) {
  ad_table_judged judged;
  AD_NEED(table, holds, json);
  ad_status status = ad_table_judged_create(table, options, &judged);
  if (status) return status;
  json_t *document = document_of(&judged);
  char *text = document ? ad_json_dumps(document) : NULL;
  json_decref(document);
  *holds = judged.holds;
  ad_table_judged_destroy(&judged);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the report of a table");
  *json = text;
  return AD_OK;
}
