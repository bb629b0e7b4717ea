/* Typed values for tests: arrays filled so that they mean what their types say, and the inner product of a value with a
 * value of the dual type. */
#ifndef TESTS_ARRAY_VALUES_H
#define TESTS_ARRAY_VALUES_H
#include <string.h>
#include "addend/array.h"
#include "addend/helpers.h"

/* Fills an array with random numbers: ranks that hold the same replica get the same numbers, all other ranks different
 * ones. */
static inline void fill_value(ad_comm *comm, ad_array *array, uint64_t stream) {
  ad_axes same = ad_layout_axes_of(&array->layout, AD_R) | ad_layout_axes_of(&array->layout, AD_I);
  ad_group replicas = ad_mesh_group(array->layout.mesh, same, ad_comm_rank(comm));
  double *data = array->data;
  for (size_t i = 0; i < ad_array_numel(array); i++) {
    data[i] = ad_random_normal(stream, (uint64_t)replicas.base, i);
  }
}

static inline ad_status sum_over_mesh(ad_comm *comm, const ad_mesh *mesh, double *value) {
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_REDUCE,
                        .in = value,
                        .out = value,
                        .count = 1,
                        .dtype = AD_F64,
                        .site = AD_HERE};
  call.group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  return ad_comm_run(comm, &call);
}

/* The inner product <value, dual>. An R value pairs with a P dual and a sharded value with a sharded dual: every rank
 * has an addend. An I value pairs with an I dual: both are the same everywhere, and count once. */
static inline ad_status pair(ad_comm *comm, const ad_array *value, const ad_array *dual, double *out) {
  const ad_mesh *mesh = value->layout.mesh;
  ad_group once = ad_mesh_group(mesh, ad_layout_axes_of(&value->layout, AD_I), ad_comm_rank(comm));
  const double *x = value->data, *y = dual->data;
  *out = 0;
  for (size_t i = 0; once.base == ad_comm_rank(comm) && i < ad_array_numel(value); i++) *out += x[i] * y[i];
  return sum_over_mesh(comm, mesh, out);
}

#endif
