/* What a job declares of its parameters, and whether the addends agree. A declaration is judged beside the sum: that one
 * does not hold makes no sum wrong. */
#ifndef DIFF_SAY_DECLARED_H
#define DIFF_SAY_DECLARED_H
#include <jansson.h>
#include "read/declared.h"
#include "say/verdict.h"
#include "solve/assumed.h"
#include "solve/shards.h"

/* What judging a parameter found, as far as its declarations need it; bit sets of axes. */
typedef struct ad_facts {
  int observed;       /* 1: the sum was judged by addends that are not all zero */
  int held;           /* 1: the sum is, on all ranks, what `all` says */
  uint32_t known;     /* axes of which is known whether the sum has one rank's addends or those of all ranks */
  uint32_t all;       /* those over which it goes; on the other axes of `known` it has each rank's own addends */
  uint32_t identical; /* declared R: along them all addends are the same, bit for bit */
  uint32_t values;    /* along them replicas' values differ before the step */
  uint32_t contested; /* axes whose addends `likeness` compares */
  ad_likeness likeness;
  ad_shards shards;
} ad_facts;

/* Sets the fields that follow from the sum's parts and from the verdict, before any doubt. `list`: the judged parts. */
void ad_facts_of_sum(const ad_parts *parts, const ad_judged *list, const ad_verdict *verdict, ad_facts *facts);
/* Compares addends along those axes whose declared types the other fields do not confirm. */
ad_status ad_facts_compare(const ad_dump *dump, const ad_dump_param *param, ad_facts *facts) AD_CHECKED;

/* Changes the verdict `right` if what is declared sharded are replicas: then the same work was done on all ranks, or their
 * sum is wanted. */
void ad_declared_doubt(const ad_parts *parts, const ad_facts *facts, ad_verdict *verdict);
/* Prints to the verdict, of identical addends, what is declared of them, if R is. */
void ad_declared_doubt_identical(const ad_parts *parts, const ad_facts *facts, ad_verdict *verdict);
/* Prints what is declared of `axes` and by whom, such as "says I on tp (spmd_types)", if the type of one of them is
 * declared; else prints `otherwise`. Returns buffer. */
const char *ad_declared_print(const ad_dump *dump, const ad_dump_param *param, uint32_t axes, const char *otherwise,
                              char *buffer, size_t size);
/* If sources declare different types of one of `axes`, prints which of them the sum is read by, such as "; types= says R on
 * tp, and spmd_types says I"; else "". Returns buffer. */
const char *ad_declared_print_against(const ad_dump *dump, const ad_dump_param *param, uint32_t axes, char *buffer,
                                      size_t size);

/* Returns a list with an entry for each axis, and each dtype, that a source declares of the parameter; NULL if nothing is
 * declared. */
json_t *ad_declared_rows(const ad_dump *dump, const ad_dump_param *param, const ad_facts *facts);
/* Appends a message for each kind of declaration that does not hold, or that the sum does not follow. Parameters of which
 * the same is to be said share a message. `rows`: entries of all parameters. */
void ad_declared_report(const json_t *rows, json_t *messages);

#endif
