/* How this program starts OpenBLAS. What OpenBLAS does it decides as it is loaded, from its environment, so the program
 * starts itself anew where that has to be another one. */
#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer.h"

enum { VARIABLES_MAX = 4096 };

/* OpenBLAS starts threads as soon as it is loaded, and a process that ends while they start may wait for them for ever;
 * where none can be started (ulimit -u) it interrupts the process. Ranks have one thread each, so this program starts
 * itself anew with one, before any library is initialised: that is what the section is for. setenv does not work yet
 * there, and sanitizers do not either. */
__attribute__((no_sanitize("address", "undefined", "thread"))) static void load_without_blas_threads(
    int argc, char **argv, char **environment) {
  static char one_thread[] = "OPENBLAS_NUM_THREADS=1";
  static char *with_it[VARIABLES_MAX + 2];
  int count = 0;
  for (; environment[count]; count++) {
    if (count == VARIABLES_MAX) return;
    for (int i = 0; environment[count][i] == one_thread[i]; i++)
      if (one_thread[i] == '=') return;
    with_it[count] = environment[count];
  }
  with_it[count] = one_thread;
  execve("/proc/self/exe", argv, with_it); /* returns only where it is not possible */
}
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(int, char **, char **) = load_without_blas_threads;

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

void cli_correct_blas_core(char **argv) {
  const char *core = core_of_machine();
  if (!core || getenv("OPENBLAS_CORETYPE") || !is_before_avx2(openblas_get_corename())) return;
  if (setenv("OPENBLAS_CORETYPE", core, 1) == 0)
    execv("/proc/self/exe", argv); /* returns only where it is not possible */
}
