/* Initial values of parameters. An element's value depends on the seed, the parameter's name and the element's index in
 * the whole value, never on which rank holds it. */
#include "addend/parameter.h"
#include "base/error.h"
#include "base/kernels.h"
#include "base/random.h"

// Each axis that cuts a dimension adds at most two spans to it.
enum { SPANS_MAX = 4 * AD_AXIS_COUNT, DRAWN_AT_ONCE = 512 };

typedef struct filling {
  const ad_param_spec *spec;
  uint64_t seed, stream;
  int64_t rank;
  ad_array *value;
  size_t written;  // elements of the local part filled so far, in storage order
} filling;

// Elements [first, first + count) of the whole, flattened value.
static void fill_run(filling *to, int64_t first, int64_t count) {
  const ad_param_spec *spec = to->spec;
  size_t size = ad_dtype_size(to->value->dtype);
  for (int64_t done = 0; done < count;) {
    double drawn[DRAWN_AT_ONCE];
    int64_t n = count - done < DRAWN_AT_ONCE ? count - done : DRAWN_AT_ONCE;
    for (int64_t i = 0; i < n; i++) {
      double normal = spec->deviation ? ad_random_normal(to->seed, to->stream, (uint64_t)(first + done + i)) : 0;
      drawn[i] = spec->mean + spec->deviation * normal;
    }
    ad_cast((char *)to->value->data + to->written * size, to->value->dtype, drawn, AD_F64, (size_t)n);
    to->written += (size_t)n;
    done += n;
  }
}

// Everything below the prefix of indices whose flattened value is `prefix`, from dimension `dim` on.
static void fill_from(filling *to, int dim, int64_t prefix) {
  const ad_shape *shape = &to->spec->shape;
  if (dim == shape->ndim) {
    fill_run(to, prefix, 1);
    return;
  }
  ad_span spans[SPANS_MAX];
  int count = ad_layout_spans(&to->value->layout, dim, shape->dim[dim], to->rank, spans, SPANS_MAX);
  for (int s = 0; s < count; s++) {
    int64_t first = prefix * shape->dim[dim] + spans[s].first;
    if (dim == shape->ndim - 1) {
      fill_run(to, first, spans[s].count);
    } else {
      for (int64_t i = 0; i < spans[s].count; i++) fill_from(to, dim + 1, first + i);
    }
  }
}

ad_status ad_param_initialise(const ad_param_spec *spec, uint64_t seed, int64_t rank, ad_array *value) {
  AD_NEED(spec, value);
  AD_NEED(value->layout.mesh);
  char declared[128], given[128];
  if (!ad_shape_equal(&spec->shape, &value->shape)) {
    return ad_fail(AD_INVALID, "parameter %s is declared %s, the array that takes its initial value is %s", spec->name,
                   ad_shape_print(&spec->shape, declared, sizeof declared),
                   ad_shape_print(&value->shape, given, sizeof given));
  }
  if (!ad_dtype_is_float(value->dtype) || value->scale != 0) {
    return ad_fail(
        AD_INVALID,
        "parameter %s: the array that takes its initial value is %s at scale %d; a float at scale 0 is needed",
        spec->name, ad_dtype_name(value->dtype), value->scale);
  }
  if (!value->data || !ad_array_numel(value)) return AD_OK;
  filling to = {spec, seed, ad_random_stream(spec->name), rank, value, 0};
  fill_from(&to, 0, 0);
  return AD_OK;
}
