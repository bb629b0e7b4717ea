/* The needs of an action: the actions that must have ended before it begins, given one after another. */
#ifndef SCHEDULE_NEEDS_H
#define SCHEDULE_NEEDS_H
#include "schedule/index.h"

typedef struct ad_table_needs {
  const ad_table_index *index;
  const ad_action *action;
  size_t at, end; /* the range of edges, to or from the action's stage, that were not looked at yet */
  int is_begun;   /* 1: the need within the action's own stage was given */
} ad_table_needs;

ad_table_needs ad_table_needs_of(const ad_table_index *index, ad_table_spot at);
/* Gives the next needed action. Returns 0 if there is none. Leaves out actions that the table does not have. */
int ad_table_needs_next(ad_table_needs *needs, ad_table_spot *out);

/* The other end of a transfer: of a SEND its RECV, of a RECV its SEND, of a WAIT_SEND its RECV. */
ad_table_spot ad_table_other_end(const ad_table_index *index, const ad_action *action);

#endif
