/* The three pools of ranks of a decomposition and the data that they exchange, equal in all measured programs. A task's
 * `storage` names the exchange. */
#ifndef BENCH_POOLS_H
#define BENCH_POOLS_H
#include <stddef.h>
#include <stdint.h>

/* Numbers of ranks: first the importance network's (ci), then the blocks', then the adversary's (adv). */
typedef struct bench_pools {
  int ci, blocks, per_block, adv; /* `blocks` of `per_block` ranks each */
} bench_pools;
/* Divides the ranks: two fifths to ci, two fifths to blocks, a fifth to adv, at least one each. The blocks' ranks form
 * two blocks if their number is even, else one. */
bench_pools bench_pools_of(int ranks);

/* The measured decomposition: each matrix of attention has `narrow` components, each matrix of the MLP `wide`. */
typedef struct bench_decomposition {
  int64_t layers, d_model, hidden, seq, batch, narrow, wide;
} bench_decomposition;
enum { BENCH_LAYER_SITES = 7 };

typedef struct bench_site {
  int64_t in, out, components;
} bench_site;
/* Returns the sizes and the number of components of matrix `site` of the decoder; matrices are numbered layer after
 * layer. */
bench_site bench_site_of(const bench_decomposition *decomposition, int64_t site);
int64_t bench_sites(const bench_decomposition *decomposition);
int64_t bench_components(const bench_decomposition *decomposition); /* number of components of all sites */

typedef enum bench_exchanged {
  BENCH_CI_BLOCKS,  /* importances from ci to blocks; a block gets those of its sites */
  BENCH_CI_ADV,     /* importances from ci to adv */
  BENCH_BLOCKS_CI,  /* gradients of importances from blocks to ci */
  BENCH_ADV_CI,     /* gradients of importances from adv to ci */
  BENCH_BLOCKS_ADV, /* components from blocks to each rank of adv */
  BENCH_ADV_BLOCKS, /* gradients of components from adv to the first rank of each block */
  BENCH_EXCHANGED
} bench_exchanged;
/* Returns 0, or 1 if there is no exchange of that name. */
int bench_exchanged_parse(const char *word, bench_exchanged *out);
int bench_exchanged_weights(bench_exchanged exchanged); /* 1: components, or their gradients */
/* Returns the number of elements that all receiving ranks together must get. */
int64_t bench_exchanged_elements(const bench_decomposition *decomposition, const bench_pools *pools,
                                 bench_exchanged exchanged);

#endif
