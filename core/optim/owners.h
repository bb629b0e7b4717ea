/* Which ranks do the work on whole matrices: the cost of each way, and which rank gets which matrix. Pure arithmetic:
 * nothing here knows arrays or communicates. */
#ifndef OPTIM_OWNERS_H
#define OPTIM_OWNERS_H
#include "addend/optim.h"
#include "base/internal.h"

enum { AD_WAYS = AD_WAY_DEALT_TO_REPLICAS + 1 };

/* Matrices of one shape, and the ranks that store them. */
typedef struct ad_way_case {
  int64_t matrices;
  double bytes;      /* of one whole matrix, as it is sent */
  double operations; /* multiplications and additions for one whole matrix */
  double scratch;    /* bytes that the work on one whole matrix needs besides the matrix */
  int wide;          /* 1: they are of f64 */
  /* A matrix is divided among `shards` ranks, and `replicas` groups of such ranks store it. */
  int64_t shards, replicas;
} ad_way_case;

/* What a way costs the busiest rank in one step. */
typedef struct ad_way_cost {
  double bytes;      /* received from other ranks */
  double operations; /* multiplications and additions */
  double seconds;    /* an estimate, which is only used to compare ways */
  double memory;     /* bytes in flight: matrices between shards and updates, and the scratch of the work on one */
  int refused;       /* 1: there are too many replicas for this way, so it is never taken */
} ad_way_cost;
ad_way_cost ad_way_cost_of(const ad_way_case *matrices, ad_muon_way way);

/* The most replicas to which matrices are dealt. Each replica receives the results of all others, so the memory of a
 * round grows with their number. */
enum { AD_DEALT_REPLICAS_MAX = 8 };
/* Returns the way with the least seconds: AD_WAY_GATHERED, AD_WAY_DEALT or AD_WAY_DEALT_TO_REPLICAS, the first of them
 * if several take as long. */
ad_muon_way ad_way_cheapest(const ad_way_case *matrices);

/* The number of rounds in which `ranks` ranks, each with one matrix in a round, get all matrices. */
static inline int64_t ad_owners_rounds(int64_t matrices, int64_t ranks) { return (matrices + ranks - 1) / ranks; }

/* Decides which of `ranks` ranks gets which of `matrices` matrices, each of which takes `operations`. In every round but
 * the last, each rank gets one matrix. Those of the last round, fewer than `ranks`, go to the ranks with the least
 * load; of equal loads, to the lowest ranks. owned[round * ranks + rank] becomes the number of the matrix, or -1.
 *
 * load[rank], the operations that a rank has, is increased. If stacks of matrices are dealt one after another by
 * falling operations, the largest load is at most the mean plus the operations of the largest matrix, since no two
 * loads differ by more than the operations of the largest matrix. */
void ad_owners_deal(int64_t matrices, double operations, int64_t ranks, double *load, int64_t *owned);

#endif
