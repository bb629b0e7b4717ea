/* Names and sizes of dtypes; kernels_body.h converts between them. */
#include "addend/dtype.h"

#include <string.h>
#include "base/error.h"
#include "base/text.h"

static const struct {
  const char *name;
  size_t size;
  int is_float;
} dtypes[] = {
    [AD_F64] = {"f64", 8, 1}, [AD_F32] = {"f32", 4, 1},   [AD_BF16] = {"bf16", 2, 1}, [AD_F16] = {"f16", 2, 1},
    [AD_I32] = {"i32", 4, 0}, [AD_I64] = {"i64", 8, 0},   [AD_U8] = {"u8", 1, 0},     [AD_I8] = {"i8", 1, 0},
    [AD_I16] = {"i16", 2, 0}, [AD_BOOL] = {"bool", 1, 0},
};
enum { DTYPE_END = sizeof dtypes / sizeof *dtypes };

static int is_dtype(ad_dtype dtype) { return (int)dtype > 0 && (int)dtype < DTYPE_END; }

size_t ad_dtype_size(ad_dtype dtype) { return is_dtype(dtype) ? dtypes[dtype].size : 0; }

const char *ad_dtype_name(ad_dtype dtype) { return is_dtype(dtype) ? dtypes[dtype].name : "unknown"; }

int ad_dtype_is_float(ad_dtype dtype) { return is_dtype(dtype) && dtypes[dtype].is_float; }

ad_dtype ad_dtype_wide(ad_dtype dtype) { return dtype == AD_F64 ? AD_F64 : AD_F32; }

static ad_status unknown_dtype(const char *given) {
  char buffer[128];
  ad_text known = ad_text_on(buffer, sizeof buffer);
  for (int dtype = 1; dtype < DTYPE_END; dtype++)
    ad_text_add(&known, "%s%s", dtype > 1 ? ", " : "", dtypes[dtype].name);
  return ad_fail(AD_INVALID, "\"%s\" is not a dtype; the dtypes are %s", given, buffer);
}

ad_status ad_dtype_parse(const char *text, ad_dtype *out) {
  AD_NEED(out);
  for (int dtype = 1; text && dtype < DTYPE_END; dtype++) {
    if (strcmp(text, dtypes[dtype].name)) continue;
    *out = (ad_dtype)dtype;
    return AD_OK;
  }
  return unknown_dtype(text ? text : "");
}
