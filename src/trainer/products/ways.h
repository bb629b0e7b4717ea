/* A table of ways for products that was measured on a machine and lies in a file: `addend bench --op products --write
 * FILE` makes it, ADDEND_PRODUCTS=FILE has it count. */
#ifndef PRODUCTS_WAYS_H
#define PRODUCTS_WAYS_H
#include "products/gemm_ways.h"

enum { AD_WAYS_BITS = 9 };

/* A way for each dtype and shape, so few bits that ranks tell each other all of it as they join. */
gemm_way ad_ways_at(uint32_t ways, ad_dtype values, gemm_shape shape);
/* The same with another way there; f32 is made by GEMM_BLAS or GEMM_ONEDNN, bf16 by any but GEMM_BLAS. */
uint32_t ad_ways_with(uint32_t ways, ad_dtype values, gemm_shape shape, gemm_way way);
/* Such as "f32 openblas openblas onednn, bf16 onednn widened_openblas onednn": vectors, small and large ones. */
const char *ad_ways_print(uint32_t ways, char *buffer, size_t size);

/* What the file says. AD_IO and AD_INVALID name it and what is wrong: it is no such table, was measured with
 * instructions that this process does not have (`units`), or wants oneDNN where there is none. */
ad_status ad_ways_read(const char *path, ad_units units, uint32_t *out) AD_CHECKED;
ad_status ad_ways_write(const char *path, ad_units units, uint32_t ways) AD_CHECKED;

#endif
