/* Where a rank's part of a cut value lies: even and uneven, zigzag, nested, empty. Nothing here knows what types mean.
 */
#include "layout/nest.h"
#include "layout/type.h"

/* Each cut of a dimension adds at most two pieces to a rank's part, so that cuts by all axes stay below this. */
enum { SPANS_MAX = 2 * AD_AXIS_COUNT + 2 };

typedef struct span_list {
  int count;
  ad_span span[SPANS_MAX];
} span_list;

ad_span ad_cut(int64_t n, int64_t i, int64_t g) {
  int64_t first = (int64_t)((__int128)i * n / g);
  return (ad_span){first, (int64_t)((__int128)(i + 1) * n / g) - first};
}

static int64_t total(const span_list *list) {
  int64_t sum = 0;
  for (int i = 0; i < list->count; i++) sum += list->span[i].count;
  return sum;
}

static void append(span_list *list, ad_span span) {
  ad_span *last = list->count ? &list->span[list->count - 1] : NULL;
  if (!span.count) return;
  if (last && last->first + last->count == span.first)
    last->count += span.count;
  else
    list->span[list->count++] = span;
}

/* Appends the elements `part` of what `from` lists, counted along its stored order. */
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

/* What member i of g holds of `from`. */
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

static span_list spans_of(const ad_layout *layout, int dim, int64_t n, int64_t rank) {
  span_list list = {0};
  append(&list, (ad_span){0, n});
  int depth_count = __builtin_popcount(ad_layout_cutting(layout, dim));
  for (int depth = 0; depth < depth_count; depth++) {
    ad_axis axis = ad_layout_cut_at(layout, dim, depth);
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

ad_shape ad_layout_local_shape(const ad_layout *layout, const ad_shape *shape, int64_t rank) {
  ad_shape local = *shape;
  for (int dim = 0; dim < shape->ndim; dim++) {
    span_list list = spans_of(layout, dim, shape->dim[dim], rank);
    local.dim[dim] = total(&list);
  }
  return local;
}
