/* The program `addend` starts OpenBLAS with one thread. Where the trainer is part of it. */
#include <unistd.h>

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
