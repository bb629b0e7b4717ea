/* Makes lists of ranks, gives them identities and keeps them until they are no longer needed. Nothing is communicated
 * here. */
#include "comm/ranks.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>
#include "base/error.h"
#include "base/memory.h"

struct ad_ranks {
  ad_lists *lists;  // NULL: the comm was closed
  ad_ranks *next;
  uint64_t id;
  int64_t count;
  uint32_t own;    // this rank's index in `ranks`
  uint32_t calls;  // calls in flight
  int released;
  int64_t ranks[];
};

/* ---- giving lists of ranks their identities ---- */

// Returns the entry of the hash table `counts` for this hash, or the free entry that this hash should take.
static ad_list_count *count_of(const ad_lists *lists, uint64_t hash) {
  size_t i = hash % lists->places;
  while (lists->counts[i].times && lists->counts[i].hash != hash) i = (i + 1) % lists->places;
  return &lists->counts[i];
}

// Makes the table of counts larger, so that at most half of its entries are used.
static ad_status grow_counts(ad_lists *lists) {
  if (2 * (lists->used + 1) <= lists->places) return AD_OK;
  ad_lists grown = *lists;
  grown.places = lists->places ? 2 * lists->places : 32;
  AD_TRY(ad_new(grown.places, &grown.counts));
  for (size_t i = 0; i < lists->places; i++)
    if (lists->counts[i].times) *count_of(&grown, lists->counts[i].hash) = lists->counts[i];
  ad_release(lists->counts);
  *lists = grown;
  return AD_OK;
}

// Computes a list's identity (see ranks.h) and counts the list.
static ad_status name(ad_lists *lists, ad_ranks *ranks) {
  size_t bytes = (size_t)ranks->count * sizeof *ranks->ranks;
  uint64_t hash = XXH3_64bits(ranks->ranks, bytes);
  AD_TRY(grow_counts(lists));
  ad_list_count *count = count_of(lists, hash);
  lists->used += !count->times;
  count->hash = hash;
  // The number of lists is added to the hash, not used as its seed: with some seeds [0,1] and [1,0] have the same hash.
  ranks->id = hash + ++count->times * 0x9e3779b97f4a7c15ull;
  if (!ranks->id) ranks->id = 1;  // identity 0 means: no list
  return AD_OK;
}

/* ---- making a list of ranks ---- */

// Checks the ranks of a list and finds this rank's index in it.
static ad_status check_list(const ad_lists *lists, const int64_t *ranks, int64_t count, const char *site,
                            uint32_t *own) {
  int64_t found = -1;
  if (count < 1 || count > lists->size)
    return ad_fail(AD_INVALID,
                   "%s: the list of ranks has %" PRId64 " ranks, but must have 1 to %" PRId64
                   ", the number of ranks in the world",
                   site, count, lists->size);
  for (int64_t i = 0; i < count; i++) {
    if (ranks[i] < 0 || ranks[i] >= lists->size)
      return ad_fail(AD_INVALID,
                     "%s: the list of ranks contains rank %" PRId64 ", but the world has ranks 0 to %" PRId64
                     "; list only ranks of the world",
                     site, ranks[i], lists->size - 1);
    for (int64_t k = 0; k < i; k++)
      if (ranks[k] == ranks[i])
        return ad_fail(AD_INVALID, "%s: the list of ranks contains rank %" PRId64 " twice; list each rank once", site,
                       ranks[i]);
    if (ranks[i] == lists->rank) found = i;
  }
  if (found < 0)
    return ad_fail(AD_INVALID,
                   "%s: rank %" PRId64
                   " makes a list of ranks that does not contain that rank; make a list only on the ranks in it",
                   site, lists->rank);
  *own = (uint32_t)found;
  return AD_OK;
}

ad_status ad_lists_add(ad_lists *lists, const int64_t *ranks, int64_t count, const char *site, ad_ranks **out) {
  ad_ranks *made;
  uint32_t own = 0;
  AD_TRY(check_list(lists, ranks, count, site, &own));
  AD_TRY(ad_new_bytes(sizeof *made + (size_t)count * sizeof *ranks, 1, (void **)&made));
  made->lists = lists;
  made->count = count;
  made->own = own;
  memcpy(made->ranks, ranks, (size_t)count * sizeof *ranks);
  ad_status status = name(lists, made);
  if (status) {
    ad_release(made);
    return status;
  }
  made->next = lists->first;
  *out = lists->first = made;
  return AD_OK;
}

/* ---- releasing lists of ranks ---- */

// Frees a list that is released and has no calls in flight.
static void release_ended(ad_ranks *ranks) {
  ad_lists *lists = ranks->lists;
  if (ranks->calls || !ranks->released) return;
  if (lists) {
    ad_ranks **link = &lists->first;
    while (*link != ranks) link = &(*link)->next;
    *link = ranks->next;
    ad_group_shape shape = ad_ranks_shape(ranks);
    if (lists->backend->release) lists->backend->release(lists->world, &shape);
  }
  ad_release(ranks);
}

void ad_ranks_release(ad_ranks *ranks) {
  if (!ranks) return;
  ranks->released = 1;
  release_ended(ranks);
}

void ad_ranks_hold(ad_ranks *ranks) { ranks->calls++; }

void ad_ranks_let_go(ad_ranks *ranks) {
  ranks->calls--;
  release_ended(ranks);
}

void ad_lists_close(ad_lists *lists) {
  for (ad_ranks *ranks = lists->first, *next; ranks; ranks = next) {
    next = ranks->next;
    ranks->lists = NULL;
    ranks->calls = 0;
    release_ended(ranks);
  }
  ad_release(lists->counts);
}

/* ---- reading a list ---- */

ad_group_shape ad_ranks_shape(const ad_ranks *ranks) {
  ad_group_shape shape = {.base = ranks->ranks[0], .count = 1, .list = ranks->id, .ranks = ranks->ranks};
  shape.size[0] = ranks->count;
  return shape;
}

int ad_ranks_are_of(const ad_ranks *ranks, const ad_lists *lists) { return ranks->lists == lists; }
uint32_t ad_ranks_own(const ad_ranks *ranks) { return ranks->own; }
int64_t ad_ranks_count(const ad_ranks *ranks) { return ranks->count; }

int64_t ad_ranks_rank(const ad_ranks *ranks, int64_t index) {
  return ad_has((size_t)index, (size_t)ranks->count, __func__, "member") ? ranks->ranks[index] : -1;
}

int64_t ad_ranks_index(const ad_ranks *ranks, int64_t rank) {
  for (int64_t i = 0; i < ranks->count; i++)
    if (ranks->ranks[i] == rank) return i;
  return -1;
}
