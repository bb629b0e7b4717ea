/* The library for matrix products (OpenBLAS, or oneDNN if it is installed) and the processor's instructions. When ranks
 * join, they agree on what all of them have (as for the vector kernels), so that all choose the same way. */
#ifndef PRODUCTS_PRODUCTS_H
#define PRODUCTS_PRODUCTS_H
#include <stdint.h>
#include "addend/status.h"

/* The instructions that a product may use, the best ones last. */
typedef enum ad_units {
  AD_UNITS_PLAIN,
  AD_UNITS_AVX2,
  AD_UNITS_AVX512,
  AD_UNITS_AVX512BF16, /* with bf16 instructions that are no faster than those of f32 */
  AD_UNITS_FAST_BF16,  /* with bf16 instructions that are twice as fast as those of f32 */
  AD_UNITS_AMX
} ad_units;
const char *ad_units_name(ad_units units);

/* How the library for products is chosen: by the table in gemm_choice.c, or by ADDEND_PRODUCTS, which names a library
 * for all products (openblas, onednn) or a file with a table (ways.h). */
typedef enum ad_library { AD_LIBRARY_BY_TABLE, AD_LIBRARY_OPENBLAS, AD_LIBRARY_ONEDNN, AD_LIBRARY_BY_FILE } ad_library;

typedef struct ad_products {
  ad_units units;
  ad_library library;
  uint32_t onednn; /* oneDNN's version, 10000 major + 100 minor + patch; 0 if there is no oneDNN */
  uint32_t ways;   /* the table from a file, packed (ways.h); 0 if there is none */
} ad_products;

ad_products ad_products_own(void); /* returns what this process has */
/* Returns what both processes have: the best instructions that both have; and oneDNN, library and table from a file
 * only if they are the same in both. */
ad_products ad_products_common(ad_products a, ad_products b);
/* Packs everything into one number, never 0, that ranks send each other. */
uint32_t ad_products_packed(ad_products products);
ad_products ad_products_unpacked(uint32_t packed);
ad_products ad_products_in_use(void);
void ad_products_choose(ad_products agreed);
/* Returns AD_INVALID if ADDEND_PRODUCTS names neither a library nor a file with a table, or one that this process
 * cannot use. */
ad_status ad_products_check(void) AD_CHECKED;

/* Returns 1 if large bf16 products are computed in f32. */
int ad_products_widen(ad_products products);
enum { AD_PRODUCTS_TEXT = 256 };
/* The facts that determine the bits of products in this process. */
typedef enum ad_products_fact {
  AD_PRODUCTS_CHOICE, /* how the library is chosen */
  AD_PRODUCTS_INSTRUCTIONS,
  AD_PRODUCTS_OPENBLAS,  /* OpenBLAS's version, and the processor that its kernels are for */
  AD_PRODUCTS_ONEDNN,    /* oneDNN's version, or "none" */
  AD_PRODUCTS_THREADS,   /* the number of threads of one product */
  AD_PRODUCTS_PROCESSOR, /* the kind of processor, by whose caches libraries divide matrices */
  AD_PRODUCTS_FACTS
} ad_products_fact;
/* Writes the fact's value, such as "avx512", and returns buffer. */
const char *ad_products_print_fact(ad_products_fact fact, char buffer[AD_PRODUCTS_TEXT]);
/* A hash of all facts, never 0. */
uint64_t ad_products_kind(void);
/* Writes all facts but the last two: the choices on which the ranks agreed, and the versions of the libraries. Returns
 * buffer. */
const char *ad_products_print(char buffer[AD_PRODUCTS_TEXT]);

/* Returns oneDNN's version in this process, as ad_products has it. Defined in the one file that calls oneDNN. */
uint32_t ad_onednn_version(void);

#endif
