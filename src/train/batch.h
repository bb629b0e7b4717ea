/* A rank's share of one step's batch: its rows of every microbatch, read at once so that the step's tokens can be
 * counted before the first of them is used (law 5). */
#ifndef TRAIN_BATCH_H
#define TRAIN_BATCH_H
#include "addend/array.h"
#include "addend/data.h"
#include "addend/recipe.h"

typedef struct ad_microbatch {
  ad_span rows;             /* of the step's global batch */
  ad_array tokens, targets; /* i32 [batch, seq]; parts may be empty */
  int64_t counted;          /* targets of this rank that count */
} ad_microbatch;

typedef struct ad_batch {
  ad_batch_options options;
  ad_microbatch *microbatches;
  size_t count;
  int32_t *memory;
  ad_axes cut_axes; /* on which the microbatches' counts are addends */
  int shifted;      /* sabotage: this rank is the one whose slice shifts */
} ad_batch;

ad_status ad_batch_create(const ad_comm *comm, const ad_layout *layout, const ad_recipe *recipe,
                          ad_batch *out) AD_CHECKED;
void ad_batch_destroy(ad_batch *batch);
void ad_batch_read(ad_batch *batch, const ad_text_data *text, int64_t step, int held_out);
int64_t ad_batch_counted(const ad_batch *batch); /* of all microbatches of this rank */

#endif
