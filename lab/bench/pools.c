/* Computes the numbers of ranks and elements of a decomposition's pools. */
#include "pools.h"

#include <string.h>

static int at_least_one(int n) { return n > 1 ? n : 1; }

bench_pools bench_pools_of(int ranks) {
  int adv = at_least_one(ranks / 5), shared = at_least_one(2 * ranks / 5);
  int blocks = shared % 2 ? 1 : 2;
  return (bench_pools){.ci = ranks - shared - adv, .blocks = blocks, .per_block = shared / blocks, .adv = adv};
}

int64_t bench_sites(const bench_decomposition *decomposition) { return decomposition->layers * BENCH_LAYER_SITES; }

bench_site bench_site_of(const bench_decomposition *decomposition, int64_t site) {
  int64_t d = decomposition->d_model, hidden = decomposition->hidden;
  int64_t in_layer = site % BENCH_LAYER_SITES;
  if (in_layer < 4) return (bench_site){d, d, decomposition->narrow};
  if (in_layer < 6) return (bench_site){d, hidden, decomposition->wide};
  return (bench_site){hidden, d, decomposition->wide};
}

int64_t bench_components(const bench_decomposition *decomposition) {
  return decomposition->layers * (4 * decomposition->narrow + 3 * decomposition->wide);
}

int bench_exchanged_parse(const char *word, bench_exchanged *out) {
  static const char *const words[BENCH_EXCHANGED] = {"ci_blocks", "ci_adv",     "blocks_ci",
                                                     "adv_ci",    "blocks_adv", "adv_blocks"};
  for (int i = 0; i < BENCH_EXCHANGED; i++)
    if (!strcmp(words[i], word)) return *out = (bench_exchanged)i, 0;
  return 1;
}

int bench_exchanged_weights(bench_exchanged exchanged) { return exchanged >= BENCH_BLOCKS_ADV; }

static int64_t component_elements(const bench_decomposition *decomposition) {
  int64_t elements = 0;
  for (int64_t i = 0; i < bench_sites(decomposition); i++) {
    bench_site site = bench_site_of(decomposition, i);
    elements += (site.in + site.out) * site.components;
  }
  return elements;
}

/* The importances of each sample go to the receiving pool once; each block gets only those of its own sites. */
int64_t bench_exchanged_elements(const bench_decomposition *decomposition, const bench_pools *pools,
                                 bench_exchanged exchanged) {
  int64_t replicas = exchanged == BENCH_BLOCKS_ADV ? pools->adv : 1;
  if (bench_exchanged_weights(exchanged)) return replicas * component_elements(decomposition);
  return decomposition->batch * decomposition->seq * bench_components(decomposition);
}
