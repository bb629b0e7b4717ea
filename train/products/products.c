/* The library and the instructions for matrix products: those of this process, and those on which all ranks agreed. */
#include "products/products.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "addend/helpers.h"
#include "base/error.h"
#include "base/text.h"
#include "base/trait.h"
#include "products/blas.h"
#include "products/cpu.h"
#include "products/ways.h"

static const char *const unit_names[] = {"plain", "avx2", "avx512", "avx512bf16", "fast avx512bf16", "amx"};

const char *ad_units_name(ad_units units) {
  return (unsigned)units < sizeof unit_names / sizeof *unit_names ? unit_names[units] : "unknown";
}

/* ---- the properties of this process ---- */

static ad_units own_units(void) {
  ad_cpu cpu = ad_cpu_own();
  return ad_cpu_units(&cpu);
}

static ad_status read_file(const char *path, ad_products *own) {
  own->library = AD_LIBRARY_BY_FILE;
  if (!ad_ways_read(path, own->units, &own->ways)) return AD_OK;
  char why[AD_MESSAGE_MAX];
  snprintf(why, sizeof why, "%s", ad_last_error());
  return ad_fail(AD_INVALID,
                 "ADDEND_PRODUCTS must be openblas, onednn, or a file that `addend bench --op products --write FILE` "
                 "made, but is \"%s\" (%s)",
                 path, why);
}

static ad_status find_own(ad_products *own) {
  const char *text = getenv("ADDEND_PRODUCTS");
  *own = (ad_products){.units = own_units(), .onednn = ad_onednn_version()};
  if (!text || !*text) return AD_OK;
  if (!strcmp(text, "openblas")) return own->library = AD_LIBRARY_OPENBLAS, AD_OK;
  if (strcmp(text, "onednn") != 0) return read_file(text, own);
  if (!own->onednn)
    return ad_fail(
        AD_INVALID,
        "ADDEND_PRODUCTS is \"onednn\", but addend was built without oneDNN; set openblas, or unset ADDEND_PRODUCTS");
  return own->library = AD_LIBRARY_ONEDNN, AD_OK;
}

ad_status ad_products_check(void) {
  ad_products own;
  return find_own(&own);
}

/* Returns what this process has. An invalid ADDEND_PRODUCTS is treated as not set, because ad_products_check refuses
 * it. */
ad_products ad_products_own(void) {
  ad_products own;
  if (find_own(&own)) own.library = AD_LIBRARY_BY_TABLE, own.ways = 0;
  return own;
}

/* ---- the properties that all ranks have ---- */

ad_products ad_products_common(ad_products a, ad_products b) {
  int same = a.library == b.library && a.ways == b.ways;
  return (ad_products){.units = a.units < b.units ? a.units : b.units,
                       .library = same ? a.library : AD_LIBRARY_BY_TABLE,
                       .onednn = a.onednn == b.onednn ? a.onednn : 0,
                       .ways = same ? a.ways : 0};
}

/* The bits of a packed number, from the lowest: a 1 (so that it is never 0), instructions, library, the table from a
 * file, oneDNN's version. */
enum { LIBRARY_AT = 4, WAYS_AT = 6, ONEDNN_AT = WAYS_AT + AD_WAYS_BITS };

uint32_t ad_products_packed(ad_products products) {
  return products.onednn << ONEDNN_AT | products.ways << WAYS_AT | (uint32_t)products.library << LIBRARY_AT |
         (uint32_t)products.units << 1 | 1;
}

ad_products ad_products_unpacked(uint32_t packed) {
  return (ad_products){.units = (ad_units)(packed >> 1 & 7),
                       .library = (ad_library)(packed >> LIBRARY_AT & 3),
                       .onednn = packed >> ONEDNN_AT,
                       .ways = packed >> WAYS_AT & ((1 << AD_WAYS_BITS) - 1)};
}

static _Atomic uint32_t chosen; /* packed; 0 before the ranks agreed */

ad_products ad_products_in_use(void) {
  uint32_t now = atomic_load_explicit(&chosen, memory_order_relaxed), unset = 0;
  if (!now) {
    now = ad_products_packed(ad_products_own());
    if (!atomic_compare_exchange_strong(&chosen, &unset, now)) now = unset;
  }
  return ad_products_unpacked(now);
}

