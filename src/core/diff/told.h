/* What is said of a diff's parameters in one line, since the same is true of all of them. */
#ifndef DIFF_TOLD_H
#define DIFF_TOLD_H
#include <jansson.h>
#include <stddef.h>

/* Those of a document's parameters that are not right, as rows {"verdict", "kind", "text", "names", "differ"} in the
 * order of their first parameters; `differ`: their measured numbers do, and the text has the first one's. `alone`: each
 * parameter has a row of its own. The caller's. */
json_t *ad_told(const json_t *params, int alone);
/* "head", "2 parameters (a, b)" or "34 parameters (a ... z)". Returns buffer. */
const char *ad_told_label(const json_t *row, char *buffer, size_t size);
/* The names of the pages of `addend explain` that say more of what a document (of modules too) has, each once: a list,
 * the caller's. */
json_t *ad_told_pages(const json_t *document);

#endif
