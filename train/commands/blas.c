/* Corrects the settings with which OpenBLAS was started. OpenBLAS reads the environment only when it is loaded, so the
 * program changes the environment and executes itself again. */
#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer.h"

static int is_before_avx2(const char *core) {
  static const char *const cores[] = {
      "Prescott", "Core2",        "Penryn",    "Dunnington", "Nehalem",   "Sandybridge", "Atom",        "Athlon",
      "Opteron",  "Opteron_SSE3", "Barcelona", "Bobcat",     "Bulldozer", "Piledriver",  "Steamroller", "Nano"};
  for (size_t i = 0; i < sizeof cores / sizeof *cores; i++)
    if (!strcmp(core, cores[i])) return 1;
  return 0;
}

static const char *core_of_machine(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return NULL;
}

static int has_set(const char *name, const char *value) { return !getenv(name) && setenv(name, value, 1) == 0; }

/* Makes OpenBLAS compute with one thread, because each rank has one, and with kernels for this processor. In `addend`
 * itself cli/threads.c already set the number of threads before OpenBLAS was loaded. */
void ad_cli_correct_blas(char **argv) {
  const char *core = is_before_avx2(openblas_get_corename()) ? core_of_machine() : NULL;
  int is_other = has_set("OPENBLAS_NUM_THREADS", "1");
  if (core) is_other |= has_set("OPENBLAS_CORETYPE", core);
  if (is_other) execv("/proc/self/exe", argv); /* returns only if execv failed */
}
