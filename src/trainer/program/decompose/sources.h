/* Adversarial sources: numbers in [0, 1] that stay from step to step and climb what the adversary wants large. Those of
 * a sample belong to the rank that has it, and nothing about them is ever reduced; those that the samples of a
 * microbatch share are the same on every rank, and so is their gradient: the sum over all samples. */
#ifndef PROGRAM_SOURCES_H
#define PROGRAM_SOURCES_H
#include "program/decompose/model.h"
#include "addend/layers.h"

/* One array of them, of one microbatch: numbers of states of its module. */
typedef struct ad_source {
  size_t value, first, second; /* the moments: of Adam alone */
} ad_source;

/* Kept from one microbatch to the next; engine dry only counts the bytes. */
typedef struct ad_kept_memory {
  char *at;
  size_t bytes;
} ad_kept_memory;

typedef struct ad_sources {
  const ad_decompose_options *options;
  size_t per_microbatch, microbatches;
  ad_source *list;        /* microbatch after microbatch */
  ad_kept_memory *memory; /* of each of a microbatch: its values in the tape's dtype */
  ad_tensor **leaves; /* of each of the list: on the phase's tape, from its forward pass to the end of its backward */
  size_t steps_state; /* the number of ascent steps taken, [1] */
} ad_sources;

/* Declares the states: of each microbatch array number i of `shapes`, for each sample or for all, as options say. */
ad_status ad_sources_create(ad_sources *sources, const ad_decompose_options *options, const ad_shape *shapes,
                            size_t count, const ad_program_setting *setting, ad_declarations *to) AD_CHECKED;
void ad_sources_release(ad_sources *sources);
size_t ad_sources_bytes(const ad_sources *sources); /* of what is kept besides the states */
/* Source number i of the phase's microbatch on tape t, for each sample of its tokens. *leaf: what climbs. */
ad_tensor *ad_sources_input(ad_sources *sources, ad_phase_run *at, ad_tape *t, size_t i, ad_tensor *tokens,
                            ad_tensor **leaf);
/* Those of the phase's microbatch on the phase's own tape. */
ad_tensor **ad_sources_leaves(const ad_sources *sources, const ad_phase_run *at);
/* One step up: gradient i times `factor` is that of source i. */
ad_status ad_sources_climb(ad_sources *sources, ad_phase_run *at, const ad_array *const *gradients,
                           double factor) AD_CHECKED;

/* Where sources stand that climb, with the moments of Adam. */
typedef struct ad_heights {
  double *value, *first, *second;
} ad_heights;
/* The step itself, element by element: `steps` with this one. */
void ad_ascend(const ad_decompose_options *options, const ad_heights *at, const ad_array *gradient, double factor,
               double steps);
/* After it: what each element may be off by if its gradients, this one and all earlier ones, may be off by `error`;
 * added to slack[numel]. */
void ad_ascent_slack(const ad_decompose_options *options, const ad_heights *at, const ad_array *gradient, double factor,
                     double steps, double error, double *slack);

#endif
