/* Growing lists of actions: what the passes write for each rank. */
#include "base/memory.h"
#include "schedule/passes.h"

void ad_table_list_add(ad_table_list *list, const ad_action *action) {
  if (!list->status && list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 64;
    list->status = ad_grow(&list->actions, list->capacity, capacity);
    if (!list->status) list->capacity = capacity;
  }
  if (!list->status) list->actions[list->count++] = *action;
}

ad_status ad_table_list_give(ad_table_list *list, ad_table *table, int32_t rank) {
  if (list->status)
    ad_release(list->actions);
  else
    ad_table_take_row(table, rank, list->actions, list->count);
  return list->status;
}
