/* Adversarial sources: numbers in [0, 1] that are kept from step to step and climb, to make the adversary's loss
 * large. The sources of a sample belong to the rank with the sample and are never reduced. Sources shared by the
 * samples of a microbatch are the same on every rank; so is their gradient, the sum over all samples. */
#ifndef PROGRAM_SOURCES_H
#define PROGRAM_SOURCES_H
#include "decompose/model.h"
#include "addend/layers.h"

/* One array of sources for one microbatch, given by the numbers of its states in the module. */
typedef struct ad_source {
  size_t value, first, second; /* first and second moment; only for Adam */
} ad_source;

/* Memory kept between microbatches; on backend dry only its bytes are counted. */
typedef struct ad_kept_memory {
  char *at;
  size_t bytes;
} ad_kept_memory;

typedef struct ad_sources {
  const ad_decompose_options *options;
  size_t per_microbatch, microbatches;
  ad_source *list;        /* per_microbatch entries for each microbatch in turn */
  ad_kept_memory *memory; /* one for each source of a microbatch: its values in the tape's dtype */
  ad_tensor **leaves; /* one for each entry of the list: the leaf on the phase's tape, from the forward pass to the end
                       * of backward */
  size_t steps_state; /* number of the state that counts ascent steps, [1] */
} ad_sources;

/* Declares the states: for each microbatch one array of each of `shapes`. By the options, an array is for each
 * sample or for all samples. */
ad_status ad_sources_create(ad_sources *sources, const ad_decompose_options *options, const ad_shape *shapes,
                            size_t count, const ad_program_setting *setting, ad_declarations *to) AD_CHECKED;
void ad_sources_release(ad_sources *sources);
size_t ad_sources_bytes(const ad_sources *sources); /* bytes kept besides the states */
/* Source number i of the phase's microbatch on tape t, for each sample of `tokens`. *leaf: the value that climbs. */
ad_tensor *ad_sources_input(ad_sources *sources, ad_phase_run *at, ad_tape *t, size_t i, ad_tensor *tokens,
                            ad_tensor **leaf);
/* The leaves of the phase's microbatch on the phase's own tape. */
ad_tensor **ad_sources_leaves(const ad_sources *sources, const ad_phase_run *at);
/* Takes one ascent step; gradients[i] times `factor` is the gradient of source i. */
ad_status ad_sources_climb(ad_sources *sources, ad_phase_run *at, const ad_array *const *gradients,
                           double factor) AD_CHECKED;

/* The arrays that an ascent step changes: the values, and Adam's moments (NULL without Adam). */
typedef struct ad_heights {
  double *value, *first, *second;
} ad_heights;
/* Takes one ascent step, element by element. `steps`: the number of steps so far, including this one. */
void ad_ascend(const ad_decompose_options *options, const ad_heights *at, const ad_array *gradient, double factor,
               double steps);
/* Call it after the step. Adds to slack[numel] the possible error of each element, if this gradient and all earlier
 * ones may be off by `error`. */
void ad_ascent_slack(const ad_decompose_options *options, const ad_heights *at, const ad_array *gradient, double factor,
                     double steps, double error, double *slack);

#endif
