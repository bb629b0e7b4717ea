/* Types of values on one axis, and shapes of full values: names, duals, printing. */
#include <inttypes.h>
#include <stdio.h>
#include "base/text.h"
#include "layout/type.h"

int ad_type_is_sharded(ad_type type) { return ad_type_dim(type) >= 0; }

int ad_type_dim(ad_type type) {
  int base = type & ~0x0f, dim = type & 0x0f;
  return (base == AD_S(0) || base == AD_S_ZIGZAG(0)) && dim < AD_DIMS_MAX ? dim : -1;
}

int ad_type_is_zigzag(ad_type type) { return ad_type_is_sharded(type) && type >= AD_S_ZIGZAG(0); }

ad_type ad_type_sharded_like(ad_type type, int dim) { return ad_type_is_zigzag(type) ? AD_S_ZIGZAG(dim) : AD_S(dim); }

ad_type ad_type_kind(ad_type type) { return ad_type_is_sharded(type) ? AD_S(0) : type; }

int ad_type_is_known(ad_type type) { return type <= AD_P || ad_type_is_sharded(type); }

ad_type ad_type_dual(ad_type type) { return type == AD_R ? AD_P : type == AD_P ? AD_R : type; }

const char *ad_type_print(ad_type type, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  if (ad_type_is_sharded(type))
    ad_text_add(&text, "S(%d%s)", ad_type_dim(type), ad_type_is_zigzag(type) ? "z" : "");
  else if (type <= AD_P)
    ad_text_add(&text, "%c", "RIVP"[type]);
  else
    ad_text_add(&text, "unknown type 0x%x", type);
  return buffer;
}

/* Returns the number of dimensions, but at most AD_DIMS_MAX, because a caller may have set any number. */
static int dims_of(const ad_shape *shape) { return shape->ndim < AD_DIMS_MAX ? shape->ndim : AD_DIMS_MAX; }

int64_t ad_shape_numel(const ad_shape *shape) {
  int64_t numel = 1;
  for (int i = 0; i < dims_of(shape); i++) numel *= shape->dim[i];
  return numel;
}

const char *ad_shape_fault(const ad_shape *shape, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  if (shape->ndim < 0 || shape->ndim > AD_DIMS_MAX) {
    ad_text_add(&text, "the shape has %d dimensions, but may have 0 to %d", shape->ndim, AD_DIMS_MAX);
    return buffer;
  }
  /* the most elements, divided by the sizes so far, whose bytes a size_t can count in any dtype */
  int64_t room = INT64_MAX / (int64_t)sizeof(double);
  for (int i = 0; i < shape->ndim; i++) {
    int64_t dim = shape->dim[i];
    if (dim < 0) ad_text_add(&text, "dimension %d has size %" PRId64 "; a size must be 0 or more", i, dim);
    if (dim > room) ad_text_add(&text, "the sizes multiply to more elements than memory can hold");
    if (dim < 0 || dim > room) return buffer;
    room /= dim ? dim : 1;
  }
  return NULL;
}

int ad_shape_equal(const ad_shape *a, const ad_shape *b) {
  if (a->ndim != b->ndim) return 0;
  for (int i = 0; i < dims_of(a); i++)
    if (a->dim[i] != b->dim[i]) return 0;
  return 1;
}

const char *ad_shape_print(const ad_shape *shape, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  if (shape->ndim > AD_DIMS_MAX) {
    ad_text_add(&text, "[%d dimensions]", shape->ndim);
    return buffer;
  }
  ad_text_add(&text, "[");
  for (int i = 0; i < shape->ndim; i++) ad_text_add(&text, "%s%" PRId64, i ? ", " : "", shape->dim[i]);
  ad_text_add(&text, "]");
  return buffer;
}
