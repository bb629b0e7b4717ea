/* What one parameter's sum taught about the next ones': counts that were found are tried first, and as fits take long
 * where addends are many, only so much work is put into them; what is left is held against what was found.
 * Parameters that are judged at the same time come here one after the other, in their order, so that each of them finds
 * what it would find if they were judged one by one: a call for a parameter waits until all before it have passed. */
#ifndef DIFF_KNOWN_H
#define DIFF_KNOWN_H
#include <pthread.h>
#include "diff/explain.h"

enum { AD_KNOWN_COUNTS = 16, AD_KNOWN_MANY = 64 }; /* of at most so many addends every part is fitted */
enum { AD_KNOWN_OTHERS = 16 };

typedef struct ad_known_counts {
  double *counts; /* [rank][microbatch]; NaN: no addend of the part's */
  int64_t holder;
  /* Where all but a few are one number: that, and the places of the others in `counts`. */
  int is_plain;
  double usual;
  size_t others[AD_KNOWN_OTHERS], other_count;
} ad_known_counts;

struct ad_known {
  const ad_dump *dump;
  ad_known_counts list[AD_KNOWN_COUNTS]; /* the last that held comes first */
  size_t count;
  int64_t *rank_at;    /* [place, row-major] */
  double fitted, weak; /* multiplications that fits took, of parts that fail and of those that hold */
  /* Whose turn it is; the fields above are of the parameter that has it. */
  pthread_mutex_t lock;
  pthread_cond_t moved;
  size_t turn;           /* the first parameter that has not passed */
  unsigned char *passed; /* by parameter */
};

ad_status ad_known_create(const ad_dump *dump, ad_known *out) AD_CHECKED;
void ad_known_destroy(ad_known *known);
/* Nothing is asked or added for this parameter any more; a second time is as the first. Each one must pass. */
void ad_known_pass(ad_known *known, const ad_dump_param *param);
typedef enum ad_known_fit { AD_KNOWN_FIT, AD_KNOWN_WEAK_FIT } ad_known_fit; /* of a part that fails, or that holds */
/* Whether there is work left for such a fit of n addends over `rows` elements, which is counted then. */
int ad_known_affords(ad_known *known, const ad_dump_param *param, ad_known_fit fit, size_t n, size_t rows);
/* Explains a part that has many addends by counts that were found: the same ones, or, as each rank's sum may have its
 * own, those of the same places beside its holder. */
ad_status ad_known_try(ad_known *known, const ad_parts *parts, ad_judged *judged) AD_CHECKED;
ad_status ad_known_add(ad_known *known, const ad_parts *parts, const ad_judged *judged) AD_CHECKED;

#endif
