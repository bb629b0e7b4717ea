/* Makes the program `addend` start OpenBLAS with one thread. Part of programs that have the trainer. */
#include <unistd.h>

enum { VARIABLES_MAX = 4096 };

/* Executes this program again with OPENBLAS_NUM_THREADS=1. OpenBLAS starts threads as soon as it is loaded; a process
 * that ends while they start may wait for them for ever, and if none can be started (ulimit -u) OpenBLAS interrupts the
 * process. Ranks have one thread each. This function must run before any library is initialised, which the section
 * .preinit_array does. setenv does not work that early, nor do sanitizers. */
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
  execve("/proc/self/exe", argv, with_it); /* returns only if it fails */
}
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(int, char **, char **) = load_without_blas_threads;
