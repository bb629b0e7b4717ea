/* Arithmetic on parts, and the copy loop of all scatters and gathers. Nothing here communicates. */
#include "array/part.h"

#include "kernels/kernels.h"

void ad_part_of(const ad_layout *layout, const ad_shape *shape, int64_t rank, ad_part *out) {
  out->ndim = shape->ndim;
  for (int dim = 0; dim < shape->ndim; dim++) {
    out->count[dim] = ad_layout_spans(layout, dim, shape->dim[dim], rank, out->span[dim], AD_PART_SPANS);
  }
}

/* Fills `out` with the intersection of two lists of spans; returns the number of its spans. */
static int intersect_spans(const ad_span *a, int a_count, const ad_span *b, int b_count, ad_span *out) {
  int count = 0;
  for (int i = 0, k = 0; i < a_count && k < b_count;) {
    int64_t a_end = a[i].first + a[i].count, b_end = b[k].first + b[k].count;
    int64_t first = a[i].first > b[k].first ? a[i].first : b[k].first;
    int64_t end = a_end < b_end ? a_end : b_end;
    if (first < end) out[count++] = (ad_span){first, end - first};
    if (a_end <= b_end) i++;
    if (b_end <= a_end) k++;
  }
  return count;
}

void ad_part_intersect(const ad_part *a, const ad_part *b, ad_part *out) {
  out->ndim = a->ndim;
  for (int dim = 0; dim < a->ndim; dim++) {
    out->count[dim] = intersect_spans(a->span[dim], a->count[dim], b->span[dim], b->count[dim], out->span[dim]);
  }
}

/* Returns how many indices of dimension `dim` the part stores. */
static int64_t dim_size(const ad_part *part, int dim) {
  int64_t size = 0;
  for (int i = 0; i < part->count[dim]; i++) size += part->span[dim][i].count;
  return size;
}

size_t ad_part_numel(const ad_part *part) {
  int64_t numel = 1;
  for (int dim = 0; dim < part->ndim; dim++) numel *= dim_size(part, dim);
  return (size_t)numel;
}

/* Where a part stores an index of a dimension: the offset in the part, and how many indices from this index on are
 * contiguous both in the dimension and in the part. */
typedef struct place {
  int64_t offset, room;
} place;

static place find_place(const ad_part *part, int dim, int64_t at) {
  int64_t before = 0;
  const ad_span *span = part->span[dim];
  for (int i = 0; i < part->count[dim]; i++) {
    int64_t inside = at - span[i].first;
    if (inside >= 0 && inside < span[i].count) return (place){before + inside, span[i].count - inside};
    before += span[i].count;
  }
  return (place){0, 0};  // never reached: callers only ask for indices that the part stores
}

/* One copy: of the elements `region`, from the buffer of `src` to the buffer of `dst`. */
typedef struct copy {
  const ad_part *dst, *src, *region;
  size_t dst_stride[AD_DIMS_MAX], src_stride[AD_DIMS_MAX];  // strides in bytes
  int run_dim;  // from this dimension on, elements of the region are contiguous in both buffers
} copy;

/* Returns 1 if along `dim` the part stores the region's indices and no others. The part must contain the region. */
static int stores_the_same(const ad_part *part, const ad_part *region, int dim) {
  return dim_size(part, dim) == dim_size(region, dim);
}

/* Sets the strides of both buffers, and run_dim. */
static void set_strides(copy *work, size_t element_bytes) {
  size_t dst_bytes = element_bytes, src_bytes = element_bytes;
  int runs = 1;
  work->run_dim = 0;
  for (int dim = work->region->ndim - 1; dim >= 0; dim--) {
    work->dst_stride[dim] = dst_bytes;
    work->src_stride[dim] = src_bytes;
    dst_bytes *= (size_t)dim_size(work->dst, dim);
    src_bytes *= (size_t)dim_size(work->src, dim);
    if (runs) work->run_dim = dim;
    runs = runs && stores_the_same(work->dst, work->region, dim) && stores_the_same(work->src, work->region, dim);
  }
}

static void copy_dim(const copy *work, int dim, char *dst, const char *src);

/* Copies `count` neighbouring indices of dimension `dim`: with one copy if they are contiguous in both buffers,
 * otherwise index by index. */
