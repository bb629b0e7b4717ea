/* Attention of the rows of q against some of the keys and values: those that are at hand. Parts of the keys come
 * one after another (a rank's own, then what arrives on the ring), in any order; the rows' running maximum and running
 * sum carry the softmax from part to part (Milakov and Gimelshein 2018). Who brings parts is in op_attention.c.
 *
 * q, k, v and what products read are of the dtype; scores, the softmax and all sums (the result and the gradients) are
 * of its wide one, R. So with bf16 only what a product reads is rounded: probabilities and the scores' gradients. The
 * sum of a row is that of its exponentials before, and kept apart from its maximum: the logarithm of the one added to
 * the other would be rounded at the size of the scores.
 *
 * Sums lie as the values do that they are of; but where the dtype is not its own wide one head after head, [batch,
 * heads, rows, head_dim]. */
#ifndef TENSOR_ATTENTION_H
#define TENSOR_ATTENTION_H
#include "tensor/heads.h"

/* What an attention is on this rank. */
typedef struct attention_sizes {
  size_t batch, head_dim;
  size_t heads, width;              /* of q and the result, in their rows */
  size_t kv_heads, kv_width;        /* of k and v */
  size_t first_head, first_kv_head; /* among those of all ranks */
  size_t sharing;                   /* heads of q that share a head of k and v */
  positions rows;                   /* of q */
  size_t visible;                   /* first positions of k that every row sees; 0: those up to its own, causal */
} attention_sizes;

/* Keys and values that are at hand, [batch, columns.count, kv_width]. */
typedef struct attention_part {
  const void *k, *v;
  positions columns;
} attention_part;

/* Rows in use, of every head of this rank: a maximum and a sum each, R [batch, heads, rows]. */
typedef struct row_state {
  void *maximum, *sum;
} row_state;

typedef struct attention_forward {
  attention_sizes size;
  ad_dtype dtype;
  const void *q;
  void *out; /* R, sums; between parts: times the row's sum */
  row_state state;
  void *scratch; /* ad_attention_scratch_bytes */
} attention_forward;
void ad_attention_begin(const attention_forward *at);
void ad_attention_add(const attention_forward *at, const attention_part *part);
void ad_attention_end(const attention_forward *at);

/* All gradients are R, sums, and added to. d_q NULL: it is not wanted. */
typedef struct attention_backward {
  attention_sizes size;
  ad_dtype dtype;
  const void *q, *out, *d_out;
  row_state state;
  void *d_q;
  void *scratch; /* as forward */
} attention_backward;
/* d_k, d_v shaped as the part's k and v; either may be NULL. */
void ad_attention_back(const attention_backward *at, const attention_part *part, void *d_k, void *d_v);

/* Puts sums, rounded to the dtype, into rows, [batch, seq, width], or adds them to what is there. */
void ad_attention_round(void *to, ad_dtype dtype, const void *sums, head_sizes of, int adds);

/* For up to so many rows of q and columns of a part: scores of a block and, in backward, their gradients; where the
 * dtype is not its own wide one also both as the products read them, and one head of all that is read. */
size_t ad_attention_scratch_bytes(ad_dtype dtype, size_t rows, size_t columns, size_t head_dim);

#endif
