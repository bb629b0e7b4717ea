/* Components at random, of the sizes of those that are learned: what these are to be better than. V is drawn; U is the
 * one with the least ||W - V U||, so that all of them together do as well as V allows. */
#ifndef PROGRAM_RANDOM_COMPONENTS_H
#define PROGRAM_RANDOM_COMPONENTS_H
#include "program/decompose/target.h"

typedef struct ad_random_components {
  ad_array *v, *u; /* of each site, replicated, in the dtype of the tape */
  double **sizes;  /* of each site: ||U_c|| of its components */
  size_t site_count;
  uint64_t seed;
  double *order; /* room for the numbers of one site's components */
} ad_random_components;

/* The same on every rank of the mesh. The target is open. */
ad_status ad_random_components_create(ad_random_components *out, const ad_target *target, const ad_mesh *mesh,
                                      ad_dtype dtype, uint64_t seed) AD_CHECKED;
void ad_random_components_release(ad_random_components *components);

/* Row number `row` of a site's mask [batch, seq, components]: 1 at `count` components, 0 at the others. Those that do
 * most there, |x V_c| ||U_c||, with h = x V; or any, drawn for the place in the text. */
void ad_random_components_keep_largest(const ad_random_components *components, size_t site, const ad_array *h,
                                       size_t row, size_t count, ad_array *mask);
void ad_random_components_keep_any(const ad_random_components *components, size_t site, size_t place, size_t row,
                                   size_t count, ad_array *mask);

#endif
