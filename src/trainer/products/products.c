/* What makes matrix products on this machine, and what the ranks agreed on. */
#include "products/products.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include "base/error.h"
#include "base/trait.h"

static const char *const unit_names[] = {"plain", "avx2", "avx512", "avx512bf16", "amx"};

const char *ad_units_name(ad_units units) {
  return (unsigned)units < sizeof unit_names / sizeof *unit_names ? unit_names[units] : "unknown";
}

#if defined(__x86_64__)
// Tiles of bf16, and a kernel that saves them.
static int has_amx(void) {
  unsigned a, b, c, d, saved;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
  return (saved >> 17 & 3) == 3;
}
#endif

static ad_units units_of_machine(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return AD_UNITS_PLAIN;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return AD_UNITS_AVX2;
  if (!__builtin_cpu_supports("avx512bf16")) return AD_UNITS_AVX512;
  return has_amx() ? AD_UNITS_AMX : AD_UNITS_AVX512BF16;
#else
  return AD_UNITS_PLAIN;
#endif
}

static ad_library wanted(void) {
  const char *text = getenv("ADDEND_PRODUCTS");
  if (text && !strcmp(text, "openblas")) return AD_LIBRARY_OPENBLAS;
  return text && !strcmp(text, "onednn") && ad_onednn_version() ? AD_LIBRARY_ONEDNN : AD_LIBRARY_BY_TABLE;
}

ad_status ad_products_check(void) {
  const char *text = getenv("ADDEND_PRODUCTS");
  if (!text || !*text || wanted()) return AD_OK;
  if (!strcmp(text, "onednn"))
    return ad_fail(AD_INVALID, "ADDEND_PRODUCTS is \"onednn\", but addend was built without oneDNN");
  return ad_fail(AD_INVALID, "ADDEND_PRODUCTS must be one of openblas, onednn, is \"%s\"", text);
}

ad_products ad_products_own(void) { return (ad_products){units_of_machine(), wanted(), ad_onednn_version()}; }

ad_products ad_products_common(ad_products a, ad_products b) {
  return (ad_products){a.units < b.units ? a.units : b.units, a.library == b.library ? a.library : AD_LIBRARY_BY_TABLE,
                       a.onednn == b.onednn ? a.onednn : 0};
}

uint32_t ad_products_packed(ad_products products) {
  return products.onednn << 8 | (uint32_t)products.library << 4 | (uint32_t)products.units << 1 | 1;
}

ad_products ad_products_unpacked(uint32_t packed) {
  return (ad_products){(ad_units)(packed >> 1 & 7), (ad_library)(packed >> 4 & 15), packed >> 8};
}

static _Atomic uint32_t chosen; /* packed; 0: nobody has asked yet */

ad_products ad_products_in_use(void) {
  uint32_t now = atomic_load_explicit(&chosen, memory_order_relaxed), unset = 0;
  if (!now) {
    now = ad_products_packed(ad_products_own());
    if (!atomic_compare_exchange_strong(&chosen, &unset, now)) now = unset;
  }
  return ad_products_unpacked(now);
}

void ad_products_choose(ad_products agreed) { atomic_store(&chosen, ad_products_packed(agreed)); }

/* ---- what ranks tell each other ---- */

static uint32_t own_trait(void) { return ad_products_packed(ad_products_own()); }

static uint32_t common_trait(uint32_t one, uint32_t other) {
  return ad_products_packed(ad_products_common(ad_products_unpacked(one), ad_products_unpacked(other)));
}

static void choose_trait(uint32_t agreed) { ad_products_choose(ad_products_unpacked(agreed)); }

/* When the library is loaded, so that no rank joins before. */
__attribute__((constructor)) static void offer_trait(void) {
  static const ad_trait trait = {ad_products_check, own_trait, common_trait, choose_trait};
  ad_trait_offer(&trait);
}
