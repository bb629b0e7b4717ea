/* One step of a linear model y = X w on the reducer, with two bugs that types cannot find, because they happen before
 * the gradient is submitted: --by-hand all-reduces the gradient that the reducer all-reduces again, --own-count divides
 * the loss by the rank's own number of samples. From the dumps `addend diff` finds the second bug. For the first it
 * reports "cannot tell", because all ranks have the same addend; with a reference it finds both:
 *
 *   mkdir dump && ADDEND_DUMP=dump example_own_sum [--by-hand | --own-count] [--reference whole.safetensors]
 *   addend diff [--reference whole.safetensors] dump/rank*
 *
 * Starts 4 ranks, or joins those that `addend run -n N` or mpirun started. */
#include <stdio.h>
#include <string.h>
#include "addend/reduce.h"
#include "addend/safetensors.h"

enum { RANKS = 4, SAMPLES = 101, FEATURES = 32 };

typedef struct program {
  int sums_by_hand, divides_by_own_count;
  /* the file to write the right gradient to, which one rank computes from all samples; NULL: it is not written */
  const char *reference;
} program;

/* Feature k of sample i. */
static double feature(int64_t i, int k) { return (double)((i * (2 * k + 3) + k * k) % 31) / 31 - 0.4; }

/* Computes the gradient of the loss sum (X w - y)^2 / count at w = 0 over these samples; y = sum over k of (k + 1)
 * x_k. */
static void backward(ad_span samples, double count, double grad[FEATURES]) {
  memset(grad, 0, FEATURES * sizeof *grad);
  for (int64_t i = samples.first; i < samples.first + samples.count; i++) {
    double error = 0;
    for (int k = 0; k < FEATURES; k++) error -= (k + 1) * feature(i, k);
    for (int k = 0; k < FEATURES; k++) grad[k] += 2 * error * feature(i, k) / count;
  }
}

/* Writes the gradient of all samples as a reference file for `addend diff` (audit/docs/dumps.md). */
static ad_status write_reference(const char *path) {
  double grad[FEATURES];
  ad_safetensor w = {.name = "w", .dtype = AD_F64, .shape = {1, {FEATURES}}};
  const char *const metadata[] = {"addend.version", "1", "addend.kind", "reference", NULL};
  ad_safetensors_writer *writer;
  backward((ad_span){0, SAMPLES}, SAMPLES, grad);
  AD_TRY(ad_safetensors_create(path, &w, 1, metadata, &writer));
  ad_status status = ad_safetensors_add(writer, grad);
  if (!status) status = ad_safetensors_finish(writer, NULL, NULL);
  ad_safetensors_writer_destroy(writer);
  return status;
}

/* The bug: sums the gradient over all ranks. The reducer then takes the sum for one rank's addend and sums again. */
static ad_status sum_by_hand(ad_comm *comm, double grad[FEATURES]) {
  ad_collective sum = {.size = sizeof sum,
                       .op = AD_ALL_REDUCE,
                       .in = grad,
                       .out = grad,
                       .count = FEATURES,
                       .dtype = AD_F64,
                       .site = AD_HERE};
  return ad_comm_run(comm, &sum);
}

/* Submits this rank's gradient to the reducer, which sums it over all ranks; rank 0 prints the result. */
static ad_status step(ad_comm *comm, ad_reducer *reducer, const program *p) {
  double grad[FEATURES];
  ad_span samples = ad_cut(SAMPLES, ad_comm_rank(comm), ad_comm_size(comm));
  double count = p->divides_by_own_count ? (double)samples.count : SAMPLES;
  ad_array addend = ad_reducer_describe(reducer, 0);
  addend.data = grad;
  backward(samples, count, grad);
  if (p->sums_by_hand) AD_TRY(sum_by_hand(comm, grad));
  AD_TRY(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  AD_TRY(ad_reducer_divided_by(reducer, count));
  AD_TRY(ad_reducer_add(reducer, 0, &addend));
  AD_TRY(ad_reducer_end_microbatch(reducer));
  AD_TRY(ad_reducer_finish(reducer));
  if (ad_comm_rank(comm)) return AD_OK;
  printf("gradient %.6f ...\n", *(const double *)ad_reducer_gradient(reducer, 0)->data);
  return p->reference ? write_reference(p->reference) : AD_OK;
}

static int on_each_rank(ad_comm *comm, void *context) {
  ad_reducer *reducer = NULL;
  ad_param_spec w = {.size = sizeof w, .name = "w", .shape = {1, {FEATURES}}, .policy = {.param = AD_F64}};
  w.layout = w.storage = ad_layout_all(ad_comm_mesh(comm), AD_R);
  ad_status status = ad_reducer_create(comm, &w, 1, NULL, &reducer);
  if (!status) status = step(comm, reducer, context);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  ad_reducer_destroy(reducer);
  return status != AD_OK;
}

int main(int argc, char **argv) {
  program p = {0};
  for (int i = 1; i < argc; i++) {
    p.sums_by_hand |= !strcmp(argv[i], "--by-hand");
    p.divides_by_own_count |= !strcmp(argv[i], "--own-count");
    if (!strcmp(argv[i], "--reference") && i + 1 < argc) p.reference = argv[i + 1];
  }
  ad_launch_options options = {
      .size = sizeof options, .ranks = RANKS, .function = on_each_rank, .context = &p, .joins = 1};
  ad_launch_result result = {.size = sizeof result};
  if (ad_launch(&options, &result) == AD_OK) return 0;
  return fprintf(stderr, "%s\n", ad_last_error()), 1;
}
