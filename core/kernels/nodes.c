#include "kernels/nodes.h"

#include "kernels/tree.h"

/* Returns the largest node that begins at leaf `first` and ends at or before leaf `end`. */
static ad_node largest_from(int64_t first, int64_t end, int64_t leaves) {
  ad_node node = {first, 1};
  for (int64_t size = 2; first % size == 0; size *= 2) {
    int64_t last = first + size < leaves ? first + size : leaves;
    if (last > end) break;
    node.count = last - first;
    if (last == leaves) break;
  }
  return node;
}

size_t ad_nodes_of(int64_t first, int64_t count, int64_t leaves, ad_node *out) {
  size_t nodes = 0;
  for (int64_t at = first, end = first + count; at < end; at += out[nodes++].count)
    out[nodes] = largest_from(at, end, leaves);
  return nodes;
}

int ad_nodes_are_siblings(ad_node lower, ad_node upper, int64_t leaves) {
  int64_t size = lower.count, last = lower.first + 2 * size;
  if (size & (size - 1) || lower.first % (2 * size) || upper.first != lower.first + size) return 0;
  return upper.first + upper.count == (last < leaves ? last : leaves);
}

/* Returns 1 if the aligned tree over the leaves of `count` members, from index `first` on, divides these members at the
 * same places as the tree of tree.h over their indices. */
static int splits_alike(const int64_t *starts, size_t first, size_t count) {
  if (count < 2) return 1;
  size_t lower = ad_tree_lower(first, count);
  int64_t leaves = starts[first + count] - starts[first];
  if (starts[first + lower] - starts[first] != (int64_t)ad_node_lower((size_t)leaves)) return 0;
  return splits_alike(starts, first, lower) && splits_alike(starts, first + lower, count - lower);
}

int ad_nodes_follow_members(const int64_t *starts, size_t members, int64_t leaves) {
  ad_node nodes[AD_NODES_MAX];
  if (ad_nodes_of(starts[0], starts[members] - starts[0], leaves, nodes) != 1) return 0;
  for (size_t i = 0; i < members; i++)
    if (ad_nodes_of(starts[i], starts[i + 1] - starts[i], leaves, nodes) != 1) return 0;
  return splits_alike(starts, 0, members);
}
