/* The notes that ranks of a run make for the check for bits (check/bits.h): hashes of arrays, and numbers. */
#ifndef CHECK_BITS_NOTES_H
#define CHECK_BITS_NOTES_H
#include <stddef.h>
#include "addend/comm.h"
#include "addend/status.h"
#include "kernels/nodes.h"

/* The kinds of notes, in the order in which they are compared: a difference in an earlier kind explains those in later
 * ones. */
typedef enum ad_bits_kind {
  AD_BITS_RAN,     /* a forward pass of one leaf */
  AD_BITS_SUM,     /* a leaf's own gradient, or the sum over a node of the tree, of one parameter */
  AD_BITS_LOSS,    /* a reported loss */
  AD_BITS_SQUARES, /* the sum of squares of one parameter's gradient */
  AD_BITS_NORM,    /* the norm of a norm group */
  AD_BITS_CLIP,    /* the factor by which a norm group is clipped */
  AD_BITS_VALUE,   /* a value, master or optimizer state of one parameter after the update */
  AD_BITS_STATE,   /* a state of the module after the step */
} ad_bits_kind;

typedef struct ad_bits_note {
  int64_t step;
  ad_bits_kind kind;
  ad_axes over, beyond; /* only for AD_BITS_SUM: as in ad_watched_sum (reduce/watch.h) */
  int64_t of;           /* index of the parameter, loss, norm group or state */
  int64_t part;         /* only for AD_BITS_VALUE: an ad_param_part */
  ad_node node;         /* only for AD_BITS_RAN and AD_BITS_SUM: the leaf, or the node of the tree over leaves */
  int64_t shard;        /* 1 + this rank's position on dp_shard */
  /* 0: a note of the elements that this rank has; else one that only the reference makes, of the elements that a rank
   * of the run with this `shard` has if dp_shard shards the array */
  int64_t of_shard;
  int64_t numel; /* number of elements that this rank has; 1 for a number */
  uint64_t hash; /* hash of these elements; the hash of a whole array is the sum of its shards' hashes (mod 2^64) */
} ad_bits_note;

/* How many notes a rank has made. Notes are in memory that processes share, so they contain no pointers. */
typedef struct ad_bits_rank {
  int64_t place; /* the rank's index within its data-parallel position, along the other axes (tp, cp, ep) */
  size_t count;
} ad_bits_rank;
typedef struct ad_bits_notes {
  size_t bytes;
  int64_t ranks;
  size_t room; /* number of notes for which each rank has memory */
  ad_bits_rank rank[];
} ad_bits_notes;
ad_status ad_bits_notes_create(int64_t ranks, size_t room, ad_bits_notes **out) AD_CHECKED;
void ad_bits_notes_destroy(ad_bits_notes *notes);
/* Removes a rank's notes, and sets its `place`. */
void ad_bits_begin(ad_bits_notes *notes, int64_t rank, int64_t place);
/* Adds a note of this rank. Returns AD_MEMORY if the rank has no memory for one more. */
ad_status ad_bits_add(ad_bits_notes *notes, int64_t rank, const ad_bits_note *note) AD_CHECKED;

/* Sends the notes of every rank to rank 0, for ranks that share no memory. All ranks of the comm call it; those beyond
 * the last rank of the notes have none. */
ad_status ad_bits_gather(ad_comm *comm, ad_bits_notes *notes) AD_CHECKED;

/* The notes of all ranks, sorted by ad_bits_order. Among equal notes, results of collectives come after the others;
 * then by rank. */
typedef struct ad_bits_listed {
  ad_bits_note note;
  int64_t rank, place;
} ad_bits_listed;
typedef struct ad_bits_list {
  ad_bits_listed *list;
  size_t count;
} ad_bits_list;
ad_status ad_bits_list_create(const ad_bits_notes *notes, ad_bits_list *out) AD_CHECKED;
void ad_bits_list_release(ad_bits_list *list);
/* Returns 0 if both ad_bits_listed are of the same array or number at the same place; their ranks may differ. Otherwise
 * returns their order, as for qsort. */
int ad_bits_order(const void *a, const void *b);
/* Return the reference's note of the array or number of which `like` is a note, or of the shard of which `like` is one;
 * NULL if there is none. */
const ad_bits_listed *ad_bits_list_find(const ad_bits_list *list, const ad_bits_listed *like);
const ad_bits_listed *ad_bits_list_find_shard(const ad_bits_list *list, const ad_bits_listed *like);

#endif
