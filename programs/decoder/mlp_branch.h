/* The second branch of a dense decoder's blocks: an MLP. */
#ifndef DECODER_MLP_BRANCH_H
#define DECODER_MLP_BRANCH_H
#include "decoder/decoder.h"

typedef struct ad_mlp_branch {
  int64_t d_hidden;
  ad_mlp_layer *layers; /* one for each block; the owner of the branch releases them */
} ad_mlp_branch;

extern const ad_branch ad_mlp_branch_functions; /* the functions expect an ad_mlp_branch as `own` */

#endif
