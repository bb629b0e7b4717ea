/* Loads a rank's parts of what PyTorch computed for a single operation, and compares values with them. */
#ifndef TESTS_ORACLE_BENCH_H
#define TESTS_ORACLE_BENCH_H
#include <stdint.h>
#include <stdio.h>
#include "addend/tensor.h"
#include "array/part.h"
#include "numbers.h"
#include "ranks.h"

/* The same bound as in test_gpt.c. */
static const double bound = 1e-12;

/* A fixture opened on one rank. */
typedef struct bench {
  const char *fixture, *on;
  ad_comm *comm;
  ad_mesh *mesh;
  ad_safetensors *file;
  ad_tape *tape;
  double worst;
} bench;

/* ---- opening a fixture on a rank ---- */

static inline bench bench_open(ad_comm *comm, const char *fixture, const char *mesh) {
  bench b = {.fixture = fixture, .on = mesh, .comm = comm};
  char path[128];
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  snprintf(path, sizeof path, FIXTURES "operations/%s.safetensors", fixture);
  CHECK_OK(ad_safetensors_open(path, &b.file));
  CHECK_OK(ad_mesh_create(mesh, &b.mesh));
  CHECK_OK(ad_tape_create(comm, b.mesh, &options, &b.tape));
  return b;
}

static inline void bench_close(bench *b) {
  printf("%s, %s, rank %lld: worst error %.1e\n", b->fixture, b->on, (long long)ad_comm_rank(b->comm), b->worst);
  fflush(stdout);
  ad_tape_destroy(b->tape);
  ad_mesh_destroy(b->mesh);
  ad_safetensors_close(b->file);
}

/* This rank's part, in `layout`, of the fixture's tensor of this name. */
static inline ad_array part_of(const bench *b, const char *name, const ad_layout *layout) {
  const ad_safetensor *full = ad_safetensors_find(b->file, name);
  CHECK(full);
  ad_layout everywhere = ad_layout_all(b->mesh, AD_R);
  ad_array own = ad_array_describe(b->comm, full->dtype, &full->shape, layout);
  ad_part all, mine;
  ad_part_of(&everywhere, &full->shape, ad_comm_rank(b->comm), &all);
  ad_part_of(layout, &full->shape, ad_comm_rank(b->comm), &mine);
  own.data = malloc(ad_array_bytes(&own) + 1);
  CHECK(own.data);
  ad_part_copy(own.data, &mine, full->data, &all, &mine, ad_dtype_size(own.dtype));
  return own;
}

/* Compares with PyTorch's numbers at the same places, relative to the largest of the full tensor; if that is 0, only 0
 * is right. */
static inline void judge(bench *b, const char *name, const double *found, const double *expected, size_t count) {
  size_t n;
  char words[256];
  double *full = numbers(b->file, name, &n);
  CHECK(full);
  double worst = worst_difference(found, expected, count), size = largest(full, n);
  if (size > 0)
    worst /= size;
  else if (worst > 0)
    worst = INFINITY;
  free(full);
  b->worst = fmax(b->worst, worst);
  if (worst < bound) return;
  snprintf(words, sizeof words, "%s, %s: %s is off by %.3g", b->fixture, b->on, name, worst);
  rank_check_failed(__FILE__, __LINE__, words);
}

static inline void judge_part(bench *b, const char *name, const ad_array *found) {
  CHECK(found && found->dtype == AD_F64);
  ad_array expected = part_of(b, name, &found->layout);
  CHECK(ad_shape_equal(&expected.shape, &found->shape) && ad_shape_equal(&expected.local, &found->local));
  judge(b, name, found->data, expected.data, ad_array_numel(found));
  free(expected.data);
}

/* Compares a full value: the sum of addends, or the gathered parts. */
static inline void judge_full(bench *b, const char *name, const ad_array *found) {
  size_t n;
  double *expected = numbers(b->file, name, &n);
  CHECK(expected && found && found->dtype == AD_F64 && (int64_t)n == ad_shape_numel(&found->shape));
  ad_array full = {.data = malloc(n * sizeof *expected + 1)};
  CHECK(full.data);
  CHECK_OK(ad_array_full(b->comm, found, &full));
  judge(b, name, full.data, expected, n);
  free(full.data);
  free(expected);
}

static inline ad_layout parsed(const bench *b, const char *text) {
  ad_layout layout;
  CHECK_OK(ad_layout_parse(b->mesh, text, &layout));
  return layout;
}

#endif
