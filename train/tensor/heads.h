/* Sizes and positions of activations [batch, seq, heads * head_dim], for rotary positions, attention and head norms. */
#ifndef TENSOR_HEADS_H
#define TENSOR_HEADS_H
#include "tensor/operation.h"

/* Local sizes of an array [batch, seq, heads * head_dim]. */
typedef struct head_sizes {
  size_t batch, seq, width, heads, head_dim;
} head_sizes;
head_sizes ad_head_sizes(const ad_tensor *out, int64_t head_dim);
/* Checks that head_dim divides the last dimension of the result, or of `array`, and that no head is split between
 * two shards; else AD_INVALID. */
ad_status ad_check_heads(const ad_tape *tape, const ad_tensor *out, int64_t head_dim) AD_CHECKED;
ad_status ad_check_heads_of(const ad_tape *tape, const ad_tensor *out, const ad_array *array,
                            int64_t head_dim) AD_CHECKED;

/* The positions of the sequence in a rank's part of [batch, seq, ...], as spans in memory order. */
enum { POSITION_SPANS = 16 };
typedef struct positions {
  ad_span span[POSITION_SPANS];
  int span_count;
  size_t count; /* number of positions in all spans */
} positions;
/* Finds the positions. AD_INVALID if they form more than POSITION_SPANS spans. */
ad_status ad_find_positions(const ad_tensor *out, const ad_array *array, int64_t rank, positions *to) AD_CHECKED;
/* Like ad_find_positions, for this rank, with the tape's starting position (ad_tape_continue) added. */
ad_status ad_find_positions_on(const ad_tape *tape, const ad_tensor *out, const ad_array *array,
                               positions *to) AD_CHECKED;

#endif
