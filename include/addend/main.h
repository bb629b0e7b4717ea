/* A program of one's own as a command: `mine check`, `mine train`, `mine plan` and `mine report`, with everything that
 * `addend` has for the programs that it brings; or as a shared object that `addend --program` loads.
 * docs/own-program.md builds one from an empty file. */
#ifndef ADDEND_MAIN_H
#define ADDEND_MAIN_H
#include "addend/program.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* All that `main` does. `kinds`, NULL at the end, are registered (ad_program_register) before anything is read; --help
 * lists their keys. They are borrowed, and live as long as the process. Returns the exit status: 0 it holds, 1 the
 * answer is no, 2 the call or the recipe is wrong, 3 it could not finish. Ranks are forked from the process, or are
 * what mpirun, srun or `addend run` started. Call it first in `main`, with what `main` was given: where the environment
 * says nothing of OpenBLAS's threads the process starts itself anew, once. */
AD_API int ad_main(int argc, char **argv, const ad_program_kind *const *kinds);

#if defined(__cplusplus)
}
#endif
#endif
