/* Checks that the values in a safetensors file are finite numbers. */
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "kernels/finite.h"
#include "kernels/kernels.h"
#include "base/text.h"
#include "files/safetensors.h"

enum { WORDS = 1024 };

/* Prints the indices of element number `index`, such as "[3, 4]". */
static const char *print_place(const ad_shape *shape, size_t index, char *buffer, size_t size) {
  ad_shape place = {.ndim = shape->ndim};
  for (int dim = shape->ndim - 1; dim >= 0; dim--) {
    place.dim[dim] = (int64_t)(index % (size_t)shape->dim[dim]);
    index /= (size_t)shape->dim[dim];
  }
  return ad_shape_print(&place, buffer, size);
}

static const char *name_value(const ad_safetensor *tensor, size_t index) {
  char element[sizeof(double)];
  double value;
  size_t size = ad_dtype_size(tensor->dtype);
  memcpy(element, (const char *)tensor->data + index * size, size);
  ad_cast(&value, AD_F64, element, tensor->dtype, 1);
  return isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

ad_status ad_safetensors_check_values(const ad_safetensors *file) {
  AD_NEED(file);
  char words[WORDS] = "", place[160];
  ad_text text = ad_text_on(words, sizeof words);
  size_t count = 0;
  for (size_t i = 0; i < ad_safetensors_count(file); i++) {
    const ad_safetensor *tensor = ad_safetensors_at(file, i);
    if (!ad_dtype_is_float(tensor->dtype)) continue;
    size_t numel = (size_t)ad_shape_numel(&tensor->shape);
    size_t first = ad_first_not_finite(tensor->data, tensor->dtype, numel);
    if (first < numel)
      ad_text_list(&text, &count, "", "%.80s%s is %s", tensor->name,
                   print_place(&tensor->shape, first, place, sizeof place), name_value(tensor, first));
  }
  return count ? ad_fail(AD_INVALID,
                         "%s: the file contains values that are NaN or infinity (%s); write the file again with finite "
                         "values",
                         ad_safetensors_path(file), words)
               : AD_OK;
}
