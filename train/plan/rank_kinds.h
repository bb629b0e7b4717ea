/* Kinds of ranks: ranks of one kind have parts of the same sizes of every value. The kinds follow from how values are
 * sharded; ranks are not visited one by one, so a world of 2^40 ranks costs no more than a world of a thousand. */
#ifndef PLAN_RANK_KINDS_H
#define PLAN_RANK_KINDS_H
#include "addend/layout.h"

/* A value that is distributed over the ranks, with what decides how many of its bytes each rank holds. */
typedef struct ad_held {
  ad_shape shape;
  ad_layout layout;
  int is_written; /* 1: the value is in checkpoints; the first of the ranks with the same part writes it */
  int is_shared;  /* 1: ranks with the same part share one copy if they all are on one node */
} ad_held;

/* Ranks that have parts of the same sizes of every value. */
typedef struct ad_rank_kind {
  int64_t first, ranks; /* the first of these ranks, and their number */
  uint64_t key;
} ad_rank_kind;

typedef struct ad_kinds ad_kinds;
/* Finds the kinds of ranks in a world of `ranks` ranks with `ranks_per_node` on each node, sorted by their first ranks.
 * Borrows the values and their meshes. Returns AD_INVALID if there are too many kinds, or if copies would be shared on
 * some nodes only. */
ad_status ad_kinds_find(const ad_held *values, size_t count, int64_t ranks, int64_t ranks_per_node,
                        ad_kinds **out) AD_CHECKED;
void ad_kinds_destroy(ad_kinds *kinds);
size_t ad_kinds_count(const ad_kinds *kinds);
const ad_rank_kind *ad_kinds_at(const ad_kinds *kinds, size_t index);

/* Returns a key that is the same for two ranks if and only if they are of one kind (have parts of the same sizes of
 * every value). */
uint64_t ad_rank_key(const ad_held *values, size_t count, int64_t rank, int64_t ranks_per_node);

/* The node whose ranks need most memory together. */
typedef struct ad_node_peak {
  int64_t node;
  int64_t peak;   /* bytes, INT64_MAX if there are more */
  int is_a_bound; /* 1: nodes end inside an axis of the mesh, so `peak` is an upper bound that perhaps no node
                   * reaches */
} ad_node_peak;
/* Finds the node whose ranks need most memory; peaks[i] is the bytes of a rank of kind i. */
ad_status ad_kinds_node_peak(const ad_kinds *kinds, const size_t *peaks, ad_node_peak *out) AD_CHECKED;

#endif
