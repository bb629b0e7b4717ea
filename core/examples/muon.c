/* Updates matrices by Muon and a vector by AdamW, on 1 to 4 ranks with the same bits. Each rank stores rows of the
 * matrices, but Muon orthogonalises whole ones: the optimizer brings rows together and takes the results apart again.
 * Three ways to do so are tried; for each number of ranks and each way prints the distance from what is to be learned,
 * and a checksum of the matrices, which is always the same. */
#include <math.h>
#include <stdio.h>
#include "addend/helpers.h"
#include "addend/optim.h"

enum { PARAMS = 4, STEPS = 30 };
static const ad_shape shapes[PARAMS] = {{2, {6, 10}}, {2, {6, 10}}, {2, {9, 4}}, {1, {10}}};
static const char *const names[PARAMS] = {"w0", "w1", "w2", "bias"};
enum { MATRICES, VECTORS }; /* the groups of parameters */
static const size_t group_of[PARAMS] = {MATRICES, MATRICES, MATRICES, VECTORS};

/* The parameters, their gradients and what they are to become: this rank's rows of each. */
typedef struct model {
  ad_param_spec specs[PARAMS];
  ad_array params[PARAMS], grads[PARAMS], wanted[PARAMS];
} model;

static ad_status create_model(ad_comm *comm, model *m) {
  for (int p = 0; p < PARAMS; p++) {
    ad_layout rows = ad_layout_all(ad_comm_mesh(comm), AD_R);
    ad_layout_set(&rows, AD_AXES(AD_DP_SHARD), AD_S(0));
    m->specs[p] = (ad_param_spec){
        .size = sizeof(ad_param_spec), .name = names[p], .shape = shapes[p], .layout = rows, .deviation = 1};
    AD_TRY(ad_array_create(comm, AD_F32, &shapes[p], &rows, &m->params[p]));
    AD_TRY(ad_array_create(comm, AD_F32, &shapes[p], &rows, &m->grads[p]));
    AD_TRY(ad_array_create(comm, AD_F32, &shapes[p], &rows, &m->wanted[p]));
    // A value depends on its global index alone, so any number of ranks begins with the same ones.
    AD_TRY(ad_param_initialise(&m->specs[p], 1, ad_comm_rank(comm), &m->params[p]));
    AD_TRY(ad_param_initialise(&m->specs[p], 2, ad_comm_rank(comm), &m->wanted[p]));
  }
  return AD_OK;
}

static void destroy_model(ad_comm *comm, model *m) {
  for (int p = 0; p < PARAMS; p++) {
    ad_array_destroy(comm, &m->params[p]);
    ad_array_destroy(comm, &m->grads[p]);
    ad_array_destroy(comm, &m->wanted[p]);
  }
}

/* The product that Muon calls. A program has a faster one, such as its BLAS; it must not depend on where matrices lie. */
static ad_status multiply(void *context, ad_dtype dtype, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a,
                          ad_matrix b, int adds, void *c, int64_t c_stride) {
  const float *x = a.data, *y = b.data;
  float *out = c;
  ++*(int *)context;
  if (dtype != AD_F32) return ad_fail(AD_INVALID, "this example multiplies f32 only");
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      float sum = 0;
      for (int64_t l = 0; l < k; l++)
        sum += x[a.transposed ? l * a.stride + i : i * a.stride + l] *
               y[b.transposed ? j * b.stride + l : l * b.stride + j];
      out[i * c_stride + j] = (float)factor * sum + (adds ? out[i * c_stride + j] : 0);
    }
  return AD_OK;
}

/* Takes all steps. The loss is half the squared distance, so its gradient is the difference, which each rank has. */
static ad_status train(ad_optimizer *optimizer, model *m) {
  ad_array *params[PARAMS];
  const ad_array *grads[PARAMS];
  for (int step = 0; step < STEPS; step++) {
    const double rates[] = {[MATRICES] = 0.5 * (STEPS - step) / STEPS, [VECTORS] = 0.1};
    for (int p = 0; p < PARAMS; p++) {
      const float *value = m->params[p].data, *wanted = m->wanted[p].data;
      float *grad = m->grads[p].data;
      for (size_t i = 0; i < ad_array_numel(&m->params[p]); i++) grad[i] = value[i] - wanted[i];
      params[p] = &m->params[p];
      grads[p] = &m->grads[p];
    }
    AD_TRY(ad_optimizer_step_rates(optimizer, params, grads, rates, 1));
  }
  return AD_OK;
}

/* Gathers the parameters and prints how far they are from what was wanted, and a checksum (FNV-1a). */
static ad_status report(ad_comm *comm, const model *m, const char *way, int products) {
  uint64_t sum = 0xcbf29ce484222325;
  double squares = 0;
  for (int p = 0; p < PARAMS; p++) {
    const ad_array *both[] = {&m->params[p], &m->wanted[p]};
    ad_layout everywhere = ad_layout_all(ad_comm_mesh(comm), AD_R);
    ad_array full[2] = {{0}};
    for (int i = 0; i < 2; i++) {
      AD_TRY(ad_array_create(comm, AD_F32, &shapes[p], &everywhere, &full[i]));
      AD_TRY(ad_array_move(comm, both[i], AD_MOVE_ALL_GATHER, AD_AXES(AD_DP_SHARD), AD_R, AD_F32, &full[i]));
    }
    for (size_t i = 0; i < ad_array_numel(&full[0]); i++)
      squares += pow(ad_array_get(&full[0], i) - ad_array_get(&full[1], i), 2);
    for (size_t i = 0; i < ad_array_bytes(&full[0]); i++)
      sum = (sum ^ ((const unsigned char *)full[0].data)[i]) * 0x100000001b3;
    for (int i = 0; i < 2; i++) ad_array_destroy(comm, &full[i]);
  }
  if (!ad_comm_rank(comm))
    printf("%d rank%s, %s, %d products on the first: distance %.6f, checksum %016llx\n", (int)ad_comm_size(comm),
           ad_comm_size(comm) == 1 ? "" : "s", way, products, sqrt(squares), (unsigned long long)sum);
  return AD_OK;
}

static ad_status run(ad_comm *comm, ad_muon_way way, const char *name) {
  const ad_optimizer_options groups[] = {
      [MATRICES] = {.size = sizeof(ad_optimizer_options), .kind = AD_MUON, .muon = {.way = way}},
      [VECTORS] = {.size = sizeof(ad_optimizer_options), .kind = AD_ADAMW}};
  model m = {0};
  int products = 0;
  ad_optimizer *optimizer = NULL;
  const ad_array *params[PARAMS];
  const ad_optimizer_setup setup = {.size = sizeof setup,
                                    .groups = groups,
                                    .group_count = 2,
                                    .group_of = group_of,
                                    .comm = comm,
                                    .product = {.multiply = multiply, .context = &products}};
  ad_status status = create_model(comm, &m);
  for (int p = 0; p < PARAMS; p++) params[p] = &m.params[p];
  if (!status) status = ad_optimizer_create_groups(params, m.specs, PARAMS, &setup, &optimizer);
  if (!status) status = train(optimizer, &m);
  if (!status) status = report(comm, &m, name, products);
  ad_optimizer_destroy(optimizer);
  destroy_model(comm, &m);
  return status;
}

static int on_each_rank(ad_comm *comm, void *context) {
  (void)context;
  ad_status status = run(comm, AD_WAY_GATHERED, "each rank gathers all matrices");
  if (!status) status = run(comm, AD_WAY_DEALT, "matrices are dealt to the ranks");
  if (!status) status = run(comm, AD_WAY_CHEAPEST, "the cheapest way");
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
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
