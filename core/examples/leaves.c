/* Trains a linear model on 1, 2 and 4 ranks with the same bits. The batch is divided into 8 leaves; each leaf's gradient
 * is computed by itself, and the reducer sums the leaves in the same order on any number of ranks. Prints a checksum of
 * the last step's gradient for each number of ranks: the three are equal. */
#include <stdio.h>
#include "addend/helpers.h"
#include "addend/reduce.h"

enum { LEAVES = 8, SAMPLES = 101, FEATURES = 37, STEPS = 5 };

/* Feature k of sample i, and below the value that the model is to learn for the sample. */
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

/* Runs the rounds of a step: in each, this rank computes one leaf, or none. The reducer offers memory for the gradient,
 * which begins empty for every leaf. */
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

/* Gradient descent. Prints the checksum of the last gradient's bits (FNV-1a). */
static ad_status train(ad_comm *comm, ad_reducer *reducer, const ad_leaf_options *options) {
  float w[FEATURES] = {0};
  const ad_array *grad = ad_reducer_gradient(reducer, 0);
  uint64_t checksum = 0xcbf29ce484222325;
  for (int step = 0; step < STEPS; step++) {
    AD_TRY(sum_leaves(reducer, options, w));
    for (int k = 0; k < FEATURES; k++) w[k] -= 0.1f * ((const float *)grad->data)[k];
  }
  for (size_t i = 0; i < ad_array_bytes(grad); i++)
    checksum = (checksum ^ ((const unsigned char *)grad->data)[i]) * 0x100000001b3;
  if (!ad_comm_rank(comm))
    printf("%d of %d leaves a rank: gradient %.9g %.9g ..., checksum %016llx\n", (int)options->rounds, LEAVES,
           ((const float *)grad->data)[0], ((const float *)grad->data)[1], (unsigned long long)checksum);
  return AD_OK;
}

static int on_each_rank(ad_comm *comm, void *context) {
  (void)context;
  ad_reducer *reducer = NULL;
  ad_layout full = ad_layout_all(ad_comm_mesh(comm), AD_R);
  ad_param_spec w = {.size = sizeof w, .name = "w", .shape = {1, {FEATURES}}, .layout = full, .storage = full};
  // As many rounds as a rank has leaves; the last one sums over the ranks.
  ad_sync sync[LEAVES] = {AD_SYNC_NONE};
  ad_leaf_options leaves = {.leaves = LEAVES, .rounds = LEAVES / ad_comm_size(comm), .sync = sync};
  ad_reducer_options options = {.size = sizeof options, .leaves = &leaves};
  sync[leaves.rounds - 1] = AD_SYNC_ALL;
  ad_status status = ad_reducer_create(comm, &w, 1, &options, &reducer);
  if (!status) status = train(comm, reducer, &leaves);
  if (status) fprintf(stderr, "rank %d: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  ad_reducer_destroy(reducer);
  return status != AD_OK;
}

int main(void) {
  for (int64_t ranks = 1; ranks <= 4; ranks *= 2) {
    ad_launch_options options = {.size = sizeof options, .ranks = ranks, .function = on_each_rank};
    ad_launch_result result = {.size = sizeof result};
    if (ad_launch(&options, &result)) return fprintf(stderr, "%s\n", ad_last_error()), 1;
  }
  return 0;
}
