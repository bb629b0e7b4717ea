/* What matrix products need to know about the processor of this process. */
#ifndef PRODUCTS_CPU_H
#define PRODUCTS_CPU_H
#include "products/products.h"

/* What cpuid reports; instructions count only if the operating system saves their registers. */
typedef struct ad_cpu {
  char vendor[13]; /* "AuthenticAMD", "GenuineIntel"; empty if the processor has no cpuid */
  int family, model;
  int has_avx2, has_avx512, has_avx512bf16, has_amx; /* 1 if the processor has these instructions and the related
                                                      * ones that products need */
} ad_cpu;

ad_cpu ad_cpu_own(void);
/* Returns the processor's instructions for products, ranked by speed. The speed of bf16 is in a table of processors; a
 * processor that is not in it counts as slow. */
ad_units ad_cpu_units(const ad_cpu *cpu);

#endif
