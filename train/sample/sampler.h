/* The private part of a sampler, for code that writes its parameters' values. */
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
  ad_recipe *recipe; /* released with the sampler; NULL if the sampler does not own its recipe */
  ad_ends ends;
  int are_bytes; /* 1: tokens are bytes */
  ad_tape *tape;
  int64_t vocabulary;
  ad_tensor **params; /* constants of the present forward pass, one for each parameter */
  ad_array **states;
  ad_kept_keys **kept;
  size_t kept_count;
  int64_t read;   /* number of tokens of the sequence that were read so far */
  int64_t window; /* the most tokens that may be read, as in ad_recipe; 0: no limit */
  double *logits;
};

/* Creates a sampler of the recipe's program, in one process. The caller writes the values of model.arrays and
 * model.states. Borrows the recipe. Returns AD_INVALID if the program is no decoder of text. */
ad_status ad_sampler_create(const ad_recipe *recipe, const ad_sampler_options *options, ad_sampler **out) AD_CHECKED;

#endif
