/* Chooses the variant of the kernels at run time. The kernels themselves are in kernels_body.h. */
#include "kernels/kernels.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include "base/error.h"
#include "kernels/kernels_table.h"
#include "base/text.h"

static const struct {
  const char *name;
  const kernel_table *table;
} variants[] = {
    [AD_PLAIN] = {"plain", &ad_kernels_plain},
    [AD_AVX2] = {"avx2", &ad_kernels_avx2},
    [AD_AVX512] = {"avx512", &ad_kernels_avx512},
    [AD_AVX512FP16] = {"avx512fp16", &ad_kernels_avx512fp16},
};
enum { VARIANT_COUNT = sizeof variants / sizeof *variants };

#if defined(__x86_64__)
// clang 14's __builtin_cpu_supports does not know the names of these two features.
static int has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
static int has_avx512fp16(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 23 & 1);
}
#endif

/* Returns the widest variant whose instructions the processor has. */
static ad_variant widest_of_machine(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return AD_PLAIN;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return AD_AVX2;
  return __builtin_cpu_supports("avx512bf16") && has_avx512fp16() ? AD_AVX512FP16 : AD_AVX512;
#else
  return AD_PLAIN;
#endif
}

// Returns the variant that ADDEND_KERNELS names, or VARIANT_COUNT if it names none.
static int wanted_variant(void) {
  const char *wanted = getenv("ADDEND_KERNELS");
  int i = wanted ? 0 : VARIANT_COUNT;
  while (i < VARIANT_COUNT && strcmp(wanted, variants[i].name) != 0) i++;
  return i;
}

ad_variant ad_kernels_best(void) {
  int widest = (int)widest_of_machine(), wanted = wanted_variant();
  return (ad_variant)(wanted < widest ? wanted : widest);
}

ad_status ad_kernels_check(void) {
  const char *wanted = getenv("ADDEND_KERNELS");
  if (!wanted || !*wanted || wanted_variant() < VARIANT_COUNT) return AD_OK;
  char names[128];
  ad_text known = ad_text_on(names, sizeof names);
  for (int i = 0; i < VARIANT_COUNT; i++) ad_text_add(&known, "%s%s", i ? ", " : "", variants[i].name);
  return ad_fail(
      AD_INVALID,
      "ADDEND_KERNELS in the environment is \"%s\", but must be one of %s; set one of these, or unset ADDEND_KERNELS",
      wanted, names);
}

static atomic_int chosen = -1;  // the variant in use; -1: not chosen yet

ad_variant ad_kernels_variant(void) {
  int variant = atomic_load_explicit(&chosen, memory_order_relaxed);
  if (variant >= 0) return (ad_variant)variant;
  int unset = -1;
  atomic_compare_exchange_strong(&chosen, &unset, (int)ad_kernels_best());
  return (ad_variant)atomic_load(&chosen);
}

const char *ad_kernels_name(ad_variant variant) { return variants[variant].name; }

void ad_kernels_choose(ad_variant variant) {
  ad_variant best = ad_kernels_best();
  atomic_store(&chosen, (int)(variant < best ? variant : best));
}

static const kernel_table *kernels(void) { return variants[ad_kernels_variant()].table; }

static int has_cast(ad_dtype to, ad_dtype from) {
  return (ad_dtype_is_float(to) && ad_dtype_is_float(from)) || (to == from && ad_dtype_size(to));
}

static ad_status refuse_cast(const void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype) {
  if (has_cast(dst_dtype, src_dtype)) AD_NEED_OF("ad_cast", dst, src);
  return ad_fail(AD_INVALID,
                 "ad_cast cannot convert from %s to %s; floats can be converted only to floats, and integers and bool "
                 "not to another dtype; use another destination dtype",
                 ad_dtype_name(src_dtype), ad_dtype_name(dst_dtype));
}

ad_status ad_cast(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, size_t n) {
  if ((n && (!dst || !src)) || !has_cast(dst_dtype, src_dtype)) return refuse_cast(dst, dst_dtype, src, src_dtype);
  kernels()->cast(dst, dst_dtype, src, src_dtype, n);
  return AD_OK;
}

void ad_cast_scaled(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n) {
  kernels()->cast_scaled(dst, dst_dtype, src, src_dtype, factor, n);
}

void ad_cast_past(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n) {
  kernels()->cast_past(dst, dst_dtype, src, src_dtype, factor, n);
}

void ad_accumulate(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n) {
  kernels()->accumulate(dst, dst_dtype, src, src_dtype, factor, n);
}

void ad_reduce(void *const *out, size_t out_count, const void *const *sources, size_t source_count,
               const ad_reducing *how, size_t n) {
  kernels()->reduce(out, out_count, sources, source_count, how, n);
}

void ad_copy_past(void *dst, const void *src, size_t bytes) { kernels()->copy_past(dst, src, bytes); }

void ad_copy(void *dst, const void *src, size_t bytes) {
  if (ad_is_past_caches(2 * bytes))
    ad_copy_past(dst, src, bytes);
  else if (bytes)
    memcpy(dst, src, bytes);
}

/* Returns the size in bytes from which a copy to memory in another core's cache is faster past the caches; 0: never.
 * Measured on Zen 4. */
static size_t shared_limit(void) {
#if defined(__x86_64__)
  if (__builtin_cpu_is("amd")) return (size_t)16 << 10;
#endif
  return 0;
}

void ad_copy_shared(void *dst, const void *src, size_t bytes) {
  size_t limit = shared_limit();
  if (limit && bytes >= limit)
    ad_copy_past(dst, src, bytes);
  else
    ad_copy(dst, src, bytes);
}

int ad_is_past_caches(size_t bytes) { return bytes > (size_t)64 << 20; }

void ad_round_to_bf16(void *values, ad_dtype dtype, size_t numel) {
  uint16_t narrow[512];
  size_t size = ad_dtype_size(dtype);
  for (size_t at = 0; at < numel; at += 512) {
    size_t n = numel - at < 512 ? numel - at : 512;
    ad_cast(narrow, AD_BF16, (char *)values + at * size, dtype, n);
    ad_cast((char *)values + at * size, dtype, narrow, AD_BF16, n);
  }
}
