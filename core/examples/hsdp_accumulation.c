/* Hybrid sharding (HSDP) on 32 ranks, 4 replicas of 8 shards, with 2 microbatches. The first microbatch's gradient is
 * reduce-scattered but not yet all-reduced. It must be added to the second microbatch's before the all-reduce; addend
 * refuses the other order. This example uses collectives on plain buffers; the reducer does the same for whole
 * models. */
#include <stdio.h>
#include "addend/array.h"

enum { REPLICAS = 4, SHARDS = 8, RANKS = REPLICAS * SHARDS, ELEMENTS = 8 };

/* Returns the value of every element of the gradient that `rank` has from its backward of a microbatch; ranks
 * differ. */
static double addend(int64_t rank, int microbatch) { return (double)(rank + 1) * (microbatch ? 100 : 1); }

/* Returns the sum of the gradients of `count` ranks, from rank `first` on. */
static double sum_of(int64_t first, int64_t count, int microbatch) {
  double sum = 0;
  for (int64_t rank = first; rank < first + count; rank++) sum += addend(rank, microbatch);
  return sum;
}

typedef struct values {
  ad_array gradient; /* [8]  P on both axes: this rank's addend of the gradient, not summed yet */
  ad_array partial;  /* [1]  dp_shard=S0 dp_replicate=P: this rank's shard, summed over its shard group only */
  ad_array result;   /* [1]  dp_shard=S0 dp_replicate=R: this rank's shard, summed over all ranks */
} values;

static ad_status make_values(ad_comm *comm, const ad_mesh *mesh, values *v) {
  ad_shape shape = {1, {ELEMENTS}};
  ad_layout pending, partial, result;
  AD_TRY(ad_layout_parse(mesh, "dp_replicate=P dp_shard=P", &pending));
  AD_TRY(ad_layout_parse(mesh, "dp_replicate=P dp_shard=S0", &partial));
  AD_TRY(ad_layout_parse(mesh, "dp_replicate=R dp_shard=S0", &result));
  AD_TRY(ad_array_create(comm, AD_F64, &shape, &pending, &v->gradient));
  AD_TRY(ad_array_create(comm, AD_F64, &shape, &partial, &v->partial));
  return ad_array_create(comm, AD_F64, &shape, &result, &v->result);
}

/* Computes a microbatch's gradient and reduce-scatters it over the shard group. */
static ad_status scatter(ad_comm *comm, values *v, int microbatch, ad_array *out) {
  for (int i = 0; i < ELEMENTS; i++) ((double *)v->gradient.data)[i] = addend(ad_comm_rank(comm), microbatch);
  return ad_array_move(comm, &v->gradient, AD_MOVE_REDUCE_SCATTER, AD_AXES(AD_DP_SHARD), AD_S(0), AD_F64, out);
}

/* Sums this rank's shard over the replicas. */
static ad_status all_reduce(ad_comm *comm, const ad_array *partial, ad_array *out) {
  return ad_array_move(comm, partial, AD_MOVE_ALL_REDUCE, AD_AXES(AD_DP_REPLICATE), AD_R, AD_F64, out);
}

/* The right order: adds the two microbatches' partial sums, then all-reduces the total over the replicas. The first
 * microbatch's sum is in flight while the second microbatch computes. */
static ad_status accumulate_then_reduce(ad_comm *comm, values *first, values *second) {
  ad_request in_flight;
  for (int i = 0; i < ELEMENTS; i++) ((double *)first->gradient.data)[i] = addend(ad_comm_rank(comm), 0);
  AD_TRY(ad_array_post(comm, &first->gradient, AD_MOVE_REDUCE_SCATTER, AD_AXES(AD_DP_SHARD), AD_S(0), AD_F64,
                       &first->partial, &in_flight));
  AD_TRY(scatter(comm, second, 1, &second->partial));
  AD_TRY(ad_comm_wait(comm, &in_flight));
  AD_TRY(ad_array_add(&second->partial, &first->partial));
  return all_reduce(comm, &second->partial, &second->result);
}

/* The wrong order, which is a type error: a partial sum (P on dp_replicate) cannot be added to a finished sum (R). */
static ad_status reduce_then_accumulate(ad_comm *comm, values *first, values *second) {
  AD_TRY(scatter(comm, first, 0, &first->partial));
  AD_TRY(scatter(comm, second, 1, &second->partial));
  AD_TRY(all_reduce(comm, &second->partial, &second->result));
  return ad_array_add(&second->result, &first->partial);
}

/* Prints the result, the error message, and the results that wrong orders would have if they were not refused. */
static void print_results(const values *second, const char *refusal) {
  double found = *(const double *)second->result.data, right = sum_of(0, RANKS, 0) + sum_of(0, RANKS, 1);
  double first = sum_of(0, SHARDS, 0);  // the first microbatch's sum over the shard group of rank 0
  printf("accumulate, then all-reduce: %g; the sum of all %d addends is %g: %s\n", found, 2 * RANKS, right,
         found == right ? "right" : "WRONG");
  printf("all-reduce, then accumulate: would be %g on rank 0: it has the first microbatch of 1 replica of %d only\n",
         sum_of(0, RANKS, 1) + first, REPLICAS);
  printf("  addend refuses it: %s\n", refusal);
  printf("only the last microbatch all-reduced, the first one dropped: would be %g\n", sum_of(0, RANKS, 1));
  printf("divided by the sizes of both groups but reduced over shards alone: the first microbatch would count 1/%d\n",
         REPLICAS);
}

static ad_status run_orders(ad_comm *comm, const ad_mesh *mesh, values *first, values *second) {
  AD_TRY(make_values(comm, mesh, first));
  AD_TRY(make_values(comm, mesh, second));
  ad_status refused = reduce_then_accumulate(comm, first, second);
  if (refused != AD_TYPE) return refused ? refused : AD_INVALID;
  char refusal[512];
  snprintf(refusal, sizeof refusal, "%s", ad_last_error());
  AD_TRY(accumulate_then_reduce(comm, first, second));
  if (ad_comm_rank(comm) == 0) print_results(second, refusal);
  double right = sum_of(0, RANKS, 0) + sum_of(0, RANKS, 1);
  return *(const double *)second->result.data == right ? AD_OK : AD_INVALID;
}

/* Runs the example on one rank. Closing the comm frees the arrays. */
static int rank_main(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  values first = {0}, second = {0};
  if (ad_comm_size(comm) != RANKS)
    return fprintf(stderr,
                   "this example needs %d ranks, but was started on %d; start it with `addend run -n %d -- PROGRAM`\n",
                   RANKS, (int)ad_comm_size(comm), RANKS),
           1;
  if (ad_mesh_create("dp_replicate=4 dp_shard=8", &mesh)) return 1;
  ad_status status = run_orders(comm, mesh, &first, &second);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  ad_mesh_destroy(mesh);
  return status != AD_OK;
}

int main(void) {
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = rank_main, .joins = 1};
  ad_launch_result result = {.size = sizeof result};
  if (ad_launch(&options, &result) == AD_OK) return 0;
  return fprintf(stderr, "%s\n", ad_last_error()), 1;
}
