/* Activations [batch, seq, heads * head_dim]: what rotary, attention and the norm of heads share. */
#ifndef TENSOR_HEADS_H
#define TENSOR_HEADS_H
#include "tensor/operation.h"

/* Local sizes of [batch, seq, heads * head_dim]. */
typedef struct head_sizes {
  size_t batch, seq, width, heads, head_dim;
} head_sizes;
head_sizes ad_head_sizes(const ad_tensor *out, int64_t head_dim);
/* AD_INVALID unless head_dim divides the last dimension of the result, or of `array`, and its cuts fall between heads.
 */
ad_status ad_check_heads(const ad_tape *tape, const ad_tensor *out, int64_t head_dim) AD_CHECKED;
ad_status ad_check_heads_of(const ad_tape *tape, const ad_tensor *out, const ad_array *array,
                            int64_t head_dim) AD_CHECKED;

/* Which positions of the sequence stand, in memory one after another, in a rank's part of [batch, seq, ...]. */
enum { POSITION_SPANS = 16 };
typedef struct positions {
  ad_span span[POSITION_SPANS];
  int span_count;
  size_t count; /* of all spans */
} positions;
/* AD_INVALID if they are more runs than that. */
ad_status ad_find_positions(const ad_tensor *out, const ad_array *array, int64_t rank, positions *to) AD_CHECKED;
/* The same of what stands on this tape: with the position at which its sequences begin. */
ad_status ad_find_positions_on(const ad_tape *tape, const ad_tensor *out, const ad_array *array,
                               positions *to) AD_CHECKED;

#endif
