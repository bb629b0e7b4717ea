/* The task "exchange": rows go to the ranks of their experts and back on a tape, without router and experts. routes.c
 * gives the routes of the rows. */
#include <stdio.h>
#include <stdlib.h>

#include "measured.h"
#include "bench/routes.h"
#include "tensor/routing.h"

struct bench_exchange {
  ad_mesh *mesh;
  ad_tape *tape;
  ad_array rows; /* [rows, width] V, in ordinary memory, like a tape's values */
  size_t per_expert[BENCH_EXPERTS];
  ad_routing routing;
  bench_routes routes;
};

static void route(bench_exchange *exchange, size_t rows, int rank, int ranks) {
  bench_routes_make(rows, rank, ranks, &exchange->routes);
  for (int e = 0; e < BENCH_EXPERTS; e++)
    exchange->per_expert[e] = bench_first_row(rows, rank, e + 1) - bench_first_row(rows, rank, e);
  exchange->routing = (ad_routing){.tokens = rows, .top_k = 1, .experts = BENCH_EXPERTS, .slots = rows};
  exchange->routing.per_expert = exchange->per_expert;
}

static ad_status make(bench_exchange *exchange, ad_comm *comm, size_t rows) {
  char text[32];
  snprintf(text, sizeof text, "ep=%lld", (long long)ad_comm_size(comm));
  route(exchange, rows, (int)ad_comm_rank(comm), (int)ad_comm_size(comm));
  AD_TRY(ad_mesh_create(text, &exchange->mesh));
  AD_TRY(ad_tape_create(comm, exchange->mesh, NULL, &exchange->tape));
  ad_layout layout;
  AD_TRY(ad_layout_parse(exchange->mesh, "ep=V", &layout));
  ad_shape shape = {2, {(int64_t)rows, BENCH_WIDTH}};
  exchange->rows = ad_array_describe(comm, AD_F32, &shape, &layout);
  float *memory = bench_ordinary_alloc(rows * BENCH_ROW_BYTES);
  if (!memory) return AD_MEMORY;
  bench_rows_sign(memory, &exchange->routes);
  exchange->rows.data = memory;
  return AD_OK;
}

ad_status bench_exchange_create(ad_comm *comm, const bench_task *task, bench_exchange **out) {
  bench_exchange *exchange = calloc(1, sizeof *exchange);
  if (!exchange) return AD_MEMORY;
  ad_status status = make(exchange, comm, task->bytes / BENCH_ROW_BYTES);
  if (status) return bench_exchange_destroy(exchange), status;
  *out = exchange;
  return AD_OK;
}

void bench_exchange_destroy(bench_exchange *exchange) {
  if (!exchange) return;
  if (exchange->tape) ad_tape_destroy(exchange->tape);
  if (exchange->mesh) ad_mesh_destroy(exchange->mesh);
  free(exchange->rows.data);
  free(exchange);
}

ad_status bench_exchange_run(bench_exchange *exchange, int looks) {
  ad_tape_reset(exchange->tape);
  ad_tensor *x = ad_input(exchange->tape, &exchange->rows);
  ad_tensor *placed = ad_dispatch(exchange->tape, x, &exchange->routing, "ep");
  ad_tensor *back = ad_return(exchange->tape, placed, &exchange->routing, "ep");
  AD_TRY(ad_tape_status(exchange->tape));
  if (!looks) return AD_OK;
  int right = bench_rows_are_placed(ad_tensor_array(placed)->data, &exchange->routes) &&
              bench_rows_are_back(ad_tensor_array(back)->data, &exchange->routes);
  return right ? AD_OK : AD_INVALID;
}
