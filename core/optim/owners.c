/* The cost of the ways to work on whole matrices, and who gets which matrix. */
#include "optim/owners.h"

/* Bytes and operations of one core in a second. They only order the ways: a wrong number costs time and changes no bit.
 * Measured, as in lab/measured: all_to_all on shared memory, and products of f32 and of f64. */
static const double bytes_rate = 4e9, f32_rate = 4e10, f64_rate = 2e10;

/* The number of ranks among which whole matrices are dealt. */
static int64_t dealt_ranks(const ad_way_case *matrices, ad_muon_way way) {
  if (way == AD_WAY_GATHERED) return 1;
  return way == AD_WAY_DEALT ? matrices->shards : matrices->shards * matrices->replicas;
}

/* In a round of `dealt` ways a rank has as many bytes as one whole matrix: first its shards of the matrices of all
 * ranks, then its own matrix. With replicas, each replica then receives the results of the others. */
ad_way_cost ad_way_cost_of(const ad_way_case *matrices, ad_muon_way way) {
  double rounds = (double)ad_owners_rounds(matrices->matrices, dealt_ranks(matrices, way));
  double others = 1 - 1 / (double)matrices->shards;  // the part of a matrix that other ranks store
  double replicas = way == AD_WAY_DEALT_TO_REPLICAS ? (double)matrices->replicas : 1;
  double times = way == AD_WAY_GATHERED ? others : 2 * others + (replicas - 1);
  ad_way_cost cost = {.bytes = rounds * times * matrices->bytes,
                      .operations = rounds * matrices->operations,
                      .memory = (1 + replicas) * matrices->bytes + matrices->scratch,
                      .refused = replicas > AD_DEALT_REPLICAS_MAX};
  cost.seconds = cost.bytes / bytes_rate + cost.operations / (matrices->wide ? f64_rate : f32_rate);
  return cost;
}

ad_muon_way ad_way_cheapest(const ad_way_case *matrices) {
  ad_muon_way best = AD_WAY_GATHERED;
  for (int way = AD_WAY_DEALT; way < AD_WAYS; way++) {
    ad_way_cost cost = ad_way_cost_of(matrices, (ad_muon_way)way);
    if (!cost.refused && cost.seconds < ad_way_cost_of(matrices, best).seconds) best = (ad_muon_way)way;
  }
  return best;
}

/* Returns the rank with the least load among those that have no matrix in this round. */
static int64_t least_loaded(const double *load, const int64_t *owned, int64_t ranks) {
  int64_t least = -1;
  for (int64_t rank = 0; rank < ranks; rank++)
    if (owned[rank] < 0 && (least < 0 || load[rank] < load[least])) least = rank;
  return least;
}

void ad_owners_deal(int64_t matrices, double operations, int64_t ranks, double *load, int64_t *owned) {
  int64_t rounds = ad_owners_rounds(matrices, ranks), full = matrices / ranks, in_full_rounds = full * ranks;
  for (int64_t slot = 0; slot < rounds * ranks; slot++) owned[slot] = slot < in_full_rounds ? slot : -1;
  for (int64_t rank = 0; rank < ranks; rank++) load[rank] += (double)full * operations;
  int64_t *last = owned + in_full_rounds;
  for (int64_t matrix = in_full_rounds; matrix < matrices; matrix++) {
    int64_t rank = least_loaded(load, last, ranks);
    last[rank] = matrix;
    load[rank] += operations;
  }
}
