/* Keys and values that attention keeps (addend/layers.h), as rows that grow. */
#ifndef NN_KEPT_H
#define NN_KEPT_H
#include "addend/layers.h"

/* Rows [1, count, kv_width] of keys or values, in the tape's dtype. Begins as zeros. */
typedef struct ad_kept_rows {
  char *data;
  size_t bytes, room; /* in use, and allocated */
  int64_t count;
} ad_kept_rows;

struct ad_kept_keys {
  ad_kept_rows k, v;
};

/* Adds the rows of x behind those that are kept; all of them, as a constant. */
ad_tensor *ad_kept_rows_add(ad_tape *t, ad_kept_rows *rows, ad_tensor *x);

#endif
