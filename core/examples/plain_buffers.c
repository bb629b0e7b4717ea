/* Trains a linear model y = X w with hand-written gradients in plain buffers, as another framework would use addend's
 * reducer. The number of samples is not a multiple of the number of ranks; the result is still that of one rank. Starts
 * 4 ranks, or joins the ranks that `addend run -n N` or mpirun started. */
#include <stdio.h>
#include "addend/reduce.h"

enum { RANKS = 4, SAMPLES = 101, FEATURES = 3, STEPS = 40 };

/* Adds to `grad` the gradient of (X w - y)^2 / SAMPLES over this rank's samples; returns the loss over these samples. y
 * = 1 x0 + 2 x1 + 3 x2. */
static double backward(ad_comm *comm, const double *w, double *grad) {
  double loss = 0;
  for (int64_t i = ad_comm_rank(comm); i < SAMPLES; i += ad_comm_size(comm)) {
    double x[FEATURES], error = 0;
    for (int k = 0; k < FEATURES; k++) x[k] = (double)((i * (2 * k + 3)) % 7) / 7 - 0.4;
    for (int k = 0; k < FEATURES; k++) error += x[k] * (w[k] - (k + 1));
    for (int k = 0; k < FEATURES; k++) grad[k] += 2 * error * x[k] / SAMPLES;
    loss += error * error / SAMPLES;
  }
  return loss;
}

/* Gradient descent with a learning rate of 2; ad_reducer_step sums the gradient over all ranks. */
static ad_status train(ad_comm *comm, ad_reducer *reducer) {
  double w[FEATURES] = {0}, loss;
  ad_collective sum = {.size = sizeof sum, .op = AD_ALL_REDUCE, .in = &loss, .out = &loss, .count = 1, .dtype = AD_F64};
  for (int step = 1; step <= STEPS; step++) {
    double buffer[FEATURES] = {0};
    ad_array grad = ad_reducer_describe(reducer, 0);
    grad.data = buffer;
    loss = backward(comm, w, buffer);
    AD_TRY(ad_reducer_step(reducer, (const ad_array *[]){&grad}));
    for (int k = 0; k < FEATURES; k++) w[k] -= 2 * ((const double *)ad_reducer_gradient(reducer, 0)->data)[k];
    AD_TRY(ad_comm_run(comm, &sum));
    if (ad_comm_rank(comm) == 0 && step % 8 == 0)
      printf("step %2d  loss %.6f  w %.4f %.4f %.4f\n", step, loss, w[0], w[1], w[2]);
  }
  return AD_OK;
}

static int on_each_rank(ad_comm *comm, void *context) {
  ad_reducer *reducer = NULL;
  // w is replicated (R), so its gradient is Partial (P): from this the reducer derives the all-reduce.
  ad_layout full = ad_layout_all(ad_comm_mesh(comm), AD_R);
  ad_param_spec w = {.size = sizeof w, .name = "w", .shape = {1, {FEATURES}}, .layout = full, .storage = full};
  w.policy.param = AD_F64;
  ad_status status = ad_reducer_create(comm, &w, 1, NULL, &reducer);
  if (!status) status = train(comm, reducer);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  ad_reducer_destroy(reducer);
  return status != AD_OK;
}

int main(void) {
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = on_each_rank, .joins = 1};
  ad_launch_result result = {.size = sizeof result};
  return ad_launch(&options, &result) ? fprintf(stderr, "%s\n", ad_last_error()), 1 : 0;
}
