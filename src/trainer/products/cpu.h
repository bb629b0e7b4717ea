/* The processor of this process, as far as matrix products care. */
#ifndef PRODUCTS_CPU_H
#define PRODUCTS_CPU_H
#include "products/products.h"

/* What cpuid says, and which registers the kernel saves. */
typedef struct ad_cpu {
  char vendor[13]; /* "AuthenticAMD", "GenuineIntel"; empty where there is no cpuid */
  int family, model;
  int has_avx2, has_avx512, has_avx512bf16, has_amx; /* each with what products need beside it */
} ad_cpu;

ad_cpu ad_cpu_own(void);
/* What its instructions are worth: a table of processors, and for those that it does not know their instructions. */
ad_units ad_cpu_units(const ad_cpu *cpu);

#endif
