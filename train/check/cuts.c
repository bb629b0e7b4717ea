/* Finds at which rows and columns the blocks begin that ranks store of each matrix. */
#include "check/cuts.h"

#include "base/memory.h"
#include "layout/type.h"
#include "reduce/plan.h"

/* Adds `at` to an ascending list, unless the list has it. */
static void insert(int64_t at, int64_t *list, size_t *count) {
  size_t place = *count;
  while (place && list[place - 1] > at) place--;
  if (place && list[place - 1] == at) return;
  for (size_t i = (*count)++; i > place; i--) list[i] = list[i - 1];
  list[place] = at;
}

/* Writes where a block begins along a dimension, without 0, to `list`. Returns how many places there are, which is less
 * than the number of ranks. */
static size_t cuts_along(const ad_param_spec *spec, int dimension, int64_t *list) {
  const ad_mesh *mesh = spec->storage.mesh;
  int64_t first = ad_mesh_first_rank(mesh);
  size_t count = 0;
  for (int64_t rank = first; rank < first + ad_mesh_size(mesh); rank++) {
    ad_span span;
    int spans = ad_layout_spans(ad_param_update(spec), dimension, spec->shape.dim[dimension], rank, &span, 1);
    if (spans && span.first) insert(span.first, list, &count);
  }
  return count;
}

/* The most places of one dimension: fewer than ranks. */
static size_t most_cuts(const ad_run *run) { return (size_t)ad_comm_size(ad_run_comm(run)); }

static ad_status find_cuts(const ad_run *run, ad_cuts *out) {
  out->count = ad_run_param_count(run);
  AD_TRY(ad_new(out->count, &out->list));
  AD_TRY(ad_new(2 * out->count * most_cuts(run), &out->numbers));
  int64_t *at = out->numbers;
  for (size_t i = 0; i < out->count; i++) {
    const ad_param_spec *spec = ad_run_param_at(run, i).spec;
    if (spec->shape.ndim < 2) continue;
    ad_matrix_cuts *cuts = &out->list[i];
    cuts->rows = at;
    at += cuts->row_count = cuts_along(spec, spec->shape.ndim - 2, at);
    cuts->cols = at;
    at += cuts->col_count = cuts_along(spec, spec->shape.ndim - 1, at);
  }
  return AD_OK;
}

ad_status ad_cuts_create(const ad_run *run, ad_cuts *out) {
  *out = (ad_cuts){0};
  ad_status status = find_cuts(run, out);
  if (status) ad_cuts_release(out);
  return status;
}

void ad_cuts_release(ad_cuts *cuts) {
  ad_release(cuts->list);
  ad_release(cuts->numbers);
  *cuts = (ad_cuts){0};
}
