/* Adversarial sources: numbers in [0, 1] that are kept from step to step, and that ascent steps change to make the
 * adversary's loss large. Sources of one sample are on the rank with that sample and are never reduced. Sources that
 * the samples of a microbatch share are the same on every rank, as is their gradient, the sum over all samples. */
#ifndef PROGRAM_SOURCES_H
#define PROGRAM_SOURCES_H
#include "decompose/model.h"
#include "addend/layers.h"

/* One array of sources for one microbatch: the indices of its states in the module. */
typedef struct ad_source {
  size_t value, first, second; /* first and second: the moments of Adam, not used with the rule "sign" */
} ad_source;

/* Memory that is kept between microbatches. On backend dry it is not allocated; only its bytes are counted. */
typedef struct ad_kept_memory {
  char *at;
  size_t bytes;
} ad_kept_memory;

typedef struct ad_sources {
  const ad_decompose_options *options;
  size_t per_microbatch, microbatches;
  ad_source *list;        /* per_microbatch entries for microbatch 0, then for microbatch 1, and so on */
  ad_kept_memory *memory; /* one for each of a microbatch's sources: its values in the tape's dtype */
  /* for each entry of `list`: the leaf tensor on the phase's tape, from the forward pass to the end of backward */
  ad_tensor **leaves;
  size_t steps_state; /* index of the state [1] that counts ascent steps */
} ad_sources;

/* Declares the states: for each microbatch, one array of each shape in `shapes`. The options decide whether an array
 * has values for each sample or values that all samples share. */
ad_status ad_sources_create(ad_sources *sources, const ad_decompose_options *options, const ad_shape *shapes,
                            size_t count, const ad_program_setting *setting, ad_declarations *to) AD_CHECKED;
void ad_sources_release(ad_sources *sources);
size_t ad_sources_bytes(const ad_sources *sources); /* bytes of memory kept in addition to the states */
/* Enters source i of the phase's microbatch on tape t and returns its value for each sample of `tokens`. Sets *leaf to
 * the value that ascent steps change. */
ad_tensor *ad_sources_input(ad_sources *sources, ad_phase_run *at, ad_tape *t, size_t i, ad_tensor *tokens,
                            ad_tensor **leaf);
/* Returns the leaf tensors of the sources of the phase's microbatch, on the phase's own tape. */
ad_tensor **ad_sources_leaves(const ad_sources *sources, const ad_phase_run *at);
/* Takes one ascent step of the sources of the phase's microbatch. The gradient of source i is gradients[i] times
 * `factor`. */
ad_status ad_sources_climb(ad_sources *sources, ad_phase_run *at, const ad_array *const *gradients,
                           double factor) AD_CHECKED;

/* The arrays that an ascent step changes: the values, and the moments of Adam (NULL with the rule "sign"). */
typedef struct ad_heights {
  double *value, *first, *second;
} ad_heights;
/* Takes one ascent step, element by element. `steps` is the number of ascent steps so far, including this one. */
void ad_ascend(const ad_decompose_options *options, const ad_heights *at, const ad_array *gradient, double factor,
               double steps);
/* Adds to slack[numel] each element's possible error after an ascent step, if this gradient and all earlier ones may be
 * off by `error`. Call it after ad_ascend. */
void ad_ascent_slack(const ad_decompose_options *options, const ad_heights *at, const ad_array *gradient, double factor,
                     double steps, double error, double *slack);

#endif
