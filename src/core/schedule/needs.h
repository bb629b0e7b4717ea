/* What an action needs: the actions that must have ended before it begins. */
#ifndef SCHEDULE_NEEDS_H
#define SCHEDULE_NEEDS_H
#include "schedule/index.h"

typedef struct ad_table_needs {
  const ad_table_index *index;
  const ad_action *action;
  size_t at, end; /* among the edges that end at its stage, or begin there */
  int is_begun;   /* what it needs of its own stage was said */
} ad_table_needs;

ad_table_needs ad_table_needs_of(const ad_table_index *index, ad_table_spot at);
/* The next of them; 0: there is no more. What stands nowhere is passed over. */
int ad_table_needs_next(ad_table_needs *needs, ad_table_spot *out);

/* Of a SEND its RECV, of a RECV its SEND, of a WAIT_SEND its RECV. */
ad_table_spot ad_table_other_end(const ad_table_index *index, const ad_action *action);

#endif
