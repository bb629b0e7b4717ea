/* Compares one operation on one mesh, written in two ways: values and gradients on real ranks in f64 must agree. Shared
 * by the tests of operations that communicate inside. */
#ifndef TESTS_TENSOR_TWO_WAYS_H
#define TESTS_TENSOR_TWO_WAYS_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/tensor.h"
#include "array/part.h"
#include "base/random.h"
#include "ranks.h"

enum { INPUTS_MAX = 3 };

typedef struct input {
  const char *layout;
  ad_shape shape;
  int32_t below; /* above 0: the input holds indices below this; 0: normal random numbers */
} input;

/* One operation on one mesh, written in two ways. */
typedef struct comparison {
  const char *mesh;
  input inputs[INPUTS_MAX];
  int input_count;
  ad_tensor *(*fused)(ad_tape *t, ad_tensor *const *x);
  ad_tensor *(*composed)(ad_tape *t, ad_tensor *const *x);
} comparison;

/* ---- full values, of which each rank takes its part ---- */

static inline void fill(ad_array *full, uint64_t stream, int32_t below) {
  for (size_t i = 0; i < ad_array_numel(full); i++) {
    uint64_t bits = ad_random_bits(7, stream, i);
    if (full->dtype == AD_I32)
      ((int32_t *)full->data)[i] = (int32_t)(bits % (uint64_t)(below + 1)) - 1; /* -1: this target does not count */
    else
      ((double *)full->data)[i] = ad_random_normal(7, stream, i);
  }
}

static inline ad_array make(ad_comm *comm, ad_dtype dtype, const ad_shape *shape, const ad_layout *layout,
                            uint64_t stream, int32_t below) {
  ad_layout everywhere = ad_layout_all(layout->mesh, AD_R);
  ad_array full = ad_array_describe(comm, dtype, shape, &everywhere);
  ad_array own = ad_array_describe(comm, dtype, shape, layout);
  full.data = malloc(ad_array_bytes(&full) + 1);
  own.data = malloc(ad_array_bytes(&own) + 1);
  CHECK(full.data && own.data);
  fill(&full, stream, below);
  ad_part all, mine;
  ad_part_of(&everywhere, shape, ad_comm_rank(comm), &all);
  ad_part_of(layout, shape, ad_comm_rank(comm), &mine);
  ad_part_copy(own.data, &mine, full.data, &all, &mine, ad_dtype_size(dtype));
  free(full.data);
  return own;
}

/* ---- running the operation in one of both ways ---- */

typedef struct outcome {
  double *value, *gradient[INPUTS_MAX];
  size_t value_count, gradient_count[INPUTS_MAX];
} outcome;

static inline double *copy_of(const ad_array *array, size_t *count) {
  *count = ad_array_numel(array);
  double *copy = malloc(*count * sizeof *copy + 1);
  CHECK(copy);
  memcpy(copy, array->data, *count * sizeof *copy);
  return copy;
}

/* The sum of y times random weights, or y itself if it is a scalar. */
static inline ad_tensor *loss_of(ad_tape *t, ad_comm *comm, ad_tensor *y, ad_array *weights) {
  const ad_array *value = ad_tensor_array(y);
  if (!value || !value->shape.ndim) return y;
  *weights = make(comm, AD_F64, &value->shape, &value->layout, 99, 0);
  return ad_sum(t, ad_multiply(t, y, ad_constant(t, weights)));
}

static inline outcome run(ad_comm *comm, const ad_mesh *mesh, const comparison *c, const ad_array *arrays, int fused) {
  outcome out = {0};
  ad_tape *t;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_tensor *x[INPUTS_MAX] = {NULL};
  ad_array weights = {0};
  CHECK_OK(ad_tape_create(comm, mesh, &options, &t));
  for (int i = 0; i < c->input_count; i++)
    x[i] = c->inputs[i].below ? ad_constant(t, &arrays[i]) : ad_input(t, &arrays[i]);
  ad_tensor *y = (fused ? c->fused : c->composed)(t, x);
  CHECK_OK(ad_tape_status(t));
  out.value = copy_of(ad_tensor_array(y), &out.value_count);
  CHECK_OK(ad_backward(t, loss_of(t, comm, y, &weights)));
  for (int i = 0; i < c->input_count; i++)
    if (!c->inputs[i].below) out.gradient[i] = copy_of(ad_grad(x[i]), &out.gradient_count[i]);
  free(weights.data);
  ad_tape_destroy(t);
  return out;
}

static inline void check_near(const double *a, const double *b, size_t count) {
  for (size_t i = 0; i < count; i++) CHECK(fabs(a[i] - b[i]) <= 1e-12 * (1 + fabs(b[i])));
}

static inline void release(outcome *out) {
  free(out->value);
  for (int i = 0; i < INPUTS_MAX; i++) free(out->gradient[i]);
}

/* One rank's mesh and parts of the inputs. */
typedef struct rank_case {
  ad_mesh *mesh;
  ad_array arrays[INPUTS_MAX];
} rank_case;

static inline rank_case case_open(ad_comm *comm, const comparison *c) {
  rank_case r = {0};
  CHECK_OK(ad_mesh_create(c->mesh, &r.mesh));
  for (int i = 0; i < c->input_count; i++) {
    ad_layout layout;
    const input *in = &c->inputs[i];
    CHECK_OK(ad_layout_parse(r.mesh, in->layout, &layout));
    r.arrays[i] = make(comm, in->below ? AD_I32 : AD_F64, &in->shape, &layout, (uint64_t)i, in->below);
  }
  return r;
}

static inline void case_close(rank_case *r) {
  for (int i = 0; i < INPUTS_MAX; i++) free(r->arrays[i].data);
  ad_mesh_destroy(r->mesh);
}

static inline int compare_ways(ad_comm *comm, void *context) {
  const comparison *c = context;
  rank_case r = case_open(comm, c);
  outcome fused = run(comm, r.mesh, c, r.arrays, 1), composed = run(comm, r.mesh, c, r.arrays, 0);
  CHECK(fused.value_count == composed.value_count);
  check_near(fused.value, composed.value, fused.value_count);
  for (int i = 0; i < c->input_count; i++) {
    CHECK(fused.gradient_count[i] == composed.gradient_count[i]);
    check_near(fused.gradient[i], composed.gradient[i], fused.gradient_count[i]);
  }
  release(&fused);
  release(&composed);
  case_close(&r);
  return 0;
}

static inline void compare(comparison c) {
  ad_mesh *mesh;
  assert_int_equal(ad_mesh_create(c.mesh, &mesh), AD_OK);
  int64_t ranks = ad_mesh_size(mesh);
  ad_mesh_destroy(mesh);
  run_ranks(ranks, compare_ways, &c);
}

#define SHAPE(n, ...) ((ad_shape){(n), {__VA_ARGS__}})

#endif
