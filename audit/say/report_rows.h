/* Groups the parameters of a diff that have the same verdict, so that one line reports all of them. */
#ifndef DIFF_REPORT_ROWS_H
#define DIFF_REPORT_ROWS_H
#include <jansson.h>
#include <stddef.h>

/* Rows {"verdict", "kind", "text", "names", "differ"} for the parameters that are not right, in order of each row's
 * first parameter. `differ`: 1 if measured numbers differ between the parameters; the text has the first one's.
 * `alone`: 1: one row for each parameter. The caller owns the list. */
json_t *ad_report_rows(const json_t *params, int alone);
/* Prints a row's names: "head", "2 parameters (a, b)" or "34 parameters (a ... z)". Returns buffer. */
const char *ad_report_row_label(const json_t *row, char *buffer, size_t size);
/* The names of the pages of `addend explain` about the kinds and causes in a document, or in its modules; each once.
 * The caller owns the list. */
json_t *ad_report_pages(const json_t *document);

#endif
