/* What makes matrix products: the library oneDNN, which need not be there, and the instructions of the processor. Ranks
 * agree on what every one of them has when they join, as on the vector kernels, so that all choose alike. */
#ifndef PRODUCTS_PRODUCTS_H
#define PRODUCTS_PRODUCTS_H
#include <stdint.h>
#include "addend/status.h"

/* The instructions that a product may use, from few to many. */
typedef enum ad_units { AD_UNITS_PLAIN, AD_UNITS_AVX2, AD_UNITS_AVX512, AD_UNITS_AVX512BF16, AD_UNITS_AMX } ad_units;
const char *ad_units_name(ad_units units);

/* Which library: as a table says, or one for all (ADDEND_PRODUCTS=openblas|onednn in the environment, for tests). */
typedef enum ad_library { AD_LIBRARY_BY_TABLE, AD_LIBRARY_OPENBLAS, AD_LIBRARY_ONEDNN } ad_library;

typedef struct ad_products {
  ad_units units;
  ad_library library;
  uint32_t onednn; /* its version: 10000 major + 100 minor + patch; 0 without it */
} ad_products;

ad_products ad_products_own(void); /* what this process has */
/* What both have: the fewer instructions; oneDNN and a wish only where they are the same. */
ad_products ad_products_common(ad_products a, ad_products b);
/* As one number, never 0, for ranks to tell each other. */
uint32_t ad_products_packed(ad_products products);
ad_products ad_products_unpacked(uint32_t packed);
ad_products ad_products_in_use(void);
void ad_products_choose(ad_products agreed);
/* AD_INVALID if ADDEND_PRODUCTS names no library, or one that is not there. */
ad_status ad_products_check(void) AD_CHECKED;

/* ad_products.onednn of this process. In the one file that calls oneDNN. */
uint32_t ad_onednn_version(void);

#endif
