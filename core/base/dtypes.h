/* The table of dtypes, one row each. Sizes, names (also in files and messages), ranges, conversions, sums and the
 * tables of Python follow from the row. To add a dtype: a value at the end of ad_dtype (addend/dtype.h) and a row here.
 * A narrow float also needs its own conversions (kernels/kernels_body.h) if its bits are not laid out as in IEEE 754,
 * or if vector instructions convert it. The rows are about dtypes in which values are stored, sent and summed. In which
 * dtypes a tape computes (AD_IN_ANY_FLOAT) does not follow from the rows, since that takes kernels of rows and matrix
 * products. */
#ifndef BASE_DTYPES_H
#define BASE_DTYPES_H
#include <stdint.h>
#include "addend/dtype.h"
#include "base/internal.h"

typedef enum ad_dtype_kind { AD_KIND_FLOAT, AD_KIND_INTEGER, AD_KIND_BOOL } ad_dtype_kind;

/* The facts about a dtype at run time. A name is NULL if that format does not have the dtype. */
typedef struct ad_dtype_record {
  const char *name;
  const char *safetensors; /* in files: "F32" */
  const char *numpy;       /* the type string of NumPy's array interface, without the byte order: "f4" */
  const char *torch;       /* in PyTorch, and in the config.json of Transformers: "float32" */
  const char *dlpack;      /* the number of DLDataTypeCode in dlpack.h: "2" */
  size_t size;             /* bytes */
  ad_dtype_kind kind;
  ad_dtype wide; /* for a float: the dtype in which its sums and statistics are accumulated; else f32 */
  /* Floats: bits of the exponent and of the fraction, without the leading bit that is not stored. */
  int exponent_bits, fraction_bits;
  uint8_t of_collectives_alone; /* 1: only collectives take the dtype; arrays, tensors, parameters and files do not */
} ad_dtype_record;

/* Rows that a test adds (core/tests/dtypes); the libraries add none. */
#ifndef AD_ADDED_FLOATS
#define AD_ADDED_FLOATS(X)
#define AD_ADDED_INTEGERS(X)
#endif

/* Floats in which sums are accumulated: X(value of ad_dtype, name, C type, exponent's bits, fraction's bits, fields) */
#define AD_WIDE_LIST(X)                                                                                  \
  X(AD_F64, f64, double, 11, 52, .safetensors = "F64", .numpy = "f8", .torch = "float64", .dlpack = "2") \
  X(AD_F32, f32, float, 8, 23, .safetensors = "F32", .numpy = "f4", .torch = "float32", .dlpack = "2")

/* Floats whose sums are accumulated in f32, which contains all their values: X(value of ad_dtype, name, C type of
 * the bits, how kernels/kernels_body.h converts, exponent's bits, fraction's bits, fields). BY_WIDTHS: converted by the
 * widths of exponent and fraction, as in IEEE 754. BY_HAND: converted by functions of their own. */
#define AD_NARROW_LIST(X)                                                                                          \
  X(AD_BF16, bf16, uint16_t, BY_HAND, 8, 7, .safetensors = "BF16", .torch = "bfloat16", .dlpack = "4")             \
  X(AD_F16, f16, uint16_t, BY_HAND, 5, 10, .safetensors = "F16", .numpy = "f2", .torch = "float16", .dlpack = "2") \
  AD_ADDED_FLOATS(X)

/* X(value of ad_dtype, name, C type, bits, fields) */
#define AD_INTEGER_LIST(X)                                                                          \
  X(AD_I32, i32, int32_t, 32, .safetensors = "I32", .numpy = "i4", .torch = "int32", .dlpack = "0") \
  X(AD_I64, i64, int64_t, 64, .safetensors = "I64", .numpy = "i8", .torch = "int64", .dlpack = "0") \
  X(AD_U8, u8, uint8_t, 8, .safetensors = "U8", .numpy = "u1", .torch = "uint8", .dlpack = "1",     \
    .of_collectives_alone = 1)                                                                      \
  X(AD_I8, i8, int8_t, 8, .safetensors = "I8", .numpy = "i1", .torch = "int8", .dlpack = "0",       \
    .of_collectives_alone = 1)                                                                      \
  X(AD_I16, i16, int16_t, 16, .safetensors = "I16", .numpy = "i2", .torch = "int16", .dlpack = "0", \
    .of_collectives_alone = 1)                                                                      \
  AD_ADDED_INTEGERS(X)

/* A bool is a byte of its own kind: X(value of ad_dtype, name, C type, bits, fields) */
#define AD_BOOL_LIST(X)                                                                              \
  X(AD_BOOL, bool, uint8_t, 8, .safetensors = "BOOL", .numpy = "b1", .torch = "bool", .dlpack = "6", \
    .of_collectives_alone = 1)

/* One more than the largest number of a dtype: the length of a table that is indexed by dtype. */
#define AD_DTYPE_ONE_MORE(...) +1
enum {
  AD_DTYPE_END = 1 AD_WIDE_LIST(AD_DTYPE_ONE_MORE) AD_NARROW_LIST(AD_DTYPE_ONE_MORE) AD_INTEGER_LIST(AD_DTYPE_ONE_MORE)
      AD_BOOL_LIST(AD_DTYPE_ONE_MORE)
};

/* Returns the dtype's record, or NULL for a number that is no dtype. */
const ad_dtype_record *ad_dtype_of(ad_dtype dtype);
/* Returns 1 for a float whose sums are accumulated in the float itself (its wide dtype); 0 for all other dtypes. */
int ad_dtype_is_wide(ad_dtype dtype);
int ad_dtype_is_of_arrays(ad_dtype dtype); /* 1: arrays, tensors, parameters and files take the dtype */

/* Writes a list of the dtypes for which `takes` returns 1, for a message: "f64, f32, bf16 or f16" if `word` is "or".
 * The names are those in `format` (ad_dtype_name_in) or, if `format` is NULL, addend's. Returns `buffer`, which has
 * AD_DTYPES_TEXT bytes. */
enum { AD_DTYPES_TEXT = 128 };
AD_INTERNAL const char *ad_dtypes_print(int (*takes)(ad_dtype), const char *format, const char *word, char *buffer);

#endif
