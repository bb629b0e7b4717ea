/* A table of ways to make products, measured on a machine and kept in a file. `addend bench --op products --write
 * FILE` writes it; ADDEND_PRODUCTS=FILE uses it. */
#ifndef PRODUCTS_WAYS_H
#define PRODUCTS_WAYS_H
#include "products/gemm_ways.h"

enum { AD_WAYS_BITS = 9 };

/* The way for this dtype and shape. The table has so few bits that ranks send each other all of it when they join. */
gemm_way ad_ways_at(uint32_t ways, ad_dtype values, gemm_shape shape);
/* Returns the table with this way for this dtype and shape. f32: GEMM_BLAS or GEMM_ONEDNN; bf16: any but GEMM_BLAS. */
uint32_t ad_ways_with(uint32_t ways, ad_dtype values, gemm_shape shape, gemm_way way);
/* Prints the ways for vectors, small and large matrices: "f32 openblas openblas onednn, bf16 onednn widened_openblas
 * onednn". */
const char *ad_ways_print(uint32_t ways, char *buffer, size_t size);

/* Reads a table. AD_IO and AD_INVALID name the file and the mistake: it is no table, it was measured with
 * instructions beyond this process's `units`, or it names oneDNN, which is missing here. */
ad_status ad_ways_read(const char *path, ad_units units, uint32_t *out) AD_CHECKED;
ad_status ad_ways_write(const char *path, ad_units units, uint32_t ways) AD_CHECKED;

#endif
