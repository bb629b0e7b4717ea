/* Kinds of ranks: ranks of one kind hold parts of the same sizes of every value. They are found from how values are
 * sharded, without visiting each rank, so a world of 2^40 ranks costs no more than a world of a thousand. */
#ifndef PLAN_RANK_KINDS_H
#define PLAN_RANK_KINDS_H
#include "addend/layout.h"

/* A value that ranks hold parts of, and the facts about it that decide a rank's bytes. */
typedef struct ad_held {
  ad_shape shape;
  ad_layout layout;
  int is_written; /* checkpoints have it; the first of the ranks that hold the same part writes it */
  int is_shared;  /* ranks that hold the same part share one copy if all of them are on one node */
} ad_held;

/* A kind of rank. */
typedef struct ad_rank_kind {
  int64_t first, ranks; /* the first rank of this kind; the number of ranks */
  uint64_t key;
} ad_rank_kind;

typedef struct ad_kinds ad_kinds;
/* Finds the kinds of ranks in a world of `ranks` with `ranks_per_node` on a node, in the order of their first ranks.
 * Borrows the values and their meshes. AD_INVALID: there are too many kinds, or, with this node size and mesh, copies
 * would be shared on some nodes only. */
ad_status ad_kinds_find(const ad_held *values, size_t count, int64_t ranks, int64_t ranks_per_node,
                        ad_kinds **out) AD_CHECKED;
void ad_kinds_destroy(ad_kinds *kinds);
size_t ad_kinds_count(const ad_kinds *kinds);
const ad_rank_kind *ad_kinds_at(const ad_kinds *kinds, size_t index);

/* Returns a number that is the same for two ranks if and only if they are of one kind. */
uint64_t ad_rank_key(const ad_held *values, size_t count, int64_t rank, int64_t ranks_per_node);

/* The node whose ranks need most memory together. */
typedef struct ad_node_peak {
  int64_t node;
  int64_t peak;   /* bytes, at most INT64_MAX */
  int is_a_bound; /* 1: nodes end inside the mesh's axes, so `peak` is an upper bound that perhaps no node reaches */
} ad_node_peak;
/* peaks[i]: bytes of a rank of kind i. */
ad_status ad_kinds_node_peak(const ad_kinds *kinds, const size_t *peaks, ad_node_peak *out) AD_CHECKED;

#endif
