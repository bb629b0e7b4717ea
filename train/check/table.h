/* The parts of the printed table of a check that are in separate files. */
#ifndef CHECK_TABLE_H
#define CHECK_TABLE_H
#include <stdio.h>

#include "files/printed.h"

enum { AD_TABLE_CAUSES = 640 }; /* most bytes of a line of causes */

/* Prints why no axis is named, for a mutant or for the only cause of a parameter. */
void ad_table_no_axis(FILE *file, const json_t *judged);
/* Prints the results of the mutants, if there are any: counts, and a row for each mutant that survived; with `all`, a
 * row for each mutant. */
void ad_table_mutants(FILE *file, const json_t *document, int all, const ad_paint *paint);
/* Returns the name of the first mutant of the list that survived; "" if none did. */
const char *ad_table_first_survivor(const json_t *mutants);

#endif
