/* Reads one action from a cell of a CSV table or a string of a JSON table. */
#ifndef SCHEDULE_CELL_H
#define SCHEDULE_CELL_H
#include "schedule/table.h"

/* A cell: a piece of a text that belongs to the caller. */
typedef struct ad_table_cell {
  const char *text;
  size_t length;
} ad_table_cell;
/* Returns the text as a cell, without spaces at its beginning and end. */
ad_table_cell ad_table_cell_trimmed(const char *text, size_t length);
/* Writes the cell for an error message, printable and truncated if it is long. Returns buffer. */
const char *ad_table_cell_print(ad_table_cell cell, char *buffer, size_t size);

/* Reads an action such as "1F3", "0SEND_F3>2" or "0UNSHARD"; kinds have addend's or PyTorch's names. AD_INVALID says
 * what is wrong. */
AD_CHECKED ad_status ad_table_cell_read(ad_table_cell cell, ad_action *out);
/* Adds the action of a cell to the rank's list. A cell "(0F1;1B0)OVERLAP_F_B" adds each of its actions, one after
 * another, and increases *overlapped by 1. An empty cell adds none. */
AD_CHECKED ad_status ad_table_cell_add(ad_table *table, int32_t rank, ad_table_cell cell, size_t *overlapped);

#endif
