/* Lowers a table: chooses the passes and runs them. */
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "schedule/passes.h"

static const struct {
  ad_table_part part;
  const char *name;
} passes[] = {{AD_TABLE_TRANSFERS, "transfers"},
              {AD_TABLE_GATHERS, "gathers"},
              {AD_TABLE_REDUCTIONS, "reductions"},
              {AD_TABLE_END, "the end of a step"}};

/* Returns AD_INVALID unless `parts` are parts of tables, the table has none of them yet, and it is small enough to be
 * lowered. */
static ad_status check_parts(const ad_table *table, unsigned parts) {
  unsigned known = AD_TABLE_TRANSFERS | AD_TABLE_GATHERS | AD_TABLE_REDUCTIONS | AD_TABLE_END;
  if (parts & ~known)
    return ad_fail(
        AD_INVALID,
        "ad_table_lower: the option `parts` has the bits %#x, which mean nothing; use values of ad_table_part",
        parts & ~known);
  for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
    if (parts & table->parts & passes[i].part)
      return ad_fail(AD_INVALID,
                     "the table already has %s, which cannot be inserted a second time; leave %s out of `parts`, or "
                     "lower a table that has only compute actions",
                     passes[i].name, passes[i].name);
  if (table->action_count > AD_TABLE_ACTIONS_MAX / 8)
    return ad_fail(AD_INVALID, "a table of %zu actions is too large to be lowered; use a table of at most %d actions",
                   table->action_count, AD_TABLE_ACTIONS_MAX / 8);
  return AD_OK;
}

/* Runs the passes. The pass for waits runs after the passes that insert sends and reductions, and before the pass for
 * the end of the step, because nothing may be in flight there. */
static ad_status run_passes(ad_table *table, const ad_table_lowering *options) {
  unsigned parts = options->parts;
  if (parts & AD_TABLE_TRANSFERS) AD_TRY(ad_table_insert_transfers(table));
  if (parts & AD_TABLE_GATHERS) AD_TRY(ad_table_insert_gathers(table, options->gathered));
  if (parts & AD_TABLE_REDUCTIONS) AD_TRY(ad_table_insert_reductions(table, options->reduces_each));
  if (options->waits) AD_TRY(ad_table_insert_waits(table, parts));
  return parts & AD_TABLE_END ? ad_table_insert_end(table) : AD_OK;
}

/* Exchanges the contents of the two tables. */
static void exchange(ad_table *table, ad_table *lowered) {
  ad_table old = *table;
  *table = *lowered;
  *lowered = old;
}

ad_status ad_table_lower(ad_table *table, const ad_table_lowering *given) {
  ad_table_lowering options;
  ad_table *lowered;
  AD_NEED(table);
  AD_TRY(ad_options_take(&options, sizeof options, given, "ad_table_lowering"));
  if (!options.parts) options.parts = AD_TABLE_TRANSFERS | AD_TABLE_REDUCTIONS | AD_TABLE_END;
  if (options.gathered < 0)
    return ad_fail(AD_INVALID,
                   "the option `gathered`, the most stages whose parameters a rank may hold gathered, must be 1 or "
                   "more, or 0 for any number, but is %d",
                   options.gathered);
  AD_TRY(check_parts(table, options.parts));
  AD_TRY(ad_table_check(table, NULL));
  AD_TRY(ad_table_copy(table, &lowered));
  ad_status status = run_passes(lowered, &options);
  if (!status) status = ad_table_check(lowered, NULL);
  if (!status) exchange(table, lowered);
  ad_table_destroy(lowered);
  return status;
}
