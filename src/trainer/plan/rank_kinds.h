/* Kinds of ranks: those that hold parts of the same sizes of every value. Found from the cuts, without a visit to each
 * rank, so that a world of 2^40 ranks costs as much as one of a thousand. */
#ifndef PLAN_RANK_KINDS_H
#define PLAN_RANK_KINDS_H
#include "addend/layout.h"

/* Something that ranks hold parts of, and what else of it decides a rank's bytes. */
typedef struct ad_held {
  ad_shape shape;
  ad_layout layout;
  int is_written; /* into checkpoints, by the first of the ranks that hold the same */
  int is_shared;  /* ranks that hold the same have one copy where all of them are on one node */
} ad_held;

typedef struct ad_rank_kind {
  int64_t first, ranks; /* the first of them; how many there are */
  uint64_t key;
} ad_rank_kind;

typedef struct ad_kinds ad_kinds;
/* The kinds of ranks in a world of `ranks`, with so many on a node, in the order of their first. Borrows the meshes of
 * the values. AD_INVALID where there are more than can be looked at, and where node and mesh fit so badly that copies
 * are shared on some nodes only. */
ad_status ad_kinds_find(const ad_held *values, size_t count, int64_t ranks, int64_t ranks_per_node,
                        ad_kinds **out) AD_CHECKED;
void ad_kinds_destroy(ad_kinds *kinds);
size_t ad_kinds_count(const ad_kinds *kinds);
const ad_rank_kind *ad_kinds_at(const ad_kinds *kinds, size_t index);

/* What tells ranks apart, of one rank. Two of one kind have the same. */
uint64_t ad_rank_key(const ad_held *values, size_t count, int64_t rank, int64_t ranks_per_node);

/* The node whose ranks need most together. */
typedef struct ad_node_peak {
  int64_t node;
  int64_t peak;   /* at most INT64_MAX */
  int is_a_bound; /* nodes end inside the mesh's axes: no node needs more, but perhaps none needs as much */
} ad_node_peak;
/* peaks[i]: of a rank of kind i. */
ad_status ad_kinds_node_peak(const ad_kinds *kinds, const size_t *peaks, ad_node_peak *out) AD_CHECKED;

#endif
