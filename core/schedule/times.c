/* Measures a table: times, bubble, and how many activations and operands ranks hold. */
#include "schedule/times.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/text.h"
#include "schedule/held.h"
#include "schedule/laws.h"

/* ---- checking the costs of actions ---- */

static ad_status check_cost(const char *what, double cost) {
  if (cost >= 0 && cost <= 1e12) return AD_OK;
  return ad_fail(AD_INVALID, "the cost of %s must be above 0 and at most 1e12, not %g", what, cost);
}

static ad_status check_stages(const ad_table *table, const ad_table_costs *costs) {
  if (costs->stage_count == (size_t)table->stages) return AD_OK;
  return ad_fail(AD_INVALID,
                 "costs are given for %zu stage%s, but the table has %d stages; give one cost for each stage",
                 costs->stage_count, ad_plural((long long)costs->stage_count), table->stages);
}

static ad_status check_of_action(const ad_table_costs *costs, const ad_action *action) {
  double cost = ad_table_cost_of(costs, action);
  char text[AD_ACTION_TEXT_MAX];
  if (action->kind > AD_ACTION_W || (cost > 0 && cost <= 1e12)) return AD_OK;
  return ad_fail(AD_INVALID, "the cost of %s must be above 0 and at most 1e12, not %g",
                 ad_action_print(action, text, sizeof text), cost);
}

static ad_status check_of_actions(const ad_table *table, const ad_table_costs *costs) {
  if (costs->microbatch_count != (size_t)table->microbatches)
    return ad_fail(
        AD_INVALID,
        "costs are given for %zu microbatch%s, but the table has %d microbatches; give costs for all of these",
        costs->microbatch_count, costs->microbatch_count == 1 ? "" : "es", table->microbatches);
  for (int32_t r = 0; r < table->ranks; r++)
    for (size_t i = 0; i < table->rows[r].count; i++) AD_TRY(check_of_action(costs, &table->rows[r].actions[i]));
  return AD_OK;
}

/* Returns AD_INVALID unless all costs are positive and not too large, and there are as many as the table needs. */
static ad_status check_costs(const ad_table *table, const ad_table_costs *costs) {
  AD_TRY(check_cost("F", costs->f));
  AD_TRY(check_cost("B", costs->b));
  AD_TRY(check_cost("I", costs->i));
  AD_TRY(check_cost("W", costs->w));
  AD_TRY(check_cost("a transfer", costs->transfer));
  if (costs->of_stage || costs->of_action) AD_TRY(check_stages(table, costs));
  if (costs->of_action) return check_of_actions(table, costs);
  for (size_t s = 0; costs->of_stage && s < costs->stage_count; s++)
    if (!(costs->of_stage[s] > 0 && costs->of_stage[s] <= 1e12))
      return ad_fail(AD_INVALID, "the cost of stage %zu must be above 0 and at most 1e12, not %g", s,
                     costs->of_stage[s]);
  return AD_OK;
}

ad_status ad_table_take_options(const ad_table *table, const ad_table_options *given, ad_table_options *options,
                                ad_table_costs *costs) {
  AD_TRY(ad_options_take(options, sizeof *options, given, "ad_table_options"));
  AD_TRY(ad_options_take(costs, sizeof *costs, options->costs, "ad_table_costs"));
  if (options->in_flight < 0)
    return ad_fail(AD_INVALID, "the limit of activations in flight (`in_flight`) must be 1 or more, not %d",
                   options->in_flight);
  if ((unsigned)options->pairs > AD_TABLE_PAIRS_RANKS)
    return ad_fail(AD_INVALID, "the option `pairs` is %d, but must be AD_TABLE_PAIRS_EDGE or AD_TABLE_PAIRS_RANKS",
                   (int)options->pairs);
  if (options->pairs == AD_TABLE_PAIRS_OF_SOURCE)
    options->pairs = table->is_csv ? AD_TABLE_PAIRS_RANKS : AD_TABLE_PAIRS_EDGE;
  return check_costs(table, costs);
}

/* ---- executing a table to find when its actions start and end ---- */

static ad_status check_faults(const ad_table_faults *faults) {
  return faults->count ? ad_fail(AD_INVALID, "%s", faults->list[0].text) : AD_OK;
}

ad_status ad_table_times_create(const ad_table *table, const ad_table_options *given, ad_table_times_of *out) {
  ad_table_options options;
  ad_table_faults faults;
  *out = (ad_table_times_of){0};
  AD_TRY(ad_table_take_options(table, given, &options, &out->costs));
  ad_status status = ad_table_judge_all(table, &options, &out->index, &faults);
  if (!status) status = check_faults(&faults);
  if (!status) status = ad_execute(&out->index, AD_SENDS_OVERLAPPED, &out->costs, &out->run);
  if (status) ad_table_index_destroy(&out->index);
  return status;
}

void ad_table_times_destroy(ad_table_times_of *times) {
  ad_execution_destroy(&times->run);
  ad_table_index_destroy(&times->index);
}

/* ---- worth: makespan, bubble, activations and operands that ranks hold ---- */

ad_table_rank_worth ad_table_rank_worth_of(const ad_table_times_of *times, int32_t rank) {
  const ad_table_row *row = &times->index.table->rows[rank];
  ad_table_rank_worth worth = {0, 0, 0};
  ad_table_held held = {0, 0};
  for (size_t i = 0; i < row->count; i++) {
    worth.busy += ad_table_cost_of(&times->costs, &row->actions[i]);
    ad_table_hold(&held, row->actions[i].kind);
    if (held.in_flight > worth.in_flight) worth.in_flight = held.in_flight;
    if (held.deferred > worth.deferred) worth.deferred = held.deferred;
  }
  return worth;
}

static double makespan_of(const ad_execution *run) {
  double latest = 0;
  for (int32_t r = 0; r < run->index->table->ranks; r++) latest = fmax(latest, run->clock[r]);
  return latest;
}

ad_table_worth ad_table_worth_of(const ad_table_times_of *times) {
  const ad_table *table = times->index.table;
  ad_table_worth worth = {.size = sizeof worth, .makespan = makespan_of(&times->run)};
  double busy = 0;
  for (int32_t r = 0; r < table->ranks; r++) {
    ad_table_rank_worth own = ad_table_rank_worth_of(times, r);
    busy += own.busy;
    if (own.in_flight > worth.in_flight) {
      worth.in_flight = own.in_flight;
      worth.in_flight_rank = r;
    }
    if (own.deferred > worth.deferred) {
      worth.deferred = own.deferred;
      worth.deferred_rank = r;
    }
  }
  worth.bubble = 1 - busy / (table->ranks * worth.makespan);
  return worth;
}

ad_status ad_table_measure(const ad_table *table, const ad_table_options *options, ad_table_worth *out) {
  ad_table_times_of times;
  AD_NEED(table, out);
  AD_TRY(ad_result_check(out, sizeof *out, "ad_table_worth"));
  AD_TRY(ad_table_times_create(table, options, &times));
  ad_table_worth worth = ad_table_worth_of(&times);
  ad_table_times_destroy(&times);
  ad_result_give(out, &worth);
  return AD_OK;
}

ad_status ad_table_times(const ad_table *table, const ad_table_options *options, double *begin, double *end) {
  ad_table_times_of times;
  AD_NEED(table, begin, end);
  AD_TRY(ad_table_times_create(table, options, &times));
  memcpy(begin, times.run.begin, table->action_count * sizeof *begin);
  memcpy(end, times.run.end, table->action_count * sizeof *end);
  ad_table_times_destroy(&times);
  return AD_OK;
}
