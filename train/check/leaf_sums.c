#include "check/leaf_sums.h"

#include "array/array.h"
#include "mesh/mesh.h"

/* Writes the nodes that together hold the leaves of the group's members `from` to `to` - 1, and returns their
 * number. */
static size_t nodes_of(const ad_leaf_ranges *ranges, int64_t from, int64_t to, ad_node *out) {
  return ad_nodes_of(ranges->starts[from], ranges->starts[to] - ranges->starts[from], ranges->leaves, out);
}

size_t ad_leaf_sums_given(const ad_transit_passing *pass, int64_t rank, ad_node *out) {
  ad_group group = ad_array_group(pass->comm, pass->in, pass->transit->axes);
  int64_t index = ad_group_index(&group, rank);
  *out = (ad_node){0};
  return pass->transit->ranges && index >= 0 ? nodes_of(pass->transit->ranges, index, index + 1, out) : 1;
}

size_t ad_leaf_sums_taken(const ad_transit_passing *pass, ad_node *out) {
  ad_group group = ad_array_group(pass->comm, pass->in, pass->transit->axes);
  *out = (ad_node){0};
  return pass->transit->ranges ? nodes_of(pass->transit->ranges, 0, ad_group_size(&group), out) : 1;
}
