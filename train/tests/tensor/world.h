/* A world of one rank and random arrays in it, shared by the tests of the tape. */
#ifndef TESTS_TENSOR_WORLD_H
#define TESTS_TENSOR_WORLD_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/tensor.h"
#include "base/random.h"
#include "rows/rows.h"

#define must(call) assert_int_equal((call), AD_OK)

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_layout layout; /* I on the mesh's one axis, so that a loss may start backward without a reduction */
} world;

static inline world world_open(void) {
  world w;
  must(ad_comm_open_alone(&w.comm));
  must(ad_mesh_create("tp=1", &w.mesh));
  must(ad_layout_parse(w.mesh, "tp=I", &w.layout));
  return w;
}

static inline void world_close(world *w) {
  ad_mesh_destroy(w->mesh);
  ad_comm_close(w->comm);
}

static inline ad_tape *open_tape(const world *w, ad_dtype dtype) {
  ad_tape *tape;
  ad_tape_options options = {.size = sizeof options, .dtype = dtype};
  must(ad_tape_create(w->comm, w->mesh, &options, &tape));
  return tape;
}

/* An array of this shape in malloc'ed memory: normal random numbers of stream `stream`, or indices below `below`. */
static inline ad_array random_array(const world *w, ad_dtype dtype, ad_shape shape, uint64_t stream, int32_t below) {
  ad_array array = ad_array_describe(w->comm, dtype, &shape, &w->layout);
  size_t n = ad_array_numel(&array);
  array.data = malloc(ad_array_bytes(&array) + 1);
  assert_non_null(array.data);
  for (size_t i = 0; i < n; i++) {
    if (dtype == AD_I32) ((int32_t *)array.data)[i] = (int32_t)(ad_random_bits(7, stream, i) % (uint64_t)below);
    if (dtype == AD_F32) ((float *)array.data)[i] = (float)ad_random_normal(7, stream, i);
    if (dtype == AD_F64) ((double *)array.data)[i] = ad_random_normal(7, stream, i);
    if (dtype == AD_BF16) ad_set_element(AD_BF16, array.data, i, ad_random_normal(7, stream, i));
  }
  return array;
}

static inline double element(const ad_array *array, size_t i) { return ad_element(array->dtype, array->data, i); }

/* A count of one microbatch, already summed, with the value `total`. */
static inline ad_count *summed_count(const world *w, int64_t total) {
  ad_count *count;
  must(ad_count_create(w->comm, &w->layout, 1, &count));
  must(ad_count_post(count, &total));
  must(ad_count_wait(count, NULL));
  return count;
}

/* L = sum(y * c) with a random constant c: makes a scalar loss of any y. */
static inline ad_tensor *project(const world *w, ad_tape *tape, ad_tensor *y, uint64_t stream, ad_array *c) {
  const ad_array *value = ad_tensor_array(y);
  if (!value) return y;
  *c = random_array(w, value->dtype, value->shape, stream, 0);
  return ad_sum(tape, ad_multiply(tape, y, ad_constant(tape, c)));
}

#endif
