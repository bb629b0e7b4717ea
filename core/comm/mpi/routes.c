/* Computes from the members' nodes which member sums which addends, and which values it sends to which member. */
#include "comm/mpi/routes.h"

#include "base/memory.h"
#include "comm/mpi/spans.h"
#include "kernels/tree.h"

static int is_on_one_node(const uint32_t *node_of, uint32_t first, uint32_t count) {
  uint32_t i = 1;
  while (i < count && node_of[first + i] == node_of[first]) i++;
  return i == count;
}

/* Sets `first` and `count` of each of `count` members from `first` on: the range of members of the largest subtree
 * of the summing tree that contains the member and is all on one node. */
static void place_part(const uint32_t *node_of, uint32_t first, uint32_t count, mpi_place *places) {
  if (is_on_one_node(node_of, first, count)) {
    for (uint32_t i = first; i < first + count; i++)
      places[i] = (mpi_place){.node = node_of[i], .first = first, .count = count};
    return;
  }
  uint32_t lower = (uint32_t)ad_tree_lower(first, count);
  place_part(node_of, first, lower, places);
  place_part(node_of, first + lower, count - lower, places);
}

/* Lists the members of i's node, unless they are listed already. */
static void list_mates(mpi_routes *routes, uint32_t i, uint32_t *listed) {
  uint32_t start = *listed;
  if (routes->places[i].mates_count) return;
  for (uint32_t k = i; k < routes->members; k++)
    if (ad_mpi_same_node(routes, i, k)) routes->mates[(*listed)++] = k;
  for (uint32_t n = start; n < *listed; n++) {
    routes->places[routes->mates[n]].mates = start;
    routes->places[routes->mates[n]].mates_count = *listed - start;
  }
}

ad_status ad_mpi_routes_make(uint32_t members, const uint32_t *node_of, mpi_routes *out) {
  mpi_routes routes = {.members = members};
  uint32_t listed = 0;
  AD_TRY(ad_new(members, &routes.places));
  ad_status status = ad_new(members, &routes.mates);
  if (status) {
    ad_mpi_routes_free(&routes);
    return status;
  }
  place_part(node_of, 0, members, routes.places);
  for (uint32_t i = 0; i < members; i++) list_mates(&routes, i, &listed);
  *out = routes;
  return AD_OK;
}

void ad_mpi_routes_free(mpi_routes *routes) {
  ad_release(routes->places);
  ad_release(routes->mates);
  *routes = (mpi_routes){0};
}

int ad_mpi_sums_first(const mpi_routes *routes, const ad_call *call, uint32_t i) {
  uint32_t count = routes->places[i].count;
  if (!call->operation->reduces || count < 2 || call->results) return 0;
  return ad_dtype_size(call->reducing.accumulate) <= count * call->element;
}

uint32_t ad_mpi_reader(const mpi_routes *routes, const ad_call *call, uint32_t i, uint32_t k) {
  const mpi_place *place = &routes->places[i];
  if (ad_mpi_same_node(routes, i, k) || !ad_mpi_sums_first(routes, call, i)) return k;
  return place->first + k % place->count;
}

uint32_t ad_mpi_giver(const mpi_routes *routes, const ad_call *call, uint32_t k, uint32_t i) {
  const mpi_place *place = &routes->places[i];
  if (ad_mpi_same_node(routes, i, k) || !ad_mpi_is_for_all(call, k)) return k;
  uint32_t relay = routes->mates[place->mates + k % place->mates_count];
  return relay == i ? k : relay;
}
