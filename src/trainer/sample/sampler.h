/* A sampler, as whoever gives it its values sees it. */
#ifndef SAMPLE_SAMPLER_H
#define SAMPLE_SAMPLER_H
#include "addend/sample.h"
#include "addend/layers.h"
#include "sample/ends.h"
#include "sample/model.h"
#include "tensor/tape.h"

struct ad_sampler {
  ad_sampler_options options;
  ad_sample_model model;
  ad_recipe *recipe; /* released with the sampler; NULL: it is somebody else's */
  ad_ends ends;
  int are_bytes; /* its tokens */
  ad_tape *tape;
  ad_kept_keys **kept; /* of each block */
  int64_t read;        /* tokens of the sequence */
  double *logits;
};

/* Of the recipe's program, in one process; the values of model.arrays and model.states are the caller's to write. The
 * recipe is borrowed. AD_INVALID: its program is no decoder of text. */
ad_status ad_sampler_create(const ad_recipe *recipe, const ad_sampler_options *options, ad_sampler **out) AD_CHECKED;

#endif
