/* Ranks leave by _exit, which alone would leave gcov's counts behind. */
extern void __gcov_dump(void);
extern void _exit(int) __attribute__((noreturn));
static inline __attribute__((noreturn)) void exit_with_counts(int status) { __gcov_dump(), _exit(status); }
#define _exit exit_with_counts
