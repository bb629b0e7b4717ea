/* Random components, a baseline for the learned ones: equally many, at the same sites. V is drawn at random. U
 * minimises ||W - V U||, so all random components together are as good as their V permits. */
#ifndef PROGRAM_RANDOM_COMPONENTS_H
#define PROGRAM_RANDOM_COMPONENTS_H
#include "decompose/target.h"

typedef struct ad_random_components {
  ad_array *v, *u; /* one for each site, replicated, in the tape's dtype */
  double **sizes;  /* sizes[site][c] is ||U_c|| of component c */
  size_t site_count;
  uint64_t seed;
  double *order; /* scratch memory for one site's components */
} ad_random_components;

/* Creates the components, identical on every rank of the mesh. The target must be open. */
ad_status ad_random_components_create(ad_random_components *out, const ad_target *target, const ad_mesh *mesh,
                                      ad_dtype dtype, uint64_t seed) AD_CHECKED;
void ad_random_components_release(ad_random_components *components);

/* Set row `row` of a site's mask [batch, seq, components] to 1 for `count` components and to 0 for the others.
 * keep_largest chooses the components with the largest effect |h_c| ||U_c||, where h = x V. keep_any draws the
 * components, for one position of the text always the same ones. */
void ad_random_components_keep_largest(const ad_random_components *components, size_t site, const ad_array *h,
                                       size_t row, size_t count, ad_array *mask);
void ad_random_components_keep_any(const ad_random_components *components, size_t site, size_t place, size_t row,
                                   size_t count, ad_array *mask);

#endif