static void copy_run(const copy *work, int dim, char *dst, const char *src, int64_t count) {
  size_t dst_stride = work->dst_stride[dim], src_stride = work->src_stride[dim];
  if (dim == work->run_dim) {
    ad_copy(dst, src, (size_t)count * dst_stride);
    return;
  }
  for (int64_t i = 0; i < count; i++)
    copy_dim(work, dim + 1, dst + (size_t)i * dst_stride, src + (size_t)i * src_stride);
}

/* Copies the region's dimensions from `dim` on, as pieces that are contiguous along `dim` in both buffers. */
static void copy_dim(const copy *work, int dim, char *dst, const char *src) {
  for (int i = 0; i < work->region->count[dim]; i++) {
    ad_span span = work->region->span[dim][i];
    for (int64_t done = 0; done < span.count;) {
      place to = find_place(work->dst, dim, span.first + done), from = find_place(work->src, dim, span.first + done);
      int64_t count = span.count - done;
      if (to.room < count) count = to.room;
      if (from.room < count) count = from.room;
      if (count <= 0) return;
      copy_run(work, dim, dst + (size_t)to.offset * work->dst_stride[dim],
               src + (size_t)from.offset * work->src_stride[dim], count);
      done += count;
    }
  }
}

void ad_part_copy(void *dst, const ad_part *dst_part, const void *src, const ad_part *src_part, const ad_part *region,
                  size_t element_bytes) {
  if (!ad_part_numel(region)) return;
  copy work = {.dst = dst_part, .src = src_part, .region = region};
  set_strides(&work, element_bytes);
  if (region->ndim) {
    copy_dim(&work, 0, dst, src);
  } else {
    ad_copy(dst, src, element_bytes);
  }
}

/* Returns the offset, in the part, of the region's first index along `dim`, or -1 if the region's indices are not
 * contiguous in the part. */
static int64_t run_start(const ad_part *part, const ad_part *region, int dim) {
  place first = find_place(part, dim, region->span[dim][0].first);
  int64_t next = first.offset;
  for (int i = 0; i < region->count[dim]; i++) {
    ad_span span = region->span[dim][i];
    for (int64_t done = 0; done < span.count;) {
      place here = find_place(part, dim, span.first + done);
      if (!here.room || here.offset != next) return -1;
      int64_t count = here.room < span.count - done ? here.room : span.count - done;
      next += count;
      done += count;
    }
  }
  return first.offset;
}

int ad_part_is_run(const ad_part *part, const ad_part *region, size_t offset) {
  if (!ad_part_numel(region)) return 1;
  size_t start = 0, stride = 1;
  int whole = 1;  // 1: in every later dimension, the region has all indices that the part stores
  for (int dim = region->ndim - 1; dim >= 0; dim--) {
    int64_t first = run_start(part, region, dim), size = dim_size(region, dim);
    if (first < 0 || (!whole && size != 1)) return 0;
    start += (size_t)first * stride;
    stride *= (size_t)dim_size(part, dim);
    whole = whole && stores_the_same(part, region, dim);
  }
  return start == offset;
}

/* ---- visiting the elements of a part ---- */

typedef struct walk {
  const ad_part *part;
  const ad_shape *shape;
  void (*visit)(void *context, int64_t first, int64_t count);
  void *context;
} walk;

/* Visits all elements that have given indices in the dimensions before `dim`; `prefix` is these indices, flattened row
 * by row to one number. */
static void visit_from(const walk *on, int dim, int64_t prefix) {
  if (dim == on->part->ndim) {
    on->visit(on->context, prefix, 1);
    return;
  }
  for (int i = 0; i < on->part->count[dim]; i++) {
    ad_span span = on->part->span[dim][i];
    int64_t first = prefix * on->shape->dim[dim] + span.first;
    if (dim == on->part->ndim - 1) {
      on->visit(on->context, first, span.count);
    } else {
      for (int64_t k = 0; k < span.count; k++) visit_from(on, dim + 1, first + k);
    }
  }
}

void ad_part_visit(const ad_part *part, const ad_shape *shape,
                   void (*visit)(void *context, int64_t first, int64_t count), void *context) {
  visit_from(&(walk){part, shape, visit, context}, 0, 0);
}
