/* A linear model y = X w, trained on 4 ranks with hand-written gradients in plain buffers: what another framework does
 * with the reducer. The samples are cut unevenly on purpose; the result is the same as on one rank. */
#include <stdio.h>
#include "addend/reduce.h"

enum { RANKS = 4, SAMPLES = 101, FEATURES = 3, STEPS = 40 };

/* Feature k of sample i, and what the model shall learn: y = 1 x0 + 2 x1 + 3 x2. */
static double feature(int64_t i, int k) { return (double)((i * (2 * k + 3)) % 7) / 7 - 0.4; }

/* Adds the gradient of the sum of (X w - y)^2 over this rank's samples, divided by the count of all samples. */
static double backward(ad_span samples, const double *w, double count, double *grad) {
  double loss = 0;
  for (int k = 0; k < FEATURES; k++) grad[k] = 0;
  for (int64_t i = samples.first; i < samples.first + samples.count; i++) {
    double error = 0;
    for (int k = 0; k < FEATURES; k++) error += feature(i, k) * (w[k] - (k + 1));
    for (int k = 0; k < FEATURES; k++) grad[k] += 2 * error * feature(i, k) / count;
    loss += error * error / count;
  }
  return loss;
}

static ad_status train(ad_comm *comm, ad_reducer *reducer, const ad_group *all, ad_span samples) {
  double w[FEATURES] = {0};
  double *loss;  // in memory that all ranks see: its sum over the ranks needs no copy
  AD_TRY(ad_comm_alloc(comm, sizeof *loss, (void **)&loss));
  ad_count counting;
  int64_t count;
  AD_TRY(ad_count_post(comm, all, samples.count, AD_HERE, &counting));
  AD_TRY(ad_count_wait(comm, &counting, &count));
  for (int step = 0; step < STEPS; step++) {
    ad_array grad;  // the reducer's own memory: what is written there is summed in place
    int adds;
    AD_TRY(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
    AD_TRY(ad_reducer_target(reducer, 0, &grad, &adds));
    *loss = backward(samples, w, (double)count, grad.data);
    AD_TRY(ad_reducer_add(reducer, 0, &grad, AD_HERE));
    AD_TRY(ad_reducer_end_microbatch(reducer));
    AD_TRY(ad_reducer_finish(reducer));
    const double *sum = ad_reducer_gradient(reducer, 0)->data;
    for (int k = 0; k < FEATURES; k++) w[k] -= 2 * sum[k];
    ad_collective add_losses = {
        .op = AD_ALL_REDUCE, .group = *all, .in = loss, .out = loss, .count = 1, .dtype = AD_F64};
    AD_TRY(ad_comm_run(comm, &add_losses));
    if (ad_comm_rank(comm) == 0 && step % 8 == 7) printf("step %2d  loss %.6f\n", step + 1, *loss);
  }
  if (ad_comm_rank(comm) == 0) printf("w = %.4f %.4f %.4f, to be learnt: 1 2 3\n", w[0], w[1], w[2]);
  return AD_OK;
}

static ad_status run(ad_comm *comm) {
  ad_mesh *mesh;
  AD_TRY(ad_mesh_create("dp_shard=4", &mesh));
  // w is replicated (R), so its gradient is a pending sum (P): the reducer derives the all-reduce from that.
  ad_param_spec w = {.name = "w", .shape = {1, {FEATURES}}, .contract = {.param = AD_F64}};
  w.layout = w.storage = ad_layout_all(mesh, AD_R);
  ad_reducer *reducer;
  AD_TRY(ad_reducer_create(comm, &w, 1, NULL, &reducer));
  ad_group all = ad_mesh_group(mesh, AD_AXES_DP, ad_comm_rank(comm));
  ad_status status = train(comm, reducer, &all, ad_cut(SAMPLES, ad_comm_rank(comm), RANKS));
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
  return status;
}

static int on_each_rank(ad_comm *comm, void *context) {
  if (!run(comm)) return 0;
  fprintf(stderr, "rank %lld: %s\n", (long long)ad_comm_rank(comm), ad_last_error());
  return 1;
}

int main(void) {
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = on_each_rank};
  ad_launch_result result;
  if (!ad_launch(&options, &result)) return 0;
  fprintf(stderr, "%s\n", result.message);
  return 1;
}
