/* Makes `addend` start OpenBLAS with one thread. Compiled only into programs that have the trainer. */
#include <unistd.h>

enum { VARIABLES_MAX = 4096 };

/* Executes this program again with OPENBLAS_NUM_THREADS=1, because each rank has one thread. OpenBLAS starts its
 * threads as soon as it is loaded: a process that ends meanwhile may hang, and OpenBLAS interrupts the process if no
 * thread can be started (ulimit -u). The section .preinit_array runs this function before any library is initialised,
 * when neither setenv nor sanitizers work. */
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
  execve("/proc/self/exe", argv, with_it); /* returns only if execve failed */
}
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(int, char **, char **) = load_without_blas_threads;
