/* Parameters as layers declare them: name, shape, layout and initial values. Memory, storage and reductions are made
 * from that. */
#ifndef ADDEND_PARAMETER_H
#define ADDEND_PARAMETER_H
#include "addend/array.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* What a model declares of a parameter. Initial values: normal with this deviation around this mean, keyed by (seed,
 * name, global element index). */
typedef struct ad_param_declaration {
  char name[96];
  ad_shape shape;
  ad_layout layout; /* compute */
  double mean, deviation;
  int decays; /* weight decay applies */
  int unit;   /* parameters of one number are gathered together: a layer; ascending in the order of the forward pass */
} ad_param_declaration;

/* Fills this rank's part of the value. */
AD_API AD_CHECKED ad_status ad_param_initialise(const ad_param_declaration *declaration, uint64_t seed, int64_t rank,
                                                ad_array *value);

#if defined(__cplusplus)
}
#endif
#endif
