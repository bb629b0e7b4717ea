/* Trains a linear model on 1, 2, 3 and 4 ranks with the same bits. The batch is divided into 8 leaves; each leaf's
 * gradient is computed by itself, and the reducer sums the leaves in the same order on any number of ranks. Each rank
 * stores only its rows of the sums, as with ZeRO. For each number of ranks, prints the norm of the last step's gradient
 * and a checksum of this gradient, which are always the same. */
#include <math.h>
#include <stdio.h>
#include "addend/helpers.h"
#include "addend/reduce.h"

enum { LEAVES = 8, SAMPLES = 101, FEATURES = 37, STEPS = 5 };
static const double CLIP = 0.5;

/* feature returns feature k of sample i; wanted returns the value that the model is to learn for sample i. */
static float feature(int64_t i, int k) { return (float)ad_random_normal(1, (uint64_t)i, (uint64_t)k); }
static float wanted(int64_t i) { return (float)ad_random_normal(2, (uint64_t)i, 0); }

/* Writes the gradient of (x w - y)^2 / SAMPLES over the samples of one leaf; a leaf is a floor cut of the batch. */
static void backward(int64_t leaf, const float *w, float *grad) {
  ad_span samples = ad_cut(SAMPLES, leaf, LEAVES);
  for (int k = 0; k < FEATURES; k++) grad[k] = 0;
  for (int64_t i = samples.first; i < samples.first + samples.count; i++) {
    float error = -wanted(i);
    for (int k = 0; k < FEATURES; k++) error += feature(i, k) * w[k];
    for (int k = 0; k < FEATURES; k++) grad[k] += 2 * error * feature(i, k) / SAMPLES;
  }
}

/* Runs the rounds of a step. In each round this rank computes the gradient of one leaf, or of none. The gradient is
 * written directly to the reducer's memory, which need not be added to (`adds` is 0). */
static ad_status sum_leaves(ad_reducer *reducer, const ad_leaf_options *options, const float *w) {
  for (int64_t round = 0; round < options->rounds; round++) {
    int64_t leaf = ad_reducer_leaf(reducer, round);
    ad_array grad;
    int adds;
    AD_TRY(ad_reducer_begin_leaf(reducer, options->sync[round], leaf));
    if (leaf >= 0) {
      AD_TRY(ad_reducer_target(reducer, 0, &grad, &adds));
      backward(leaf, w, grad.data);
      AD_TRY(ad_reducer_add(reducer, 0, &grad));
    }
    AD_TRY(ad_reducer_end_microbatch(reducer));
  }
  return ad_reducer_finish(reducer);
}

/* Gathers the gradient from all ranks, and updates w with the clipped gradient. */
static ad_status update(ad_comm *comm, const ad_array *shard, double norm, float *w, ad_array *grad) {
  float factor = 0.1f * (float)fmin(1, CLIP / norm);
  AD_TRY(ad_array_move(comm, shard, AD_MOVE_ALL_GATHER, AD_AXES(AD_DP_SHARD), AD_R, AD_F32, grad));
  for (int k = 0; k < FEATURES; k++) w[k] -= factor * ((const float *)grad->data)[k];
  return AD_OK;
}

static uint64_t checksum(const ad_array *array) { /* FNV-1a of the bits */
  uint64_t sum = 0xcbf29ce484222325;
  for (size_t i = 0; i < ad_array_bytes(array); i++)
    sum = (sum ^ ((const unsigned char *)array->data)[i]) * 0x100000001b3;
  return sum;
}

static ad_status train(ad_comm *comm, ad_reducer *reducer, const ad_leaf_options *options, ad_array *grad) {
  float w[FEATURES] = {0};
  double norm = 0;
  ad_group everyone = ad_mesh_group(ad_comm_mesh(comm), AD_AXES_ALL, ad_comm_rank(comm));
  for (int step = 0; step < STEPS; step++) {
    AD_TRY(sum_leaves(reducer, options, w));
    AD_TRY(ad_reducer_norm(reducer, &everyone, &norm));
    AD_TRY(update(comm, ad_reducer_gradient(reducer, 0), norm, w, grad));
  }
  if (!ad_comm_rank(comm))
    printf("%d rank%s, %d round%s: norm %.17g, checksum %016llx\n", (int)ad_comm_size(comm),
           ad_comm_size(comm) == 1 ? "" : "s", (int)options->rounds, options->rounds == 1 ? "" : "s", norm,
           (unsigned long long)checksum(grad));
  return AD_OK;
}

static int on_each_rank(ad_comm *comm, void *context) {
  (void)context;
  ad_reducer *reducer = NULL;
  ad_array grad = {0};
  ad_layout full = ad_layout_all(ad_comm_mesh(comm), AD_R);
  ad_param_spec w = {.size = sizeof w, .name = "w", .shape = {1, {FEATURES}}, .layout = full, .storage = full};
  ad_layout_set(&w.storage, AD_AXES(AD_DP_SHARD), AD_S(0));
  // There are as many rounds as the most leaves that one rank has. Each round reduce-scatters its leaves' gradients.
  ad_sync sync[LEAVES];
  ad_leaf_options leaves = {.leaves = LEAVES, .sync = sync};
  leaves.rounds = (LEAVES + ad_comm_size(comm) - 1) / ad_comm_size(comm);
  for (int64_t round = 0; round < leaves.rounds; round++) sync[round] = AD_SYNC_SHARD;
  sync[leaves.rounds - 1] = AD_SYNC_ALL;
  ad_reducer_options options = {.size = sizeof options, .leaves = &leaves};
  ad_status status = ad_reducer_create(comm, &w, 1, &options, &reducer);
  if (!status) status = ad_array_create(comm, AD_F32, &w.shape, &full, &grad);
  if (!status) status = train(comm, reducer, &leaves, &grad);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  ad_array_destroy(comm, &grad);
  ad_reducer_destroy(reducer);
  return status != AD_OK;
}

int main(void) {
  for (int64_t ranks = 1; ranks <= 4; ranks++) {
    ad_launch_options options = {.size = sizeof options, .ranks = ranks, .function = on_each_rank};
    ad_launch_result result = {.size = sizeof result};
    if (ad_launch(&options, &result)) return fprintf(stderr, "%s\n", ad_last_error()), 1;
  }
  return 0;
}
