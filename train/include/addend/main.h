/* Makes a custom program a command: `mine check`, `mine train`, `mine plan` and `mine report`, with everything that
 * `addend` has for its own programs. A program can also be a shared object that `addend --program` loads.
 * train/docs/own-program.md builds one from an empty file.
 *
 * For authors of programs. Call ad_main first in main, before any thread is started. */
#ifndef ADDEND_MAIN_H
#define ADDEND_MAIN_H
#include "addend/program.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* Does all the work of `main`. `kinds`, ended by NULL, are registered (ad_program_register) before anything is read,
 * and --help lists their keys. The kinds are borrowed for the life of the process. Returns the exit status:
 *   0   everything is right, or the work is done
 *   1   the command's answer is no: a check does not match, for example
 *   2   the call or the recipe is wrong
 *   3   it could not finish
 * Ranks are forked from this process, or are the processes that mpirun, srun or `addend run` started. Call ad_main
 * first in `main`, with main's own arguments: if the environment does not set OpenBLAS's threads, the process restarts
 * itself once. */
AD_API int ad_main(int argc, char **argv, const ad_program_kind *const *kinds);

#if defined(__cplusplus)
}
#endif
#endif
