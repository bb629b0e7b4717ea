/* Finds the node whose ranks together need most memory. Neighbouring positions with equal ranks form runs, and a node
 * consists of some of these runs. */
#include "base/error.h"
#include "base/memory.h"
#include "plan/regions.h"

/* Returns the index of the block of axes inside which nodes begin and end, or -1 if the size of a block and the size of
 * a node do not divide each other. */
static int block_of_nodes(const region *r, int64_t ranks_per_node) {
  if (r->first % ranks_per_node) return -1;
  for (int i = 0; i < r->block_count; i++) {
    int64_t stride = r->blocks[i].stride, whole = stride * r->blocks[i].positions.size;
    if (ranks_per_node < stride) continue;
    if (ranks_per_node > whole || ranks_per_node % stride) return -1;
    return whole % ranks_per_node == 0 || (i == 0 && r->block_count) ? i : -1;
  }
  return -1;
}

/* Returns a number of bytes as int64_t, INT64_MAX if it is larger. */
static int64_t limited(__int128 bytes) { return bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes; }

/* A search over the nodes of a region. It goes through the combinations of classes of the blocks slower than `split`,
 * one at a time. of_class[c] is the bytes of all ranks together at one position of class c in block `split`. */
typedef struct node_search {
  const ad_kinds *kinds;
  const region *region;
  const size_t *peaks;
  /* index of the block inside which nodes begin and end */
  int split;
  __int128 *of_class;
  /* the most bytes that a node needs among those seen so far */
  __int128 most;
  int64_t node; /* the node that needs `most` bytes */
} node_search;

/* Keeps a node if it needs more memory than all nodes seen before. Of equal nodes, the first is kept. */
static void note(node_search *search, int64_t rank, __int128 bytes) {
  int64_t node = rank / search->kinds->ranks_per_node;
  if (bytes < search->most || (bytes == search->most && node >= search->node)) return;
  search->most = bytes;
  search->node = node;
}

/* Computes of_class for the combination with index `slow` of classes of the slower blocks, as sums over all
 * combinations of classes of the faster blocks. */
static void sum_classes(node_search *search, size_t slow) {
  const region *r = search->region;
  size_t classes = (size_t)r->blocks[search->split].positions.classes, fast = 1;
  for (int i = search->split + 1; i < r->block_count; i++) fast *= (size_t)r->blocks[i].positions.classes;
  for (size_t c = 0; c < classes; c++) {
    search->of_class[c] = 0;
    for (size_t f = 0; f < fast; f++) {
      size_t number = (slow * classes + c) * fast + f;
      int64_t class[BLOCKS_MAX], ranks = 1;
      ad_choice_classes(r, number, class);
      for (int i = search->split + 1; i < r->block_count; i++) ranks *= r->blocks[i].count[class[i]];
      size_t kind = search->kinds->choices[r->first_choice + number].kind;
      search->of_class[c] += (__int128)ranks * search->peaks[kind];
    }
  }
}

/* Calls `note` for one node inside each run of equal positions, since all nodes inside a run need the same, and for
 * each node that has positions of two runs or more. */
static void walk_nodes(node_search *search, int64_t first_rank) {
  const block *b = &search->region->blocks[search->split];
  int64_t per_node = search->kinds->ranks_per_node / b->stride, at = 0;
  for (size_t run = 0; at < b->positions.size;) {
    const ad_run_of_positions *here = &b->positions.runs[run];
    int64_t left = here->first + here->count - at, whole = left / per_node, rank = first_rank + at * b->stride;
    if (whole) {
      note(search, rank, search->of_class[here->class] * per_node);
      at += whole * per_node;
    } else {
      __int128 bytes = 0;
      int64_t end = at + per_node < b->positions.size ? at + per_node : b->positions.size;
      for (; at < end; run += at == here->first + here->count) {
        here = &b->positions.runs[run];
        int64_t stop = here->first + here->count < end ? here->first + here->count : end;
        bytes += search->of_class[here->class] * (stop - at);
        at = stop;
      }
      note(search, rank, bytes);
      continue;
    }
    run += at == here->first + here->count;
  }
}

/* Searches the nodes of a region, for each combination of classes of the slower blocks. */
static ad_status search_region(node_search *search) {
  const region *r = search->region;
  size_t slow = 1;
  for (int i = 0; i < search->split; i++) slow *= (size_t)r->blocks[i].positions.classes;
  AD_TRY(ad_new((size_t)r->blocks[search->split].positions.classes, &search->of_class));
  size_t rest = r->choices / slow;
  for (size_t s = 0; s < slow; s++) {
    int64_t class[BLOCKS_MAX], first = r->first;
    ad_choice_classes(r, s * rest, class);
    for (int i = 0; i < search->split; i++) first += r->blocks[i].first[class[i]] * r->blocks[i].stride;
    sum_classes(search, s);
    walk_nodes(search, first);
  }
  ad_release(search->of_class);
  return AD_OK;
}

static ad_node_peak all_ranks(const ad_kinds *kinds, const size_t *peaks) {
  __int128 bytes = 0;
  for (size_t i = 0; i < kinds->count; i++) bytes += (__int128)kinds->list[i].ranks * peaks[i];
  return (ad_node_peak){0, limited(bytes), 0};
}

/* Returns an upper bound of the memory of nodes that end inside a block of axes: that of a node all of whose ranks are
 * of the largest kind. */
static ad_node_peak bound(const ad_kinds *kinds, const size_t *peaks) {
  size_t most = 0;
  for (size_t i = 1; i < kinds->count; i++)
    if (peaks[i] > peaks[most]) most = i;
  __int128 bytes = (__int128)peaks[most] * kinds->ranks_per_node;
  return (ad_node_peak){kinds->list[most].first / kinds->ranks_per_node, limited(bytes), 1};
}

ad_status ad_kinds_node_peak(const ad_kinds *kinds, const size_t *peaks, ad_node_peak *out) {
  node_search search = {.kinds = kinds, .peaks = peaks, .most = -1};
  if (kinds->ranks_per_node >= kinds->ranks) {
    *out = all_ranks(kinds, peaks);
    return AD_OK;
  }
  for (size_t i = 0; i < kinds->region_count; i++) {
    search.region = &kinds->regions[i];
    search.split = block_of_nodes(search.region, kinds->ranks_per_node);
    if (search.split < 0) {
      *out = bound(kinds, peaks);
      return AD_OK;
    }
    AD_TRY(search_region(&search));
  }
  *out = (ad_node_peak){search.node, limited(search.most), 0};
  return AD_OK;
}
