/* One parameter's addends and sum, made in memory: no files are written, and every number of them is the test's. */
#ifndef TESTS_DIFF_MADE_PARTS_H
#define TESTS_DIFF_MADE_PARTS_H
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "solve/explain.h"
#include "base/memory.h"
#include "read/mesh.h"

/* A parameter of one dimension on the mesh "dp=ranks", whose sum is one part that all ranks hold. */
typedef struct made_parts {
  double *values; /* [addend][element]: addend number is rank * microbatches + microbatch */
  double *sum;    /* [element] */
  size_t count, elements;
  ad_safetensor *tensors; /* of each addend, then of the sum */
  ad_piece term;
  ad_dump_file file; /* represents every addend's file */
  ad_firsts firsts;
  ad_dump dump;
  ad_dump_param param;
  ad_members members;
  ad_part part;
  ad_parts parts;
} made_parts;

static inline void *made(size_t count, size_t size) {
  void *memory = calloc(count, size);
  assert_non_null(memory);
  return memory;
}

static inline void make_addends(made_parts *m, int ranks, int microbatches) {
  int32_t(*position)[AD_DUMP_AXES] = made((size_t)ranks, sizeof *position);
  m->dump.position = position;
  m->dump.addends = made(m->count, sizeof *m->dump.addends);
  m->file.divisor = NAN;
  m->members.columns = made(m->count, sizeof *m->members.columns);
  m->members.ranks = made(m->count, sizeof *m->members.ranks);
  m->members.count = m->count;
  for (int c = 0; c < ranks * microbatches; c++) {
    m->tensors[c] = m->tensors[m->count];
    m->tensors[c].data = m->values + (size_t)c * m->elements;
    ad_piece piece = {&m->tensors[c], m->part.box, NULL, c / microbatches, c % microbatches};
    m->members.columns[c] = (ad_column){piece, NAN};
    m->members.ranks[c] = c / microbatches;
    m->dump.addends[c] = &m->file;
    position[c / microbatches][0] = c / microbatches;
  }
  ad_members_measure(&m->parts, &m->members);
}

/* Makes addends and a sum that are all 0, in f64; release them by drop_parts. The object must stay where it is. */
static inline void make_parts(made_parts *m, int ranks, int microbatches, size_t elements) {
  char mesh[32];
  *m = (made_parts){.count = (size_t)(ranks * microbatches), .elements = elements};
  snprintf(mesh, sizeof mesh, "dp=%d", ranks);
  assert_int_equal(ad_dump_mesh_parse(mesh, &m->dump.mesh), AD_OK);
  m->dump.microbatches = microbatches;
  m->values = made(m->count * elements, sizeof *m->values);
  m->sum = made(elements, sizeof *m->sum);
  m->tensors = made(m->count + 1, sizeof *m->tensors);
  m->param = (ad_dump_param){.name = "w", .shape = {1, {(int64_t)elements}}, .summed = 1, .expect = 1};
  m->param.numel = m->param.sample = (int64_t)elements;
  m->tensors[m->count] = (ad_safetensor){
      .name = "w", .dtype = AD_F64, .shape = m->param.shape, .data = m->sum, .bytes = elements * sizeof(double)};
  m->part = (ad_part){.box = ad_box_full(&m->param.shape), .count = elements, .terms = &m->term, .term_count = 1};
  m->term = (ad_piece){.tensor = &m->tensors[m->count], .box = m->part.box};
  m->parts = (ad_parts){.dump = &m->dump, .param = &m->param, .members = &m->members, .member_count = 1};
  m->parts.parts = &m->part;
  m->parts.count = 1;
  m->parts.buffer = made(5 * AD_ROWS, sizeof(double));
  m->parts.rows = m->parts.buffer + AD_ROWS;
  m->parts.firsts = &m->firsts;
  make_addends(m, ranks, microbatches);
}

static inline void drop_parts(made_parts *m) {
  free(m->dump.position);
  free(m->dump.addends);
  free(m->members.columns);
  free(m->members.ranks);
  free(m->values);
  free(m->sum);
  free(m->tensors);
  free(m->parts.buffer);
  ad_release(m->firsts.values);
}

/* Gives each addend its own elements, where all others are 0: each is 1, -1, 2 or -2. */
static inline void fill_apart(made_parts *m) {
  for (size_t i = 0; i < m->elements; i++)
    m->values[i % m->count * m->elements + i] = (i / m->count % 2 ? -1 : 1) * (i / m->count % 3 ? 1.0 : 2.0);
}

/* Sets the sum to the addends times `counts`, times the expected factor. */
static inline void sum_up(made_parts *m, const double *counts) {
  for (size_t i = 0; i < m->elements; i++) {
    m->sum[i] = 0;
    for (size_t c = 0; c < m->count; c++) m->sum[i] += counts[c] * m->values[c * m->elements + i];
    m->sum[i] *= m->param.expect;
  }
}

#endif