void ad_products_choose(ad_products agreed) { atomic_store(&chosen, ad_products_packed(agreed)); }

/* ---- printing the choice as text ---- */

static void print_choice(ad_text *text, ad_products in_use) {
  static const char *const words[] = {"by table", "OpenBLAS", "oneDNN", "by file: "};
  char ways[128];
  ad_text_add(text, "%s%s", words[in_use.library],
              in_use.library == AD_LIBRARY_BY_FILE ? ad_ways_print(in_use.ways, ways, sizeof ways) : "");
}

static void print_onednn(ad_text *text, uint32_t version) {
  if (version)
    ad_text_add(text, "oneDNN %u.%u.%u", version / 10000, version / 100 % 100, version % 100);
  else
    ad_text_add(text, "none");
}

static void print_processor(ad_text *text) {
  ad_cpu own = ad_cpu_own();
  ad_text_add(text, "%s family %d model %d", *own.vendor ? own.vendor : "unknown vendor", own.family, own.model);
}

static void print_fact(ad_text *text, ad_products in_use, ad_products_fact fact) {
  switch (fact) {
    case AD_PRODUCTS_CHOICE:
      print_choice(text, in_use);
      return;
    case AD_PRODUCTS_INSTRUCTIONS:
      ad_text_add(text, "%s", ad_units_name(in_use.units));
      return;
    case AD_PRODUCTS_OPENBLAS:
      ad_text_add(text, "%s", ad_blas_name());
      return;
    case AD_PRODUCTS_ONEDNN:
      print_onednn(text, in_use.onednn);
      return;
    case AD_PRODUCTS_THREADS:
      ad_text_add(text, "%d", ad_blas_threads());
      return;
    default:
      print_processor(text);
  }
}

const char *ad_products_print_fact(ad_products_fact fact, char buffer[AD_PRODUCTS_TEXT]) {
  ad_text text = ad_text_on(buffer, AD_PRODUCTS_TEXT);
  print_fact(&text, ad_products_in_use(), fact);
  return buffer;
}

const char *ad_products_print(char buffer[AD_PRODUCTS_TEXT]) {
  ad_products in_use = ad_products_in_use();
  ad_text text = ad_text_on(buffer, AD_PRODUCTS_TEXT);
  for (int fact = AD_PRODUCTS_CHOICE; fact <= AD_PRODUCTS_OPENBLAS; fact++) {
    ad_text_add(&text, "%s", fact == AD_PRODUCTS_CHOICE ? "" : "; ");
    print_fact(&text, in_use, (ad_products_fact)fact);
  }
  if (in_use.onednn) {
    ad_text_add(&text, ", ");
    print_onednn(&text, in_use.onednn);
  }
  return buffer;
}

uint64_t ad_products_kind(void) {
  char text[AD_PRODUCTS_FACTS * AD_PRODUCTS_TEXT] = "", fact_text[AD_PRODUCTS_TEXT];
  size_t used = 0;
  for (int fact = 0; fact < AD_PRODUCTS_FACTS; fact++)
    used += (size_t)snprintf(text + used, sizeof text - used, "%s;",
                             ad_products_print_fact((ad_products_fact)fact, fact_text));
  return ad_random_stream(text) | 1;
}

/* ---- the trait (a number that ranks send each other when they join) ---- */

static uint32_t own_trait(void) { return ad_products_packed(ad_products_own()); }

static uint32_t common_trait(uint32_t one, uint32_t other) {
  return ad_products_packed(ad_products_common(ad_products_unpacked(one), ad_products_unpacked(other)));
}

static void choose_trait(uint32_t agreed) { ad_products_choose(ad_products_unpacked(agreed)); }

/* Registers the properties on which ranks agree. This runs when the library is loaded, before any rank can join. */
__attribute__((constructor)) static void offer_trait(void) {
  static const ad_trait trait = {ad_products_check, own_trait, common_trait, choose_trait};
  ad_trait_offer(&trait);
}
