/* A decomposition's three pools of ranks and what they exchange: the same numbers in every measured program. The
 * exchanges are the words of a task's `storage`. */
#ifndef BENCH_POOLS_H
#define BENCH_POOLS_H
#include <stddef.h>
#include <stdint.h>

/* The ranks of the importance network come first, then those of the blocks, then the adversary's. */
typedef struct bench_pools {
  int ci, blocks, per_block, adv; /* `blocks` of `per_block` ranks each */
} bench_pools;
/* Two fifths, two fifths and a fifth of the ranks, at least one each; two blocks where that many ranks are even. */
bench_pools bench_pools_of(int ranks);

/* The measured decomposition: of each matrix of a decoder's attention `narrow` components, of the MLP's `wide`. */
typedef struct bench_decomposition {
  int64_t layers, d_model, hidden, seq, batch, narrow, wide;
} bench_decomposition;
enum { BENCH_LAYER_SITES = 7 };

typedef struct bench_site {
  int64_t in, out, components;
} bench_site;
/* Site number `site` of the decoder, layer after layer. */
bench_site bench_site_of(const bench_decomposition *decomposition, int64_t site);
int64_t bench_sites(const bench_decomposition *decomposition);
int64_t bench_components(const bench_decomposition *decomposition); /* of all sites */

typedef enum bench_exchanged {
  BENCH_CI_BLOCKS,  /* importances, each block those of its sites */
  BENCH_CI_ADV,     /* importances */
  BENCH_BLOCKS_CI,  /* their gradients */
  BENCH_ADV_CI,     /* their gradients */
  BENCH_BLOCKS_ADV, /* components to each rank of the adversary */
  BENCH_ADV_BLOCKS, /* their gradients, each to the first rank of its block */
  BENCH_EXCHANGED
} bench_exchanged;
/* 0, or else there is no exchange of that name. */
int bench_exchanged_parse(const char *word, bench_exchanged *out);
int bench_exchanged_weights(bench_exchanged exchanged); /* 1: components or their gradients */
/* Elements that the destination's ranks together do not have. */
int64_t bench_exchanged_elements(const bench_decomposition *decomposition, const bench_pools *pools,
                                 bench_exchanged exchanged);

#endif
