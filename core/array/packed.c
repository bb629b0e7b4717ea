/* Computes which rows of packed values a rank holds, and describes these rows to a collective. Nothing here
 * communicates. */
#include "array/packed.h"
#include "array/array.h"

#include "base/error.h"
#include "kernels/kernels.h"
#include "comm/scratch.h"
#include "layout/nest.h"
#include "mesh/mesh.h"

/* How a layout shards rows for one rank, outermost axis first: on the i-th of these axes the rank is member index[i] of
 * members[i] members. */
typedef struct row_cuts {
  int count;
  int64_t index[AD_AXIS_COUNT], members[AD_AXIS_COUNT];
} row_cuts;

/* Returns how the layout shards rows for `rank`; axes of size 1 are left out. */
static row_cuts cuts_of(const ad_layout *layout, int64_t rank) {
  row_cuts cuts = {0};
  int depths = __builtin_popcount(ad_layout_axes_sharding(layout, 0));
  for (int depth = 0; depth < depths; depth++) {
    ad_axis axis = ad_layout_sharded_at(layout, 0, depth);
    int64_t members = ad_mesh_axis_size(layout->mesh, axis);
    if (members == 1) continue;
    cuts.index[cuts.count] = ad_mesh_position(layout->mesh, rank, axis);
    cuts.members[cuts.count++] = members;
  }
  return cuts;
}

/* Returns the rows that belong to the rank of `cuts`, from a value with `rows` rows. */
static ad_span own_rows(const row_cuts *cuts, int64_t rows) {
  ad_span own = {0, rows};
  for (int i = 0; i < cuts->count; i++) {
    ad_span inner = ad_cut(own.count, cuts->index[i], cuts->members[i]);
    own = (ad_span){own.first + inner.first, inner.count};
  }
  return own;
}

/* Returns how many elements of the first `count` segments belong to the rank of `cuts`. */
static size_t elements_in(const ad_segment *segments, size_t count, const row_cuts *cuts) {
  size_t elements = 0;
  for (size_t i = 0; i < count; i++) elements += (size_t)own_rows(cuts, segments[i].rows).count * segments[i].row;
  return elements;
}

ad_segment ad_segment_of(const ad_shape *shape) {
  ad_segment segment = {shape->ndim ? shape->dim[0] : 1, 1};
  for (int dim = 1; dim < shape->ndim; dim++) segment.row *= (size_t)shape->dim[dim];
  return segment;
}

size_t ad_packed_local(const ad_array *array, int64_t rank) {
  row_cuts cuts = cuts_of(&array->layout, rank);
  return cuts.count ? elements_in(array->segments, array->segment_count, &cuts) : (size_t)array->shape.dim[0];
}

void ad_packed_stretch(const ad_array *array, int64_t rank, size_t index, size_t *start, size_t *numel) {
  row_cuts cuts = cuts_of(&array->layout, rank);
  *start = elements_in(array->segments, index, &cuts);
  *numel = (size_t)own_rows(&cuts, array->segments[index].rows).count * array->segments[index].row;
}

ad_array ad_array_describe_packed(const ad_comm *comm, ad_dtype dtype, const ad_segment *segments, size_t count,
                                  const ad_layout *layout) {
  row_cuts uncut = {0};
  ad_array array = {.dtype = dtype, .layout = *layout, .segments = segments, .segment_count = count};
  array.shape = array.local = (ad_shape){1, {(int64_t)elements_in(segments, count, &uncut)}};
  array.local.dim[0] = (int64_t)ad_packed_local(&array, ad_comm_rank(comm));
  return array;
}

int ad_packed_identical(const ad_array *a, const ad_array *b) {
  if (a->segment_count != b->segment_count) return 0;
  for (size_t i = 0; i < a->segment_count && a->segments != b->segments; i++) {
    if (a->segments[i].rows != b->segments[i].rows || a->segments[i].row != b->segments[i].row) return 0;
  }
  return 1;
}

