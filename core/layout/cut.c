/* Computes a rank's part of a sharded value: even, uneven, zigzag, nested, empty. Other types than S(d) do not matter
 * here. */
#include "layout/nest.h"
#include "layout/type.h"
#include "mesh/mesh.h"

/* The most spans of a rank's part along a dimension: each axis that shards the dimension adds at most two. */
enum { SPANS_MAX = 2 * AD_AXIS_COUNT + 2 };

typedef struct span_list {
  int count;
  ad_span span[SPANS_MAX];
} span_list;

ad_span ad_cut(int64_t n, int64_t i, int64_t g) {
  int64_t first = (int64_t)((__int128)i * n / g);
  return (ad_span){first, (int64_t)((__int128)(i + 1) * n / g) - first};
}

/* Returns the number of elements in the spans. */
static int64_t total(const span_list *list) {
  int64_t sum = 0;
  for (int i = 0; i < list->count; i++) sum += list->span[i].count;
  return sum;
}

/* Appends a span, joined with the last one if the two touch. Empty spans are left out. */
static void append(span_list *list, ad_span span) {
  ad_span *last = list->count ? &list->span[list->count - 1] : NULL;
  if (!span.count) return;
  if (last && last->first + last->count == span.first)
    last->count += span.count;
  else
    list->span[list->count++] = span;
}

/* Appends those elements of `from` whose numbers lie in `part`. The elements are numbered from 0 in the order of
 * `from`. */
static void append_part(span_list *list, const span_list *from, ad_span part) {
  int64_t start = 0;
  for (int i = 0; i < from->count; i++) {
    ad_span span = from->span[i];
    int64_t first = part.first > start ? part.first : start;
    int64_t end = part.first + part.count < start + span.count ? part.first + part.count : start + span.count;
    if (first < end) append(list, (ad_span){span.first + first - start, end - first});
    start += span.count;
  }
}

/* Returns the spans of member i of g members, after one more axis of g members has sharded the elements of `from`. */
static span_list cut_again(const span_list *from, ad_type type, int64_t i, int64_t g) {
  span_list list = {0};
  int64_t n = total(from);
  if (ad_type_is_zigzag(type)) {
    append_part(&list, from, ad_cut(n, i, 2 * g));
    append_part(&list, from, ad_cut(n, 2 * g - 1 - i, 2 * g));
  } else {
    append_part(&list, from, ad_cut(n, i, g));
  }
  return list;
}

/* Returns the spans of dimension `dim` that are in `rank`'s part. */
static span_list spans_of(const ad_layout *layout, int dim, int64_t n, int64_t rank) {
  span_list list = {0};
  append(&list, (ad_span){0, n});
  int depth_count = __builtin_popcount(ad_layout_axes_sharding(layout, dim));
  for (int depth = 0; depth < depth_count; depth++) {
    ad_axis axis = ad_layout_sharded_at(layout, dim, depth);
    list = cut_again(&list, layout->type[axis], ad_mesh_position(layout->mesh, rank, axis),
                     ad_mesh_axis_size(layout->mesh, axis));
  }
  return list;
}

int ad_layout_spans(const ad_layout *layout, int dim, int64_t n, int64_t rank, ad_span *spans, int max) {
  span_list list = spans_of(layout, dim, n, rank);
  for (int i = 0; i < list.count && i < max; i++) spans[i] = list.span[i];
  return list.count;
}

/* Returns how many of n elements are in the part of member i of g members. */
static int64_t count_of(ad_type type, int64_t n, int64_t i, int64_t g) {
  if (!ad_type_is_zigzag(type)) return ad_cut(n, i, g).count;
  return ad_cut(n, i, 2 * g).count + ad_cut(n, 2 * g - 1 - i, 2 * g).count;
}

/* The size of a part along a dimension depends only on the number of elements that each axis shards. Therefore no spans
 * are computed. */
ad_shape ad_layout_local_shape(const ad_layout *layout, const ad_shape *shape, int64_t rank) {
  ad_shape local = *shape;
  ad_axes sharded = ad_layout_sharded_axes(layout);
  for (int depth = 0; sharded && depth < AD_AXIS_COUNT; depth++)
    for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
      if (!(sharded & AD_AXES(axis)) || layout->depth[axis] != depth) continue;
      int64_t *n = &local.dim[ad_type_dim(layout->type[axis])];
      *n = count_of(layout->type[axis], *n, ad_mesh_position(layout->mesh, rank, (ad_axis)axis),
                    ad_mesh_axis_size(layout->mesh, (ad_axis)axis));
      sharded &= ~AD_AXES(axis);
    }
  return local;
}

