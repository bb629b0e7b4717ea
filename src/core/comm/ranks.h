/* Lists of ranks: their identities, which all members give alike without asking each other, and how long they live. A
 * list's identity is the hash of its ranks, moved on by how many lists of the same ranks this rank made before; the
 * members make them in one order, so theirs are the same. */
#ifndef COMM_RANKS_H
#define COMM_RANKS_H
#include "comm/engine.h"

/* How often each list was made: an open hash table of a power of two. */
typedef struct ad_list_count {
  uint64_t hash, times;  // times 0: free
} ad_list_count;

/* The lists of one comm. */
typedef struct ad_lists {
  const ad_engine *engine;
  void *world;
  int64_t rank, size;
  ad_ranks *first;
  ad_list_count *counts;  // owned
  size_t places, used;
} ad_lists;

/* AD_INVALID, AD_MEMORY: nothing is made. */
ad_status ad_lists_add(ad_lists *lists, const int64_t *ranks, int64_t count, const char *site,
                       ad_ranks **out) AD_CHECKED;
/* The engine is gone: what the caller has not released is his to release, and does nothing more. */
void ad_lists_close(ad_lists *lists);

/* The group's shape, which borrows the list. */
ad_group_shape ad_ranks_shape(const ad_ranks *ranks);
int ad_ranks_are_of(const ad_ranks *ranks, const ad_lists *lists);
uint32_t ad_ranks_own(const ad_ranks *ranks);  // the index of this rank
/* A call on the list begins; it ends. A list that is released meanwhile lives until its last call has ended. */
void ad_ranks_hold(ad_ranks *ranks);
void ad_ranks_let_go(ad_ranks *ranks);

#endif
