/* Groups that are lists of ranks: their identities and lifetimes. All members of a list compute the same identity
 * without communicating: a hash of the ranks, combined with the number of earlier lists of the same ranks that this
 * rank has made. Members make their lists in the same order, so their identities agree. */
#ifndef COMM_RANKS_H
#define COMM_RANKS_H
#include "comm/backend.h"

/* How many lists whose ranks have the same hash this rank has made. An entry of an open-addressing hash table. */
typedef struct ad_list_count {
  uint64_t hash, times;  // times 0: the entry is free
} ad_list_count;

/* The lists of one comm. */
typedef struct ad_lists {
  const ad_backend *backend;
  void *world;
  int64_t rank, size;
  ad_ranks *first;
  ad_list_count *counts;  // owned
  size_t places, used;    // number of entries of the table `counts`; number of used entries
} ad_lists;

/* Makes a list of ranks. On an error (AD_INVALID, AD_MEMORY) no list is made. */
ad_status ad_lists_add(ad_lists *lists, const int64_t *ranks, int64_t count, const char *site,
                       ad_ranks **out) AD_CHECKED;
/* Detaches all lists from the comm and its backend, which is about to be closed. Callers still own the lists that
 * they have not released; releasing such a list later only frees its memory. */
void ad_lists_close(ad_lists *lists);

/* Returns the group shape of the list; the shape borrows the list. */
ad_group_shape ad_ranks_shape(const ad_ranks *ranks);
int ad_ranks_are_of(const ad_ranks *ranks, const ad_lists *lists);
uint32_t ad_ranks_own(const ad_ranks *ranks);  // this rank's index in the list
/* ad_ranks_hold marks the beginning of a call on the list, ad_ranks_let_go its end. If the caller releases the list
 * during a call, the list is freed when its last call has ended. */
void ad_ranks_hold(ad_ranks *ranks);
void ad_ranks_let_go(ad_ranks *ranks);

#endif
