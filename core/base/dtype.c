/* The records of dtypes, and functions that look facts up in them; kernels_body.h converts between dtypes. */
#include "addend/dtype.h"

#include <string.h>
#include "base/dtypes.h"
#include "base/error.h"
#include "base/text.h"

/* clang-format off */
#define WIDE(code, word, type, exponent, fraction, ...)                                                                \
  [code] = {.name = #word, .size = sizeof(type), .kind = AD_KIND_FLOAT, .wide = code, .exponent_bits = (exponent),     \
            .fraction_bits = (fraction), __VA_ARGS__},
#define NARROW(code, word, type, conversions, exponent, fraction, ...)                                                 \
  [code] = {.name = #word, .size = sizeof(type), .kind = AD_KIND_FLOAT, .wide = AD_F32, .exponent_bits = (exponent),   \
            .fraction_bits = (fraction), __VA_ARGS__},
#define INTEGER(code, word, type, bits, ...)                                                                           \
  [code] = {.name = #word, .size = sizeof(type), .kind = AD_KIND_INTEGER, .wide = AD_F32, __VA_ARGS__},
#define BOOL(code, word, type, bits, ...)                                                                              \
  [code] = {.name = #word, .size = sizeof(type), .kind = AD_KIND_BOOL, .wide = AD_F32, __VA_ARGS__},
static const ad_dtype_record records[AD_DTYPE_END] = {
    AD_WIDE_LIST(WIDE) AD_NARROW_LIST(NARROW) AD_INTEGER_LIST(INTEGER) AD_BOOL_LIST(BOOL)
};
/* clang-format on */

const ad_dtype_record *ad_dtype_of(ad_dtype dtype) {
  return (int)dtype > 0 && (int)dtype < AD_DTYPE_END ? &records[dtype] : NULL;
}

size_t ad_dtype_size(ad_dtype dtype) {
  const ad_dtype_record *of = ad_dtype_of(dtype);
  return of ? of->size : 0;
}

const char *ad_dtype_name(ad_dtype dtype) {
  const ad_dtype_record *of = ad_dtype_of(dtype);
  return of ? of->name : "unknown";
}

int ad_dtype_is_float(ad_dtype dtype) {
  const ad_dtype_record *of = ad_dtype_of(dtype);
  return of && of->kind == AD_KIND_FLOAT;
}

ad_dtype ad_dtype_wide(ad_dtype dtype) {
  const ad_dtype_record *of = ad_dtype_of(dtype);
  return of ? of->wide : AD_F32;
}

int ad_dtype_is_wide(ad_dtype dtype) { return ad_dtype_is_float(dtype) && ad_dtype_wide(dtype) == dtype; }

int ad_dtype_is_of_arrays(ad_dtype dtype) {
  const ad_dtype_record *of = ad_dtype_of(dtype);
  return of && !of->of_collectives_alone;
}

const char *ad_dtype_name_in(ad_dtype dtype, const char *format) {
  const ad_dtype_record *of = ad_dtype_of(dtype);
  if (!of || !format) return NULL;
  if (!strcmp(format, "safetensors")) return of->safetensors;
  if (!strcmp(format, "numpy")) return of->numpy;
  if (!strcmp(format, "torch")) return of->torch;
  return !strcmp(format, "dlpack") ? of->dlpack : NULL;
}

const char *ad_dtypes_print(int (*takes)(ad_dtype), const char *format, const char *word, char *buffer) {
  ad_text text = ad_text_on(buffer, AD_DTYPES_TEXT);
  const char *names[AD_DTYPE_END];
  int count = 0;
  for (int dtype = 1; dtype < AD_DTYPE_END; dtype++) {
    const char *name = format ? ad_dtype_name_in((ad_dtype)dtype, format) : records[dtype].name;
    if (takes((ad_dtype)dtype) && name) names[count++] = name;
  }
  for (int i = 0; i < count; i++) {
    if (i && i == count - 1)
      ad_text_add(&text, " %s ", word);
    else if (i)
      ad_text_add(&text, ", ");
    ad_text_add(&text, "%s", names[i]);
  }
  return buffer;
}

static ad_status unknown_dtype(const char *given) {
  char buffer[128];
  ad_text known = ad_text_on(buffer, sizeof buffer);
  for (int dtype = 1; dtype < AD_DTYPE_END; dtype++)
    ad_text_add(&known, "%s%s", dtype > 1 ? ", " : "", records[dtype].name);
  return ad_fail(AD_INVALID, "\"%s\" is not a dtype; write one of %s", given, buffer);
}

ad_status ad_dtype_parse(const char *text, ad_dtype *out) {
  AD_NEED(out);
  for (int dtype = 1; text && dtype < AD_DTYPE_END; dtype++) {
    if (strcmp(text, records[dtype].name)) continue;
    *out = (ad_dtype)dtype;
    return AD_OK;
  }
  return unknown_dtype(text ? text : "");
}
