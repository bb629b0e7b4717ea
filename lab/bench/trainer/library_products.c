/* The task "grouped": products of rows with their experts' matrices, forward and backward, on one rank. For comparison:
 * one product of all rows with one matrix. */
#include <stdlib.h>

#include "measured.h"
#include "bench/routes.h"
#include "tensor/routing.h"

enum { COLUMNS = 1024 };
enum { X, W, DY, VALUES };

struct bench_products {
  ad_mesh *mesh;
  ad_tape *tape;
  int is_one;
  ad_array value[VALUES];
  size_t rows_of_expert[BENCH_EXPERTS];
  ad_routing routing;
};

static ad_status make_value(bench_products *products, ad_comm *comm, ad_shape shape, ad_array *out) {
  ad_layout layout = ad_layout_all(products->mesh, AD_V);
  *out = ad_array_describe(comm, AD_F32, &shape, &layout);
  float *memory = malloc(ad_array_bytes(out));
  if (!memory) return AD_MEMORY;
  for (size_t i = 0; i < ad_array_numel(out); i++) memory[i] = 1e-3f * (float)(i % 1000);
  out->data = memory;
  return AD_OK;
}

static ad_status make(bench_products *products, ad_comm *comm, int64_t rows) {
  ad_shape one = {2, {BENCH_WIDTH, COLUMNS}}, each = {3, {BENCH_EXPERTS, BENCH_WIDTH, COLUMNS}};
  AD_TRY(ad_mesh_create("ep=1", &products->mesh));
  AD_TRY(ad_tape_create(comm, products->mesh, NULL, &products->tape));
  AD_TRY(make_value(products, comm, (ad_shape){2, {rows, BENCH_WIDTH}}, &products->value[X]));
  AD_TRY(make_value(products, comm, products->is_one ? one : each, &products->value[W]));
  AD_TRY(make_value(products, comm, (ad_shape){2, {rows, COLUMNS}}, &products->value[DY]));
  for (int e = 0; e < BENCH_EXPERTS; e++)
    products->rows_of_expert[e] = bench_first_row((size_t)rows, 0, e + 1) - bench_first_row((size_t)rows, 0, e);
  products->routing = (ad_routing){.received = (size_t)rows, .own_experts = BENCH_EXPERTS};
  products->routing.rows_of_expert = products->rows_of_expert;
  return AD_OK;
}

ad_status bench_products_create(ad_comm *comm, const bench_task *task, int is_one, bench_products **out) {
  bench_products *products = calloc(1, sizeof *products);
  if (!products) return AD_MEMORY;
  products->is_one = is_one;
  ad_status status = make(products, comm, (int64_t)(task->bytes / BENCH_ROW_BYTES));
  if (status) return bench_products_destroy(products), status;
  *out = products;
  return AD_OK;
}

void bench_products_destroy(bench_products *products) {
  if (!products) return;
  if (products->tape) ad_tape_destroy(products->tape);
  if (products->mesh) ad_mesh_destroy(products->mesh);
  for (int i = 0; i < VALUES; i++) free(products->value[i].data);
  free(products);
}

ad_status bench_products_run(bench_products *products) {
  ad_tape *t = products->tape;
  ad_tape_reset(t);
  ad_tensor *x = ad_input(t, &products->value[X]), *w = ad_input(t, &products->value[W]);
  ad_tensor *y = products->is_one ? ad_linear(t, x, w) : ad_grouped_linear(t, x, w, &products->routing);
  return ad_backward_from(t, &y, (const ad_array *[]){&products->value[DY]}, 1, AD_LAST_START);
}
