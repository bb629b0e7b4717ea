/* A small model for reducer tests: its parameters, and gradients that every rank can compute for every other, so that
 * the right sum is known without communication. */
#ifndef TESTS_REDUCE_GRADIENTS_H
#define TESTS_REDUCE_GRADIENTS_H
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "addend/reduce.h"
#include "addend/helpers.h"
#include "ranks.h"

enum { PARAMS = 5, MICROBATCHES_MAX = 8 };

typedef struct model {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_param_spec params[PARAMS];
  ad_reducer *reducer;
  ad_dtype dtype;
} model;

static const ad_shape param_shapes[PARAMS] = {{2, {5, 3}}, {1, {7}}, {2, {4, 2}}, {1, {0}}, {2, {3, 4}}};
static const char *const param_names[PARAMS] = {"embedding", "norm", "query", "nothing", "head"};

/* Parameters are typed R; on a tp axis the last parameter is sharded and the second is typed I. */
static inline void describe_params(model *m, ad_dtype dtype) {
  int has_tp = ad_mesh_axis_size(m->mesh, AD_TP) > 1;
  m->dtype = dtype;
  for (int i = 0; i < PARAMS; i++) {
    ad_param_spec *spec = &m->params[i];
    *spec = (ad_param_spec){.size = sizeof(ad_param_spec),
                            .name = param_names[i],
                            .shape = param_shapes[i],
                            .layout = ad_layout_all(m->mesh, AD_R)};
    if (has_tp && i == 4) ad_layout_set(&spec->layout, AD_AXES(AD_TP), AD_S(1));
    if (has_tp && i == 1) ad_layout_set(&spec->layout, AD_AXES(AD_TP), AD_I);
    spec->storage = spec->layout;
    spec->policy = (ad_precision_policy){.param = dtype};
  }
}

static inline void shard_storage(model *m) {
  for (int i = 0; i < PARAMS; i++) ad_layout_set(&m->params[i].storage, AD_AXES(AD_DP_SHARD), AD_S(0));
}

/* Each replica updates a part of its shards (HFSDP). */
static inline void shard_updates(model *m) {
  for (int i = 0; i < PARAMS; i++) {
    m->params[i].update = m->params[i].storage;
    ad_layout_set(&m->params[i].update, AD_AXES(AD_DP_REPLICATE), AD_S(0));
  }
}

/* The layout of the result. */
static inline const ad_layout *result_layout(const model *m, int param) {
  const ad_param_spec *spec = &m->params[param];
  return spec->update.mesh ? &spec->update : &spec->storage;
}

/* The index, in the gradient that this rank submitted, of the first element of its shard of the result. */
static inline size_t result_start(const model *m, int param) {
  const ad_param_spec *spec = &m->params[param];
  int64_t rank = ad_comm_rank(m->comm);
  ad_shape local = ad_layout_local_shape(&spec->layout, &spec->shape, rank);
  ad_span rows = {0};
  ad_layout_spans(result_layout(m, param), 0, spec->shape.dim[0], rank, &rows, 1);
  return local.dim[0] ? (size_t)(rows.first * (ad_shape_numel(&local) / local.dim[0])) : 0;
}

static inline void open_model(model *m, ad_comm *comm, const char *mesh, ad_dtype dtype) {
  *m = (model){.comm = comm};
  CHECK_OK(ad_mesh_create(mesh, &m->mesh));
  describe_params(m, dtype);
}

static inline void close_model(model *m) {
  ad_reducer_destroy(m->reducer);
  ad_mesh_destroy(m->mesh);
}

static inline void create_reducer(model *m, size_t bucket_bytes) {
  ad_reducer_options options = {.size = sizeof options, .bucket_bytes = bucket_bytes};
  CHECK_OK(ad_reducer_create(m->comm, m->params, PARAMS, &options, &m->reducer));
}

/* One element of the addend of `rank` in `microbatch`. Ranks that do the same work on an I axis have the same addend.
 * Addends and their sums are exact in f32. */
static inline double addend_of(const model *m, int param, int64_t rank, int microbatch, size_t element) {
  ad_layout gradient = ad_layout_dual(&m->params[param].layout);
  ad_group same = ad_mesh_group(m->mesh, ad_layout_axes_of(&gradient, AD_I), rank);
  uint64_t stream = (uint64_t)same.base * 1000 + (uint64_t)microbatch * 100 + (uint64_t)param;
  return floor(ad_random_uniform(11, stream, element) * 64) - 20;
}

static inline ad_array describe_gradient(const model *m, int param) {
  ad_layout layout = ad_layout_dual(&m->params[param].layout);
  return ad_array_describe(m->comm, m->dtype, &m->params[param].shape, &layout);
}

