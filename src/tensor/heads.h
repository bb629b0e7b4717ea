/* Activations whose last dimension is heads * head_dim: what rotary and attention share. */
#ifndef TENSOR_HEADS_H
#define TENSOR_HEADS_H
#include "tensor/operation.h"

/* Local sizes of [batch, seq, heads * head_dim]. */
typedef struct head_sizes {
  size_t batch, seq, width, heads, head_dim;
} head_sizes;
head_sizes ad_head_sizes(const ad_tensor *out, int64_t head_dim);
/* AD_INVALID unless head_dim divides the last dimension of the result, or of `array`, and its cuts fall between heads. */
ad_status ad_check_heads(const ad_tape *tape, const ad_tensor *out, int64_t head_dim) AD_CHECKED;
ad_status ad_check_heads_of(const ad_tape *tape, const ad_tensor *out, const ad_array *array,
                            int64_t head_dim) AD_CHECKED;

#endif