/* ---- several axes that together shard like one axis with all their ranks ---- */

int64_t ad_cut_with(int64_t n, int64_t e, int64_t chunks) {
  return (int64_t)(((__int128)(e + 1) * chunks + n - 1) / n) - 1;
}

/* A nest: `rows` rows that several axes shard, not zigzag, outermost first. */
typedef struct cut_nest {
  int64_t rows, ranks; /* ranks: the number of ranks over all these axes */
  int64_t sizes[AD_AXIS_COUNT];
  int count;
} cut_nest;

/* Finds the nest of those of `axes` that have more than one rank. Returns 1 if these axes shard dimension 0 not zigzag,
 * inside all other axes that shard it, and in mesh order; else 0. */
static int find_nest(const ad_layout *layout, int64_t n, ad_axes axes, int64_t rank, cut_nest *out) {
  const ad_mesh *mesh = layout->mesh;
  int64_t outer_stride = INT64_MAX;
  *out = (cut_nest){.rows = n, .ranks = 1};
  for (int depth = 0; depth < __builtin_popcount(ad_layout_axes_sharding(layout, 0)); depth++) {
    ad_axis axis = ad_layout_sharded_at(layout, 0, depth);
    int64_t g = ad_mesh_axis_size(mesh, axis), stride = ad_mesh_stride(mesh, axis);
    int is_one = (axes & AD_AXES(axis)) != 0;
    if (g == 1) continue;
    if (ad_type_is_zigzag(layout->type[axis]) || (is_one ? stride > outer_stride : out->count)) return 0;
    if (!is_one) {
      out->rows = ad_cut(out->rows, ad_mesh_position(mesh, rank, axis), g).count;
      continue;
    }
    outer_stride = stride;
    out->sizes[out->count++] = g;
    out->ranks *= g;
  }
  return out->ranks == ad_mesh_ranks_over(mesh, axes);
}

/* Returns the member that row e belongs to by the nest. */
static int64_t nested_holder(const cut_nest *nest, int64_t e) {
  int64_t n = nest->rows, index = 0;
  for (int i = 0; i < nest->count; i++) {
    int64_t at = ad_cut_with(n, e, nest->sizes[i]);
    ad_span part = ad_cut(n, at, nest->sizes[i]);
    index = index * nest->sizes[i] + at;
    e -= part.first;
    n = part.count;
  }
  return index;
}

/* Returns 1 if by the nest each row belongs to the same member as by one sharding over all ranks. Members have rows in
 * ascending order in both cases, so nothing else needs to be compared. */
static int holders_agree(const cut_nest *nest) {
  int64_t inner = nest->count ? nest->sizes[nest->count - 1] : 1;
  if (nest->rows % (nest->ranks / inner) == 0) return 1; /* all axes but the innermost divide the rows evenly */
  for (int64_t e = 0; e < nest->rows; e++)
    if (nested_holder(nest, e) != ad_cut_with(nest->rows, e, nest->ranks)) return 0;
  return 1;
}

/* Returns 1 if each member of the group has as many rows as it would have if one axis over the group sharded `rows`
 * rows. */
static int members_agree(const ad_layout *layout, int64_t n, const ad_group *group, int64_t rows) {
  int64_t members = ad_group_size(group);
  for (int64_t i = 0; i < members; i++) {
    span_list list = spans_of(layout, 0, n, ad_group_rank(group, i));
    if (total(&list) != ad_cut(rows, i, members).count) return 0;
  }
  return 1;
}

int ad_layout_is_sharded_once(const ad_layout *layout, int64_t n, ad_axes axes, int64_t rank, int64_t rows) {
  cut_nest nest;
  if (find_nest(layout, n, axes, rank, &nest) && nest.rows == rows) return holders_agree(&nest);
  ad_group group = ad_mesh_group(layout->mesh, axes, rank);
  return members_agree(layout, n, &group, rows);
}

ad_span ad_batch_rows(const ad_layout *layout, int64_t rank, int64_t global_batch, int64_t microbatches, int64_t m) {
  const ad_span nothing = {0, 0};
  if (global_batch < 0 || m < 0 || m >= microbatches || !ad_mesh_has_rank(layout->mesh, rank)) return nothing;
  ad_span microbatch = ad_cut(global_batch, m, microbatches), own = nothing;
  if (ad_layout_spans(layout, 0, microbatch.count, rank, &own, 1) > 1) return nothing;
  return (ad_span){microbatch.first + own.first, own.count};
}