static inline void put_number(void *data, ad_dtype dtype, size_t i, double value) {
  if (dtype == AD_F64) {
    ((double *)data)[i] = value;
  } else {
    ((float *)data)[i] = (float)value;
  }
}

static inline double number_at(const void *data, ad_dtype dtype, size_t i) {
  return dtype == AD_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static inline void add_gradient(model *m, int param, int microbatch) {
  double memory[64];
  ad_array grad = describe_gradient(m, param);
  grad.data = memory;
  for (size_t i = 0; i < ad_array_numel(&grad); i++) {
    put_number(memory, m->dtype, i, addend_of(m, param, ad_comm_rank(m->comm), microbatch, i));
  }
  CHECK_OK(ad_reducer_add(m->reducer, (size_t)param, &grad));
}

/* Writes a gradient directly into its bucket, as backward does where the reducer offers memory. */
static inline void write_gradient(model *m, int param, int microbatch) {
  ad_array target;
  int adds;
  CHECK_OK(ad_reducer_target(m->reducer, (size_t)param, &target, &adds));
  CHECK(target.data != NULL && target.dtype == m->dtype);
  for (size_t i = 0; i < ad_array_numel(&target); i++) {
    double before = adds ? number_at(target.data, m->dtype, i) : 0;
    put_number(target.data, m->dtype, i, before + addend_of(m, param, ad_comm_rank(m->comm), microbatch, i));
  }
  CHECK_OK(ad_reducer_add(m->reducer, (size_t)param, &target));
}

/* The microbatches of a step. Bit p of present[microbatch]: parameter p has a gradient there. */
typedef struct schedule {
  int microbatches;
  unsigned present[MICROBATCHES_MAX];
  ad_sync sync[MICROBATCHES_MAX];
} schedule;

static inline schedule full_schedule(int microbatches) {
  schedule s = {.microbatches = microbatches};
  for (int i = 0; i < microbatches; i++) {
    s.present[i] = (1u << PARAMS) - 1;
    s.sync[i] = i + 1 < microbatches ? (i % 2 ? AD_SYNC_SHARD : AD_SYNC_NONE) : AD_SYNC_ALL;
  }
  return s;
}

/* Runs one microbatch: ranks submit their gradients in different orders, and every second rank writes
 * into the bucket. */
static inline void run_microbatch(model *m, const schedule *s, int microbatch) {
  int odd = (int)(ad_comm_rank(m->comm) % 2);
  CHECK_OK(ad_reducer_begin_microbatch(m->reducer, s->sync[microbatch]));
  for (int k = 0; k < PARAMS; k++) {
    int param = odd ? k : PARAMS - 1 - k;
    if (!(s->present[microbatch] >> param & 1)) continue;
    if ((param + microbatch) % 2) {
      add_gradient(m, param, microbatch);
    } else {
      write_gradient(m, param, microbatch);
    }
  }
  CHECK_OK(ad_reducer_end_microbatch(m->reducer));
}

static inline ad_status run_step(model *m, const schedule *s) {
  for (int i = 0; i < s->microbatches; i++) run_microbatch(m, s, i);
  return ad_reducer_finish(m->reducer);
}

static inline double expected_sum(const model *m, const schedule *s, int param, size_t element) {
  ad_layout gradient = ad_layout_dual(&m->params[param].layout);
  ad_group group = ad_mesh_group(m->mesh, ad_layout_axes_of(&gradient, AD_P), ad_comm_rank(m->comm));
  double sum = 0;
  for (int microbatch = 0; microbatch < s->microbatches; microbatch++)
    for (int64_t i = 0; s->present[microbatch] >> param & 1 && i < ad_group_size(&group); i++) {
      sum += addend_of(m, param, ad_group_rank(&group, i), microbatch, element);
    }
  return sum;
}

/* Returns 1 if every gradient is `factor` times the right sum. */
static inline int sums_are(const model *m, const schedule *s, double factor) {
  for (int param = 0; param < PARAMS; param++) {
    const ad_array *grad = ad_reducer_gradient(m->reducer, (size_t)param);
    CHECK(ad_layout_equal(&grad->layout, result_layout(m, param)) && grad->dtype == m->dtype);
    for (size_t i = 0; i < ad_array_numel(grad); i++) {
      double want = factor * expected_sum(m, s, param, result_start(m, param) + i),
             error = number_at(grad->data, grad->dtype, i) - want;
      if (!(fabs(error) <= 1e-5 * (1 + fabs(want)))) return 0;
    }
  }
  return 1;
}

#endif
