/* Initial values of parameters. An element's value depends on the seed, the parameter's name and the element's index in
 * the full value, never on the rank that stores it. */
#include <math.h>
#include "addend/parameter.h"
#include "array/part.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "base/options.h"
#include "kernels/kernels.h"
#include "addend/helpers.h"

enum { DRAWN_AT_ONCE = 512 };

typedef struct filling {
  const ad_param_spec *spec;
  uint64_t seed, stream;
  ad_array *value;
  size_t written;  // elements of the local part filled so far, in storage order
} filling;

// Fills in elements [first, first + count) of the full parameter, flattened row by row.
static void fill_run(void *context, int64_t first, int64_t count) {
  filling *to = context;
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

ad_status ad_param_initialise(const ad_param_spec *spec, uint64_t seed, int64_t rank, ad_array *value) {
  ad_param_spec own;
  AD_NEED(spec, value);
  AD_NEED(value->layout.mesh);
  AD_TRY(ad_options_take(&own, sizeof own, spec, "ad_param_spec"));
  spec = &own;
  char declared[128], given[128];
  if (!ad_shape_equal(&spec->shape, &value->shape)) {
    return ad_fail(AD_INVALID,
                   "parameter `%s` is declared with shape %s, but the array for its initial value has shape %s; the "
                   "two shapes must be equal",
                   spec->name, ad_shape_print(&spec->shape, declared, sizeof declared),
                   ad_shape_print(&value->shape, given, sizeof given));
  }
  if (!ad_dtype_is_float(value->dtype) || value->scale != 0) {
    char floats[AD_DTYPES_TEXT];
    return ad_fail(AD_INVALID,
                   "the array for the initial value of parameter `%s` has dtype %s and scale %d, but must have %s and "
                   "scale 0",
                   spec->name, ad_dtype_name(value->dtype), value->scale,
                   ad_dtypes_print(ad_dtype_is_float, NULL, "or", floats));
  }
  if (!isfinite(spec->mean) || !isfinite(spec->deviation) || spec->deviation < 0)
    return ad_fail(AD_INVALID,
                   "the mean and the deviation of the initial values of parameter `%s` must be finite and the "
                   "deviation at least 0, but the two are %g and %g",
                   spec->name, spec->mean, spec->deviation);
  if (!value->data || !ad_array_numel(value)) return AD_OK;
  filling to = {spec, seed, ad_random_stream(spec->name), value, 0};
  ad_part part;
  ad_part_of(&value->layout, &spec->shape, rank, &part);
  ad_part_visit(&part, &spec->shape, fill_run, &to);
  return AD_OK;
}
