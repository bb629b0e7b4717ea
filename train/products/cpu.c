/* Finds out which instructions for matrix products the processor has, and how fast its bf16 instructions are. */
#include "products/cpu.h"

#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* ---- which instructions the processor has ---- */

#if defined(__x86_64__)
/* Returns 1 if the processor has bf16 matrix units (AMX) and the operating system saves their registers. */
static int has_amx(void) {
  unsigned a, b, c, d, saved;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
  return (saved >> 17 & 3) == 3;
}

static void read_name(ad_cpu *cpu) {
  unsigned a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return;
  memcpy(cpu->vendor, &b, 4);
  memcpy(cpu->vendor + 4, &d, 4);
  memcpy(cpu->vendor + 8, &c, 4);
  if (!__get_cpuid(1, &a, &b, &c, &d)) return;
  int family = (int)(a >> 8 & 15), model = (int)(a >> 4 & 15);
  cpu->family = family == 15 ? family + (int)(a >> 20 & 255) : family;
  cpu->model = family == 6 || family == 15 ? model | (int)(a >> 16 & 15) << 4 : model;
}

ad_cpu ad_cpu_own(void) {
  ad_cpu cpu = {.vendor = ""};
  __builtin_cpu_init();
  read_name(&cpu);
  cpu.has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  cpu.has_avx512 = cpu.has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  cpu.has_avx512bf16 = cpu.has_avx512 && __builtin_cpu_supports("avx512bf16");
  cpu.has_amx = cpu.has_avx512bf16 && has_amx();
  return cpu;
}
#else
ad_cpu ad_cpu_own(void) { return (ad_cpu){.vendor = ""}; }
#endif

/* ---- how fast bf16 products are, by the processor's model ---- */

enum { ANY_MODEL = -1 };

/* The speed of AVX-512's bf16 instructions compared with those of f32: twice as fast on Zen, half as fast on Intel, by
 * the rates of oneDNN (lab/measured/README.md, Matrix products). */
static const struct {
  const char *vendor;
  int family, model;
  ad_units bf16;
} known[] = {
    {"AuthenticAMD", 0x19, ANY_MODEL, AD_UNITS_FAST_BF16}, /* Zen 4; Zen 3 is of this family, too, but does not have
                                                            * these instructions */
    {"AuthenticAMD", 0x1a, ANY_MODEL, AD_UNITS_FAST_BF16}, /* Zen 5 */
    {"GenuineIntel", 6, 0x55, AD_UNITS_AVX512BF16},        /* Cooper Lake */
    {"GenuineIntel", 6, 0x8f, AD_UNITS_AVX512BF16},        /* Sapphire Rapids, if its matrix units are hidden */
    {"GenuineIntel", 6, 0xcf, AD_UNITS_AVX512BF16},        /* Emerald Rapids, if its matrix units are hidden */
    {"GenuineIntel", 6, 0xad, AD_UNITS_AVX512BF16},        /* Granite Rapids */
    {"GenuineIntel", 6, 0xae, AD_UNITS_AVX512BF16},        /* Granite Rapids D */
};

/* Returns how fast this processor's bf16 instructions are. A processor outside the table counts as slow: its bf16
 * products are computed in f32, so they are as fast as f32's. */
static ad_units worth_of_bf16(const ad_cpu *cpu) {
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(known[i].vendor, cpu->vendor) && known[i].family == cpu->family &&
        (known[i].model == ANY_MODEL || known[i].model == cpu->model))
      return known[i].bf16;
  return AD_UNITS_AVX512BF16;
}

ad_units ad_cpu_units(const ad_cpu *cpu) {
  if (cpu->has_amx) return AD_UNITS_AMX;
  if (cpu->has_avx512bf16) return worth_of_bf16(cpu);
  return cpu->has_avx512 ? AD_UNITS_AVX512 : cpu->has_avx2 ? AD_UNITS_AVX2 : AD_UNITS_PLAIN;
}
