/* The needs of an action: the actions that must have ended before it begins. ad_table_needs_next returns one at a
 * time. */
#ifndef SCHEDULE_NEEDS_H
#define SCHEDULE_NEEDS_H
#include "schedule/index.h"

typedef struct ad_table_needs {
  const ad_table_index *index;
  const ad_action *action;
  /* the edges, to or from the action's stage, that are still to be examined: from `at` to before `end` */
  size_t at, end;
  int is_begun; /* 1: the need within the action's own stage was returned */
} ad_table_needs;

ad_table_needs ad_table_needs_of(const ad_table_index *index, ad_table_spot at);
/* *out: the next needed action; actions that the table does not have are left out. Returns 0 if there are no more. */
int ad_table_needs_next(ad_table_needs *needs, ad_table_spot *out);

/* Returns the matching end of a transfer: the RECV of a SEND, the SEND of a RECV, the RECV of a WAIT_SEND. */
ad_table_spot ad_table_other_end(const ad_table_index *index, const ad_action *action);

#endif
