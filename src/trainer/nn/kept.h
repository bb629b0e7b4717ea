/* Attention that goes on: keys and values of the tokens before are kept, so that each new token is computed once. */
#ifndef NN_KEPT_H
#define NN_KEPT_H
#include "addend/layers.h"

/* Rows [1, count, kv_width] of keys or values, in the tape's dtype. Begins as zeros. */
typedef struct ad_kept_rows {
  char *data;
  size_t bytes, room; /* in use, and allocated */
  int64_t count;
} ad_kept_rows;

typedef struct ad_kept_keys {
  ad_kept_rows k, v;
} ad_kept_keys;
void ad_kept_keys_release(ad_kept_keys *kept);

/* Adds the rows of x behind those that are kept; all of them, as a constant. */
ad_tensor *ad_kept_rows_add(ad_tape *t, ad_kept_rows *rows, ad_tensor *x);

/* ad_attention_forward of the tokens [1, rows, d_model] that follow those whose keys are kept; theirs are added to
 * them. The tape continues at that position (ad_tape_continue). Nothing goes back through it: what is kept is constant.
 * On one rank. kept NULL: ad_attention_forward. */
ad_tensor *ad_attention_continue(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer, ad_tensor *x,
                                 ad_kept_keys *kept);

#endif
