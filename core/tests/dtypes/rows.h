/* Rows that test_added.c adds to the dtypes (core/base/dtypes.h): an 8-bit float, a 16-bit float with other widths than
 * bf16 and f16, a float of 7 bits whose precision is that of the first, and an integer. Included before everything in
 * the sources that are compiled with them. */
#ifndef TESTS_DTYPES_ROWS_H
#define TESTS_DTYPES_ROWS_H
#include "addend/dtype.h"

enum { ADDED_F8 = AD_BOOL + 1, ADDED_E6M9, ADDED_E4M2, ADDED_U16 };

#define AD_ADDED_FLOATS(X)                                                                                    \
  X(ADDED_F8, f8, uint8_t, BY_WIDTHS, 5, 2, .safetensors = "F8_E5M2", .torch = "float8_e5m2", .dlpack = "10") \
  X(ADDED_E6M9, e6m9, uint16_t, BY_WIDTHS, 6, 9, .safetensors = "E6M9")                                       \
  X(ADDED_E4M2, e4m2, uint8_t, BY_WIDTHS, 4, 2, .safetensors = "E4M2")
#define AD_ADDED_INTEGERS(X) X(ADDED_U16, u16, uint16_t, 16, .safetensors = "U16", .numpy = "u2", .dlpack = "1")

#endif
