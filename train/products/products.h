/* The library for matrix products (OpenBLAS, or oneDNN if it is there) and the processor's instructions. When ranks
 * join, they agree on those that all of them have, as for the vector kernels, so that all choose the same way. */
#ifndef PRODUCTS_PRODUCTS_H
#define PRODUCTS_PRODUCTS_H
#include <stdint.h>
#include "addend/status.h"

/* The instructions that a product may use, in ascending order. */
typedef enum ad_units {
  AD_UNITS_PLAIN,
  AD_UNITS_AVX2,
  AD_UNITS_AVX512,
  AD_UNITS_AVX512BF16, /* with bf16 instructions that are no faster than f32's */
  AD_UNITS_FAST_BF16,  /* the same instructions, twice as fast as f32's */
  AD_UNITS_AMX
} ad_units;
const char *ad_units_name(ad_units units);

/* The library for products: chosen by the table of gemm_choice.c, or by ADDEND_PRODUCTS: one library for all
 * products (openblas, onednn), or a file with a table (ways.h). */
typedef enum ad_library { AD_LIBRARY_BY_TABLE, AD_LIBRARY_OPENBLAS, AD_LIBRARY_ONEDNN, AD_LIBRARY_BY_FILE } ad_library;

typedef struct ad_products {
  ad_units units;
  ad_library library;
  uint32_t onednn; /* oneDNN's version: 10000 major + 100 minor + patch; 0: no oneDNN */
  uint32_t ways;   /* the file's table, packed (ways.h); 0: none */
} ad_products;

ad_products ad_products_own(void); /* the properties of this process */
/* The properties that both processes have: the lesser instructions; and oneDNN, library and file's table only if
 * both have the same. */
ad_products ad_products_common(ad_products a, ad_products b);
/* Packed into one number, never 0, for ranks to send each other. */
uint32_t ad_products_packed(ad_products products);
ad_products ad_products_unpacked(uint32_t packed);
ad_products ad_products_in_use(void);
void ad_products_choose(ad_products agreed);
/* AD_INVALID if ADDEND_PRODUCTS is no library's name and no table's file, or if this process cannot use it. */
ad_status ad_products_check(void) AD_CHECKED;

/* Returns 1 if large bf16 products are made in f32. */
int ad_products_widen(ad_products products);
enum { AD_PRODUCTS_TEXT = 256 };
/* Prints everything that determines the bits of products in this process: the choice, instructions, libraries.
 * Returns buffer. */
const char *ad_products_print(char buffer[AD_PRODUCTS_TEXT]);

/* oneDNN's version in this process, as in ad_products. Defined in the one file that calls oneDNN. */
uint32_t ad_onednn_version(void);

#endif
