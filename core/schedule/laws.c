/* The order in which the laws are checked. If a table breaks one law, later laws may have no meaning for it and are
 * skipped. */
#include "schedule/laws.h"

#include "base/error.h"
#include "schedule/times.h"

static ad_status judge_order(const ad_table_index *index, const ad_table_options *options, ad_table_faults *faults) {
  AD_TRY(ad_table_law_pairs(index, options->pairs, faults));
  ad_table_law_given(index, faults);
  AD_TRY(ad_table_law_gathered(index, faults));
  AD_TRY(ad_table_law_reduced(index, faults));
  ad_table_law_end(index, faults);
  return AD_OK;
}

static ad_status judge_waits(const ad_table_index *index, const ad_table_options *options, ad_table_faults *faults) {
  AD_TRY(ad_table_law_circle(index, AD_SENDS_BUFFERED, faults));
  if (options->buffered || faults->count || !(index->table->parts & AD_TABLE_TRANSFERS)) return AD_OK;
  return ad_table_law_circle(index, AD_SENDS_BLOCKING, faults);
}

ad_status ad_table_judge(const ad_table_index *index, const ad_table_options *options, ad_table_faults *faults) {
  if (!index->table->stages)
    ad_table_fault_of(faults, AD_TABLE_LAW_STAGES, -1, -1, -1,
                      "the table contains no computation; add F and B actions to the lists of its ranks");
  if (faults->count) return AD_OK;
  ad_table_law_stages(index, faults);
  ad_table_law_once(index, faults);
  if (!faults->count) AD_TRY(judge_order(index, options, faults));
  if (!faults->count) AD_TRY(judge_waits(index, options, faults));
  if (!faults->count) ad_table_law_in_flight(index->table, options->in_flight, faults);
  return AD_OK;
}

ad_status ad_table_judge_all(const ad_table *table, const ad_table_options *options, ad_table_index *index,
                             ad_table_faults *faults) {
  faults->count = 0;
  AD_TRY(ad_table_index_create(table, index, faults));
  return ad_table_judge(index, options, faults);
}

ad_status ad_table_check(const ad_table *table, const ad_table_options *given) {
  ad_table_options options;
  ad_table_costs costs;
  ad_table_index index;
  ad_table_faults faults;
  AD_NEED(table);
  AD_TRY(ad_table_take_options(table, given, &options, &costs));
  ad_status status = ad_table_judge_all(table, &options, &index, &faults);
  ad_table_index_destroy(&index);
  if (!status && faults.count) status = ad_fail(AD_INVALID, "%s", faults.list[0].text);
  return status;
}
