/* The task "bridge" with addend: a batch goes over a bridge and its gradient back, in memory that all ranks share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "sides.h"

struct bench_bridge {
  ad_comm *comm;
  ad_mesh *from, *to;
  ad_bridge *bridge;
  bench_sides sides;
  ad_array source, destination, destination_gradient, source_gradient;
};

static ad_status make_side(const char *words, int64_t parts, const char *types, ad_mesh **mesh, ad_layout *layout) {
  char text[64];
  snprintf(text, sizeof text, words, (long long)parts);
  AD_TRY(ad_mesh_create(text, mesh));
  return ad_layout_parse(*mesh, types, layout);
}

static ad_status join(bench_bridge *bridge) {
  bench_direction direction = bridge->sides.direction;
  int64_t ranks = ad_comm_size(bridge->comm);
  ad_layout from, to;
  if (direction == BENCH_FAN_OUT)
    AD_TRY(make_side("dp=%lld tp=2", ranks / 2, "dp=S0 tp=I", &bridge->from, &from));
  else
    AD_TRY(make_side("dp=%lld", ranks, "dp=S0", &bridge->from, &from));
  if (direction == BENCH_FAN_IN)
    AD_TRY(make_side("dp=%lld cp=2", ranks / 2, "dp=S0 cp=R", &bridge->to, &to));
  else
    AD_TRY(make_side("dp=%lld", ranks, "dp=S0", &bridge->to, &to));
  return ad_bridge_create(bridge->comm, &from, &to, NULL, &bridge->bridge);
}

static ad_status give_memory(bench_bridge *bridge, ad_array *array) {
  return ad_array_create(bridge->comm, AD_F32, &array->shape, &array->layout, array);
}

/* If the bridge need not move data, source and destination share their memory, as they do on a tape. */
static ad_status make_arrays(bench_bridge *b) {
  int64_t rows = (int64_t)(b->sides.bytes / sizeof(float) / BENCH_BATCH_ROW);
  ad_shape shape = {2, {rows, BENCH_BATCH_ROW}};
  AD_TRY(ad_bridge_describe(b->bridge, AD_F32, &shape, AD_FORWARD, &b->source, &b->destination));
  AD_TRY(ad_bridge_describe(b->bridge, AD_F32, &shape, AD_BACKWARD, &b->source_gradient, &b->destination_gradient));
  AD_TRY(give_memory(b, &b->source));
  AD_TRY(give_memory(b, &b->destination_gradient));
  if (ad_bridge_is_local(b->bridge, rows)) {
    b->destination.data = b->source.data;
    b->source_gradient.data = b->destination_gradient.data;
    return AD_OK;
  }
  AD_TRY(give_memory(b, &b->destination));
  return give_memory(b, &b->source_gradient);
}

static ad_status make(bench_bridge *bridge, const bench_task *task) {
  if (bench_sides_make(task, (int)ad_comm_rank(bridge->comm), (int)ad_comm_size(bridge->comm), &bridge->sides))
    return AD_INVALID;
  AD_TRY(join(bridge));
  return make_arrays(bridge);
}

ad_status bench_bridge_create(ad_comm *comm, const bench_task *task, bench_bridge **out) {
  bench_bridge *bridge = calloc(1, sizeof *bridge);
  if (!bridge) return AD_MEMORY;
  bridge->comm = comm;
  ad_status status = make(bridge, task);
  if (status) return bench_bridge_destroy(bridge), status;
  *out = bridge;
  return AD_OK;
}

void bench_bridge_destroy(bench_bridge *bridge) {
  if (!bridge) return;
  if (bridge->destination.data != bridge->source.data) ad_array_destroy(bridge->comm, &bridge->destination);
  if (bridge->source_gradient.data != bridge->destination_gradient.data)
    ad_array_destroy(bridge->comm, &bridge->source_gradient);
  ad_array_destroy(bridge->comm, &bridge->source);
  ad_array_destroy(bridge->comm, &bridge->destination_gradient);
  ad_bridge_destroy(bridge->bridge);
  ad_mesh_destroy(bridge->from);
  ad_mesh_destroy(bridge->to);
  free(bridge);
}

static ad_status there_and_back(bench_bridge *bridge) {
  AD_TRY(ad_bridge_forward(bridge->bridge, &bridge->source, &bridge->destination));
  return ad_bridge_backward(bridge->bridge, &bridge->destination_gradient, &bridge->source_gradient);
}

/* Runs once with known numbers and checks the results. Then sets the gradients to zero: they are summed in place, so
 * that other values would grow from run to run. */
static ad_status look(bench_bridge *bridge) {
  const bench_sides *sides = &bridge->sides;
  bench_side_fill(bridge->source.data, &sides->source);
  bench_side_fill(bridge->destination_gradient.data, &sides->destination);
  AD_TRY(there_and_back(bridge));
  int right = bench_side_holds(bridge->destination.data, &sides->destination, 1) &&
              bench_side_holds(bridge->source_gradient.data, &sides->source, bench_sides_addends(sides));
  memset(bridge->destination_gradient.data, 0, ad_array_bytes(&bridge->destination_gradient));
  return right ? AD_OK : AD_INVALID;
}

ad_status bench_bridge_run(bench_bridge *bridge, int looks) { return looks ? look(bridge) : there_and_back(bridge); }
