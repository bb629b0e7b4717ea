/* A linear model y = X w, trained with hand-written gradients in plain buffers: what another framework does with the
 * reducer. The samples are cut unevenly on purpose: the result is that of one rank. Starts 4 ranks, or joins those that
 * `addend run -n N` or mpirun started. */
#include <stdio.h>
#include "addend/reduce.h"

enum { RANKS = 4, SAMPLES = 101, FEATURES = 3, STEPS = 40 };

/* Feature k of sample i. What the model shall learn is y = 1 x0 + 2 x1 + 3 x2. */
static double feature(int64_t i, int k) { return (double)((i * (2 * k + 3)) % 7) / 7 - 0.4; }

/* This rank's addends of the loss (X w - y)^2 / count and of its gradient; `count` is that of all samples (law 5). */
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

static ad_status train(ad_comm *comm, const ad_mesh *mesh, ad_reducer *reducer, ad_count *counting) {
  ad_span samples = ad_cut(SAMPLES, ad_comm_rank(comm), ad_comm_size(comm));
  ad_group all = ad_mesh_group(mesh, AD_AXES_DP, ad_comm_rank(comm));
  double w[FEATURES] = {0}, loss;
  ad_collective sum_loss = {.size = sizeof sum_loss,
                            .op = AD_ALL_REDUCE,
                            .group = all,
                            .in = &loss,
                            .out = &loss,
                            .count = 1,
                            .dtype = AD_F64};
  sum_loss.site = AD_HERE;
  int64_t count;
  AD_TRY(ad_count_post(counting, &samples.count));
  AD_TRY(ad_count_wait(counting, &count));
  for (int step = 1; step <= STEPS; step++) {
    ad_array grad;  // describes the reducer's own memory: what is written there is summed in place
    int adds;
    AD_TRY(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
    AD_TRY(ad_reducer_target(reducer, 0, &grad, &adds));
    loss = backward(samples, w, (double)count, grad.data);
    AD_TRY(ad_reducer_add(reducer, 0, &grad));
    AD_TRY(ad_reducer_end_microbatch(reducer));
    AD_TRY(ad_reducer_finish(reducer));
    const double *sum = ad_reducer_gradient(reducer, 0)->data;
    for (int k = 0; k < FEATURES; k++) w[k] -= 2 * sum[k];
    AD_TRY(ad_comm_run(comm, &sum_loss));
    if (ad_comm_rank(comm) == 0 && step % 8 == 0)
      printf("step %2d  loss %.6f  w %.4f %.4f %.4f\n", step, loss, w[0], w[1], w[2]);
  }
  return AD_OK;
}

static int on_each_rank(ad_comm *comm, void *context) {
  ad_mesh *mesh = NULL;
  ad_reducer *reducer = NULL;
  ad_count *counting = NULL;
  ad_layout counted;
  char axes[32];
  ad_param_spec w = {.size = sizeof w, .name = "w", .shape = {1, {FEATURES}}, .contract = {.param = AD_F64}};
  snprintf(axes, sizeof axes, "dp_shard=%d", (int)ad_comm_size(comm));
  ad_status status = ad_mesh_create(axes, &mesh);
  // w is replicated (R), so its gradient is a pending sum (P): the reducer derives the all-reduce from that.
  if (!status) w.layout = w.storage = ad_layout_all(mesh, AD_R);
  if (!status) status = ad_reducer_create(comm, &w, 1, NULL, &reducer);
  // Each rank counts its own samples: their sum is wanted, so they are P.
  if (!status) counted = ad_layout_all(mesh, AD_P);
  if (!status) status = ad_count_create(comm, &counted, 1, &counting);
  if (!status) status = train(comm, mesh, reducer, counting);
  if (status) fprintf(stderr, "rank %d: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  ad_count_destroy(counting);
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
  return status != AD_OK;
}

/* In a process that was started as a rank already. */
static int join(void) {
  ad_comm *comm;
  if (ad_comm_open(&comm)) return fprintf(stderr, "%s\n", ad_last_error()), 1;
  int status = on_each_rank(comm, NULL);
  ad_comm_close(comm);
  return status;
}

int main(void) {
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = on_each_rank};
  ad_launch_result result = {.size = sizeof result};
  if (ad_comm_launched()) return join();
  if (ad_launch(&options, &result) == AD_OK) return 0;
  return fprintf(stderr, "%s\n", ad_last_error()), 1;
}
