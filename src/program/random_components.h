/* Components at random, of the sizes of those that are learned: what these are to be better than. V is drawn; U is the
 * one with the least ||W - V U||, so that all of them together do as well as V allows. */
#ifndef PROGRAM_RANDOM_COMPONENTS_H
#define PROGRAM_RANDOM_COMPONENTS_H
#include "program/target.h"

typedef struct ad_random_components {
  ad_array *v, *u; /* of each site, replicated, in the dtype of the tape */
  size_t site_count;
} ad_random_components;

/* The same on every rank of the mesh. The target is open. */
ad_status ad_random_components_create(ad_random_components *out, const ad_target *target, const ad_mesh *mesh,
                                      ad_dtype dtype, uint64_t seed) AD_CHECKED;
void ad_random_components_release(ad_random_components *components);

#endif
