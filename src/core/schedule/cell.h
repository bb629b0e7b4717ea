/* One action as tables in files have it. */
#ifndef SCHEDULE_CELL_H
#define SCHEDULE_CELL_H
#include "schedule/table.h"

/* A piece of a text that is not ours. */
typedef struct ad_table_cell {
  const char *text;
  size_t length;
} ad_table_cell;
ad_table_cell ad_table_cell_trimmed(const char *text, size_t length);
/* The cell for a message, printable; cut. Returns buffer. */
const char *ad_table_cell_print(ad_table_cell cell, char *buffer, size_t size);

/* "1F3", "0SEND_F3>2", "0UNSHARD": by addend's names and PyTorch's. AD_INVALID says what is wrong with it. */
AD_CHECKED ad_status ad_table_cell_read(ad_table_cell cell, ad_action *out);
/* Adds the action of a cell to the rank's list; of "(0F1;1B0)OVERLAP_F_B" each in turn, and counts it. An empty cell
 * adds none. */
AD_CHECKED ad_status ad_table_cell_add(ad_table *table, int32_t rank, ad_table_cell cell, size_t *overlapped);

#endif
