/* The facts about this process's processor that matrix products need. */
#ifndef PRODUCTS_CPU_H
#define PRODUCTS_CPU_H
#include "products/products.h"

/* The facts from cpuid, as far as the operating system saves the registers. */
typedef struct ad_cpu {
  char vendor[13]; /* "AuthenticAMD", "GenuineIntel"; empty: the processor has no cpuid */
  int family, model;
  int has_avx2, has_avx512, has_avx512bf16, has_amx; /* each with the other instructions that products need */
} ad_cpu;

ad_cpu ad_cpu_own(void);
/* The instructions by speed: from a table of processors; for unknown ones from the instructions alone. */
ad_units ad_cpu_units(const ad_cpu *cpu);

#endif
