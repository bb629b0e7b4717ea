/* A table of ways to compute products, measured on a machine and kept in a file. `addend bench --op products --write
 * FILE` writes the file; ADDEND_PRODUCTS=FILE uses it. */
#ifndef PRODUCTS_WAYS_H
#define PRODUCTS_WAYS_H
#include "products/gemm_ways.h"

enum { AD_WAYS_BITS = 9 };

/* Returns the way for this dtype and shape. The table is a few bits, which ranks send each other when they join. */
gemm_way ad_ways_at(uint32_t ways, ad_dtype values, gemm_shape shape);
/* Returns the table with `way` for this dtype and shape: GEMM_BLAS or GEMM_ONEDNN for f32, any way except GEMM_BLAS for
 * bf16. */
uint32_t ad_ways_with(uint32_t ways, ad_dtype values, gemm_shape shape, gemm_way way);
/* Writes the ways for vectors, small and large matrices ("f32 openblas openblas onednn, bf16 onednn widened_openblas
 * onednn") and returns buffer. */
const char *ad_ways_print(uint32_t ways, char *buffer, size_t size);

/* Reads a table. Returns AD_IO or AD_INVALID, with file and mistake in the message, if the file is no table, if the
 * table was measured with better instructions than this process's `units`, or if it names oneDNN, which this process
 * does not have. */
ad_status ad_ways_read(const char *path, ad_units units, uint32_t *out) AD_CHECKED;
ad_status ad_ways_write(const char *path, ad_units units, uint32_t ways) AD_CHECKED;

#endif
