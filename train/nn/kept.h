/* Keys and values of earlier tokens that attention keeps for later tokens (addend/layers.h). */
#ifndef NN_KEPT_H
#define NN_KEPT_H
#include "addend/layers.h"

/* Rows [1, count, kv_width] of keys or values, in the tape's dtype. A zero-initialised struct has no rows. */
typedef struct ad_kept_rows {
  char *data;
  size_t bytes, room; /* bytes: bytes in use; room: bytes allocated */
  int64_t count;
} ad_kept_rows;

struct ad_kept_keys {
  ad_kept_rows k, v;
};

AD_CHECKED ad_status ad_kept_keys_create(ad_kept_keys **out);
void ad_kept_keys_destroy(ad_kept_keys *kept); /* NULL allowed */
void ad_kept_keys_forget(ad_kept_keys *kept);  /* empties the cache for another sequence; keeps the memory */

/* Appends the rows of x and returns all kept rows as a constant. */
ad_tensor *ad_kept_rows_add(ad_tape *t, ad_kept_rows *rows, ad_tensor *x);

#endif
