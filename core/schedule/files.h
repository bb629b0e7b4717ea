/* Reads tables from texts, and writes them as texts. */
#ifndef SCHEDULE_FILES_H
#define SCHEDULE_FILES_H
#include <stdio.h>

#include "schedule/table.h"

enum { AD_TABLE_FILE_MAX = 1 << 26 }; /* the most bytes that a text may have */

/* These functions read a table from a text; `name` is the text's name in errors; *overlapped counts the cells with
 * several actions. */
AD_CHECKED ad_status ad_table_csv_parse(const char *text, size_t size, const char *name, ad_table **out,
                                        size_t *overlapped);
AD_CHECKED ad_status ad_table_json_parse(const char *text, size_t size, const char *name, ad_table **out,
                                         size_t *overlapped);
/* *out: the text that `write` prints. The caller frees it with free(). */
AD_CHECKED ad_status ad_table_write_text(const ad_table *table, void (*write)(const ad_table *table, FILE *file),
                                         char **out);

#endif
