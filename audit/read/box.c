/* Index arithmetic of boxes (rectangular blocks of an array), and the choice of the elements that a dump samples. */
#include "read/box.h"

ad_box ad_box_full(const ad_shape *shape) {
  ad_box box = {{0}, {0}};
  for (int dim = 0; dim < shape->ndim; dim++) box.count[dim] = shape->dim[dim];
  return box;
}

int64_t ad_box_numel(const ad_shape *shape, const ad_box *box) {
  int64_t numel = 1;
  for (int dim = 0; dim < shape->ndim; dim++) numel *= box->count[dim];
  return numel;
}

int ad_box_equal(const ad_shape *shape, const ad_box *a, const ad_box *b) {
  for (int dim = 0; dim < shape->ndim; dim++)
    if (a->first[dim] != b->first[dim] || a->count[dim] != b->count[dim]) return 0;
  return 1;
}

int ad_box_contains(const ad_shape *shape, const ad_box *outer, const ad_box *inner) {
  for (int dim = 0; dim < shape->ndim; dim++)
    if (inner->first[dim] < outer->first[dim] ||
        inner->first[dim] + inner->count[dim] > outer->first[dim] + outer->count[dim])
      return 0;
  return 1;
}

int ad_box_has(const ad_shape *shape, const ad_box *box, int64_t flat) {
  for (int dim = shape->ndim - 1; dim >= 0; dim--) {
    int64_t at = flat % shape->dim[dim] - box->first[dim];
    if (at < 0 || at >= box->count[dim]) return 0;
    flat /= shape->dim[dim];
  }
  return 1;
}

int64_t ad_box_offset(const ad_shape *shape, const ad_box *box, int64_t flat) {
  int64_t offset = 0, stride = 1;
  for (int dim = shape->ndim - 1; dim >= 0; dim--) {
    offset += (flat % shape->dim[dim] - box->first[dim]) * stride;
    flat /= shape->dim[dim];
    stride *= box->count[dim];
  }
  return offset;
}

/* Returns the 64-bit FNV-1a hash of the name. */
uint64_t ad_sample_hash(const char *name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
  return hash;
}

/* Returns a hash of z: one step of the splitmix64 random number generator. */
static uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

int64_t ad_sample_element(uint64_t hash, int64_t k, int64_t of, int64_t n) {
  ad_span span = ad_cut(n, k, of);
  return span.first + (int64_t)(mix(hash + (uint64_t)k) % (uint64_t)span.count);
}

int ad_box_is_stretch(const ad_shape *shape, const ad_box *box) {
  int dim = 0;
  while (dim < shape->ndim && box->count[dim] == 1) dim++;
  for (dim++; dim < shape->ndim; dim++)
    if (box->count[dim] != shape->dim[dim]) return 0;
  return 1;
}

/* Returns the smallest k whose sampled element has a flat index of at least `flat`. Binary search: sampled elements
 * ascend. */
static int64_t first_from(uint64_t hash, int64_t of, int64_t n, int64_t flat) {
  int64_t low = 0, high = of;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (ad_sample_element(hash, middle, of, n) < flat)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

ad_span ad_sample_stretch(uint64_t hash, const ad_shape *shape, int64_t sample, const ad_box *box) {
  int64_t begin = 0, numel = ad_shape_numel(shape);
  for (int dim = 0; dim < shape->ndim; dim++) begin = begin * shape->dim[dim] + box->first[dim];
  int64_t first = first_from(hash, sample, numel, begin);
  return (ad_span){first, first_from(hash, sample, numel, begin + ad_box_numel(shape, box)) - first};
}

int64_t ad_sample_count(const char *name, const ad_shape *shape, int64_t sample, const ad_box *box) {
  uint64_t hash = ad_sample_hash(name);
  if (ad_box_is_stretch(shape, box)) return ad_sample_stretch(hash, shape, sample, box).count;
  int64_t count = 0, numel = ad_shape_numel(shape);
  for (int64_t k = 0; k < sample; k++) count += ad_box_has(shape, box, ad_sample_element(hash, k, sample, numel));
  return count;
}
