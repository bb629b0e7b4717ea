/* Tests which kernels are chosen by a processor's instructions, for known and for unknown processors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "products/cpu.h"

static ad_units units_of(const char *vendor, int family, int model, int amx) {
  ad_cpu cpu = {"", family, model, 1, 1, 1, amx};
  memcpy(cpu.vendor, vendor, strlen(vendor) + 1);
  return ad_cpu_units(&cpu);
}

static void bf16_is_fast_on_zen(void **state) {
  assert_int_equal(units_of("AuthenticAMD", 0x19, 0x11, 0), AD_UNITS_FAST_BF16);  // Zen 4: Genoa
  assert_int_equal(units_of("AuthenticAMD", 0x19, 0x61, 0), AD_UNITS_FAST_BF16);  // Raphael
  assert_int_equal(units_of("AuthenticAMD", 0x1a, 0x02, 0), AD_UNITS_FAST_BF16);  // Zen 5: Turin
}

static void bf16_is_slow_on_intel_without_matrix_units(void **state) {
  assert_int_equal(units_of("GenuineIntel", 6, 0x55, 0), AD_UNITS_AVX512BF16);
  assert_int_equal(units_of("GenuineIntel", 6, 0x8f, 0), AD_UNITS_AVX512BF16);
  assert_int_equal(units_of("GenuineIntel", 6, 0x8f, 1), AD_UNITS_AMX);
  assert_int_equal(units_of("GenuineIntel", 6, 0xad, 1), AD_UNITS_AMX);
}

static void others_are_what_their_instructions_are(void **state) {
  assert_int_equal(units_of("GenuineIntel", 6, 0xff, 0), AD_UNITS_AVX512BF16);
  assert_int_equal(units_of("AuthenticAMD", 0x17, 0x31, 0), AD_UNITS_AVX512BF16);
  assert_int_equal(units_of("SomebodyElse", 0x19, 0x11, 0), AD_UNITS_AVX512BF16);
  assert_int_equal(ad_cpu_units(&(ad_cpu){"AuthenticAMD", 0x19, 0x01, 1, 0, 0, 0}), AD_UNITS_AVX2);  // Zen 3
  assert_int_equal(ad_cpu_units(&(ad_cpu){"GenuineIntel", 6, 0x55, 1, 1, 0, 0}), AD_UNITS_AVX512);
  assert_int_equal(ad_cpu_units(&(ad_cpu){"", 0, 0, 0, 0, 0, 0}), AD_UNITS_PLAIN);
}

static void each_has_a_name_of_its_own(void **state) {
  for (ad_units units = AD_UNITS_PLAIN; units <= AD_UNITS_AMX; units++)
    for (ad_units other = AD_UNITS_PLAIN; other < units; other++)
      assert_string_not_equal(ad_units_name(units), ad_units_name(other));
  assert_string_equal(ad_units_name(AD_UNITS_AMX + 1), "unknown");
}

#if defined(__x86_64__)
static void this_one_is_read(void **state) {
  ad_cpu cpu = ad_cpu_own();
  assert_int_equal(strlen(cpu.vendor), 12);
  assert_true(cpu.family > 0 && cpu.model >= 0);
  assert_true(cpu.has_avx2 >= cpu.has_avx512 && cpu.has_avx512 >= cpu.has_avx512bf16);
}
#else
static void this_one_is_read(void **state) { assert_string_equal(ad_cpu_own().vendor, ""); }
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bf16_is_fast_on_zen),
      cmocka_unit_test(bf16_is_slow_on_intel_without_matrix_units),
      cmocka_unit_test(others_are_what_their_instructions_are),
      cmocka_unit_test(each_has_a_name_of_its_own),
      cmocka_unit_test(this_one_is_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