ad_status ad_packed_check(const ad_array *array, const char *what, const char *site) {
  ad_axes sharded_otherwise = ad_layout_sharded_axes(&array->layout) & ~ad_layout_axes_of(&array->layout, AD_S(0));
  char layout[160], shape[96];
  if (sharded_otherwise)
    return ad_fail(AD_TYPE,
                   "%s: the array that `%s` got packs several values, which can only be sharded by rows, S(0), but its "
                   "layout is \"%s\"; give the array a layout with S(0) on the sharded axes",
                   site, what, ad_layout_print(&array->layout, layout, sizeof layout));
  row_cuts uncut = {0};
  size_t elements = elements_in(array->segments, array->segment_count, &uncut);
  if (array->shape.ndim == 1 && array->shape.dim[0] == (int64_t)elements) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: the array that `%s` got has shape %s, but its %zu packed values have %zu elements together; take the "
      "description from ad_array_describe_packed",
      site, what, ad_shape_print(&array->shape, shape, sizeof shape), array->segment_count, elements);
}

void ad_packed_copy_common(int64_t rank, const ad_array *in, const ad_array *out) {
  row_cuts in_cuts = cuts_of(&in->layout, rank), out_cuts = cuts_of(&out->layout, rank);
  size_t element = ad_dtype_size(in->dtype);
  const char *from = in->data;
  char *to = out->data;
  for (size_t i = 0; i < in->segment_count; i++) {
    size_t row = in->segments[i].row * element;
    ad_span have = own_rows(&in_cuts, in->segments[i].rows), want = own_rows(&out_cuts, in->segments[i].rows);
    int64_t first = have.first > want.first ? have.first : want.first;
    int64_t have_end = have.first + have.count, want_end = want.first + want.count;
    int64_t end = have_end < want_end ? have_end : want_end;
    if (first < end)
      ad_copy(to + (size_t)(first - want.first) * row, from + (size_t)(first - have.first) * row,
              (size_t)(end - first) * row);
    from += (size_t)have.count * row;
    to += (size_t)want.count * row;
  }
}

/* Returns 1 if each member has as many of a value's `rows_of_all` rows as it would have if one axis over the group
 * sharded the group's `rows` rows, else 0. */
static int are_sharded_once(const ad_array *part, const ad_group *group, int64_t rows, int64_t rows_of_all) {
  int64_t members = ad_group_size(group);
  for (int64_t member = 0; member < members; member++) {
    row_cuts cuts = cuts_of(&part->layout, ad_group_rank(group, member));
    if (own_rows(&cuts, rows_of_all).count != ad_cut(rows, member, members).count) return 0;
  }
  return 1;
}

/* Refuses a sharding that one collective cannot make. A collective shards rows once over all its members. Sharding on
 * one axis, or on several axes that divide the rows evenly, gives the same parts. */
static ad_status check_one_sharding(const ad_array *full, const ad_array *part, const ad_group *group,
                                    const char *site) {
  if (__builtin_popcount(group->axes & ad_mesh_large(group->mesh)) < 2) return AD_OK;
  row_cuts outer = cuts_of(&full->layout, ad_group_rank(group, 0));
  int64_t members = ad_group_size(group);
  for (size_t i = 0; i < full->segment_count; i++) {
    int64_t rows = own_rows(&outer, full->segments[i].rows).count;
    if (rows % members == 0 || are_sharded_once(part, group, rows, full->segments[i].rows)) continue;
    return ad_fail(AD_INVALID,
                   "%s: the %lld rows of packed value %zu are sharded unevenly on several axes, so their parts differ "
                   "from the parts of one sharding over all ranks; shard the rows on one axis",
                   site, (long long)rows, i);
  }
  return AD_OK;
}

ad_status ad_packed_segments(ad_comm *comm, const ad_array *full, const ad_array *part, const char *site,
                             ad_collective *call) {
  AD_TRY(check_one_sharding(full, part, &call->group, site));
  call->segments = full->segments;
  call->segment_count = full->segment_count;
  row_cuts cuts = cuts_of(&full->layout, ad_comm_rank(comm));
  if (!cuts.count) return AD_OK;
  void *scratch;
  AD_TRY(ad_comm_scratch(comm, full->segment_count * sizeof *full->segments, &scratch));
  ad_segment *own = scratch;
  for (size_t i = 0; i < full->segment_count; i++)
    own[i] = (ad_segment){own_rows(&cuts, full->segments[i].rows).count, full->segments[i].row};
  call->segments = own;
  return AD_OK;
}
