/* Writes the sentences of a table's faults. */
#include "schedule/faults.h"

#include <stdarg.h>
#include <stdio.h>

const char *ad_table_law_name(ad_table_law law) {
  static const char *const names[] = {
#define AD_TABLE_LAW_NAME(code, name) [code] = name,
      AD_TABLE_LAW_LIST(AD_TABLE_LAW_NAME)
#undef AD_TABLE_LAW_NAME
  };
  return names[law];
}

static void write(ad_table_fault *fault, const char *where, const char *format, va_list arguments) {
  int used = snprintf(fault->text, sizeof fault->text, "%s", where);
  vsnprintf(fault->text + used, sizeof fault->text - (size_t)used, format, arguments);
}

/* Returns the entry for the next fault; NULL if the list is full: the fault is then only counted. */
static ad_table_fault *next(ad_table_faults *faults) {
  return faults->count++ < AD_TABLE_FAULTS_MAX ? &faults->list[faults->count - 1] : NULL;
}

ad_table_fault *ad_table_fault_at(ad_table_faults *faults, ad_table_law law, const ad_table *table, ad_table_spot at,
                                  const char *format, ...) {
  char where[AD_ACTION_TEXT_MAX + 48], text[AD_ACTION_TEXT_MAX];
  const ad_action *action = &table->rows[at.rank].actions[at.place];
  ad_action_names names = ad_action_record_of(action->kind)->names;
  ad_table_fault *fault = next(faults);
  if (!fault) return NULL;
  *fault = (ad_table_fault){
      .law = law, .rank = at.rank, .place = at.place, .other = {-1, -1}, .stage = -1, .microbatch = -1};
  if (names != AD_NAMES_NOTHING) fault->stage = action->stage;
  if (names == AD_NAMES_MICROBATCH || names == AD_NAMES_MAYBE) fault->microbatch = action->microbatch;
  snprintf(where, sizeof where, "rank %d, place %d (%s): ", at.rank, at.place,
           ad_action_print(action, text, sizeof text));
  va_list arguments;
  va_start(arguments, format);
  write(fault, where, format, arguments);
  va_end(arguments);
  return fault;
}

void ad_table_fault_of(ad_table_faults *faults, ad_table_law law, int32_t rank, int32_t stage, int32_t microbatch,
                       const char *format, ...) {
  char where[32] = "";
  ad_table_fault *fault = next(faults);
  if (!fault) return;
  *fault = (ad_table_fault){
      .law = law, .rank = rank, .place = -1, .other = {-1, -1}, .stage = stage, .microbatch = microbatch};
  if (rank >= 0) snprintf(where, sizeof where, "rank %d: ", rank);
  va_list arguments;
  va_start(arguments, format);
  write(fault, where, format, arguments);
  va_end(arguments);
}
