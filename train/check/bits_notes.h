/* What the ranks of a run note for the check for bits (check/bits.h): hashes of arrays, and numbers. */
#ifndef CHECK_BITS_NOTES_H
#define CHECK_BITS_NOTES_H
#include <stddef.h>
#include "addend/comm.h"
#include "addend/status.h"
#include "kernels/nodes.h"

/* The kinds are in the order in which they are compared, because what is wrong first explains the rest. */
typedef enum ad_bits_kind {
  AD_BITS_RAN,     /* a forward pass of one leaf */
  AD_BITS_SUM,     /* a leaf's own gradient, or the sum over a node of the tree, of one parameter */
  AD_BITS_LOSS,    /* a reported loss */
  AD_BITS_SQUARES, /* the sum of squares of one parameter's gradient */
  AD_BITS_NORM,    /* the norm of a norm group */
  AD_BITS_CLIP,    /* the factor by which a norm group is clipped */
  AD_BITS_VALUE,   /* a value, master or optimizer state of one parameter after the update */
} ad_bits_kind;

typedef struct ad_bits_note {
  int64_t step;
  ad_bits_kind kind;
  ad_axes over, beyond; /* AD_BITS_SUM: as in reduce/watch.h */
  int64_t of;           /* number of the parameter, loss or norm group */
  int64_t part;         /* AD_BITS_VALUE: an ad_param_part */
  ad_node node;         /* AD_BITS_RAN, AD_BITS_SUM: the leaves */
  int64_t numel;        /* how many elements this rank has; 1 for numbers */
  uint64_t hash;        /* of these elements: the hash of a whole array is the sum of its parts' (mod 2^64) */
} ad_bits_note;

/* The notes of a run, in memory that processes share, so without pointers. */
typedef struct ad_bits_rank {
  int64_t place; /* the rank's place beside the data-parallel axes (tp, cp, ep) */
  size_t count;
} ad_bits_rank;
typedef struct ad_bits_notes {
  size_t bytes;
  int64_t ranks;
  size_t room; /* notes for which each rank has memory */
  ad_bits_rank rank[];
} ad_bits_notes;
ad_status ad_bits_notes_create(int64_t ranks, size_t room, ad_bits_notes **out) AD_CHECKED;
void ad_bits_notes_destroy(ad_bits_notes *notes);
/* Forgets the notes of a rank, and says at which place it is. */
void ad_bits_begin(ad_bits_notes *notes, int64_t rank, int64_t place);
ad_status ad_bits_add(ad_bits_notes *notes, int64_t rank, const ad_bits_note *note) AD_CHECKED; /* AD_MEMORY: no room */

/* Brings what each rank noted in memory of its own to rank 0. All ranks of the comm call it. */
ad_status ad_bits_gather(ad_comm *comm, ad_bits_notes *notes) AD_CHECKED;

/* All notes in order: by step, kind, number of leaves, then by what they are of; then what a rank had before what a
 * collective left; last by rank. */
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
/* Returns 0 if two ad_bits_listed are of the same thing at the same place, on whatever ranks; else their order. */
int ad_bits_order(const void *a, const void *b);
const ad_bits_listed *ad_bits_list_find(const ad_bits_list *list, const ad_bits_listed *like); /* NULL: not there */

#endif
