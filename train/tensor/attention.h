/* Attention of the rows of q against parts of the keys and values. The parts (first a rank's own, then those that
 * arrive on the ring) may come in any order: each row's running maximum and running sum carry the softmax from part to
 * part (Milakov and Gimelshein 2018). op_attention.c supplies the parts.
 *
 * q, k, v and the operands of products have the value's dtype. Scores, softmax and all sums (the result and the
 * gradients) have the wide dtype, R. So in bf16 only two intermediate values are rounded: the probabilities and the
 * scores' gradients. A row's sum is kept apart from its maximum: the logarithm of the sum, added to the maximum, would
 * be rounded at the size of the scores.
 *
 * Sums have the layout of the value that they belong to. Only for a narrow dtype are they laid out head after head:
 * [batch, heads, rows, head_dim]. */
#ifndef TENSOR_ATTENTION_H
#define TENSOR_ATTENTION_H
#include "tensor/heads.h"

/* The sizes of an attention operation on this rank. */
typedef struct attention_sizes {
  size_t batch, head_dim;
  size_t heads, width;       /* number of heads, and elements of a row, of q and the result */
  size_t kv_heads, kv_width; /* number of kv heads, and elements of a row, of k and v */
  /* index of this rank's first head among those of all ranks: first_head of q, first_kv_head of k and v */
  size_t first_head, first_kv_head;
  size_t sharing; /* heads of q that share one head of k and v */
  positions rows; /* positions of q's rows */
  /* every row sees the first `visible` positions of k; 0: causal, each row sees the positions up to its own */
  size_t visible;
} attention_sizes;

/* Some of the keys and values, [batch, columns.count, kv_width]: all of them or, on a ring, those of one rank. */
typedef struct attention_part {
  const void *k, *v;
  positions columns;
} attention_part;

/* The running maximum and sum of each row of each head on this rank, [batch, heads, rows]. */
typedef struct row_state {
  void *maximum, *sum;
} row_state;

/* A forward pass: call ad_attention_begin, then ad_attention_add for each part of the keys and values, then
 * ad_attention_end. */
typedef struct attention_forward {
  attention_sizes size;
  ad_dtype dtype;
  const void *q;
  /* sums in the wide dtype; until ad_attention_end divides it, each row still has the row's sum of exponentials as a
   * factor */
  void *out;
  row_state state;
  void *scratch; /* memory of ad_attention_scratch_bytes bytes */
} attention_forward;
void ad_attention_begin(const attention_forward *at);
void ad_attention_add(const attention_forward *at, const attention_part *part);
void ad_attention_end(const attention_forward *at);

/* A backward pass: ad_attention_back for each part. All gradients are sums in the wide dtype (R); each call adds to
 * them. d_q NULL: the gradient of q is not wanted. */
typedef struct attention_backward {
  attention_sizes size;
  ad_dtype dtype;
  const void *q, *out, *d_out;
  row_state state;
  void *d_q;
  void *scratch; /* memory of ad_attention_scratch_bytes bytes */
} attention_backward;
/* d_k and d_v have the shape of the part's k and v; either may be NULL. */
void ad_attention_back(const attention_backward *at, const attention_part *part, void *d_k, void *d_v);

/* Rounds sums to the dtype and writes them to rows [batch, seq, width] or, with `adds`, adds them to the rows. */
void ad_attention_round(void *to, ad_dtype dtype, const void *sums, head_sizes of, int adds);

/* Returns the bytes of scratch memory for at most `rows` rows of q and `columns` columns of a part: a block's scores
 * and, in backward, their gradients. A narrow dtype also needs scores and gradients rounded, as operands of products,
 * and a copy of one head of every array that is read. */
size_t ad_attention_scratch_bytes(ad_dtype dtype, size_t rows, size_t columns, size_t head_dim);

#endif
