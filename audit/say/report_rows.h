/* Groups the parameters of a diff that have the same verdict, so that one line reports all of them. */
#ifndef DIFF_REPORT_ROWS_H
#define DIFF_REPORT_ROWS_H
#include <jansson.h>
#include <stddef.h>

/* Returns rows {"verdict", "kind", "text", "names", "differ"} for the parameters that are not right, in order of each
 * row's first parameter. `differ` is 1 if measured numbers differ between the row's parameters; the text then has the
 * first parameter's numbers. If `alone` is 1, each parameter has its own row. The caller owns the list. */
json_t *ad_report_rows(const json_t *params, int alone);
/* Prints a row's names: "head", "2 parameters (a, b)" or "34 parameters (a ... z)". Returns buffer. */
const char *ad_report_row_label(const json_t *row, char *buffer, size_t size);
/* Returns the names of the pages of `addend explain` on the kinds and causes in a document and in its modules, each
 * name once. The caller owns the list. */
json_t *ad_report_pages(const json_t *document);

#endif
