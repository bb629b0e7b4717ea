/* Tests on real ranks: every rank is a separate process, so that nothing is shared by accident. A check that fails in
 * a rank ends that rank; the other ranks then learn that it left, and the test that started them fails with the first
 * rank's message.
 *
 * With ADDEND_TEST_MPIRUN="mpirun.mpich" in the environment the ranks are started by that launcher, on backend mpi.
 *
 *   static int sums(ad_comm *comm, void *context) { CHECK_OK(ad_comm_run(comm, ...)); CHECK(x == 3); return 0; }
 *   static void ranks_sum(void **state) { run_ranks(3, sums, NULL); } */
#ifndef TESTS_SUPPORT_RANKS_H
#define TESTS_SUPPORT_RANKS_H
#include <stddef.h>
#include <stdint.h>
#include "addend/comm.h"
#include "says.h"

/* Checks for use in a rank. */
#define CHECK(condition) ((condition) ? (void)0 : rank_check_failed(__FILE__, __LINE__, #condition))
#define CHECK_OK(call) rank_check_status((call), AD_OK, __FILE__, __LINE__, #call)
#define CHECK_STATUS(call, expected) rank_check_status((call), (expected), __FILE__, __LINE__, #call)
/* Checks that the message recorded last has these facts, and that its sentence is listed (says.h). */
#define CHECK_SAYS(...) \
  rank_check_says(says_wrong(ad_last_error(), SAYS_FACTS(__VA_ARGS__), __FILE__, __func__), __FILE__, __LINE__)
#define CHECK_TEXT_SAYS(text, ...) \
  rank_check_says(says_wrong_line((text), SAYS_FACTS(__VA_ARGS__), __FILE__, __func__), __FILE__, __LINE__)
#define CHECK_SAYS_IN(list, text, facts) \
  rank_check_says(says_wrong((text), (facts), __FILE__, (list)), __FILE__, __LINE__)
#define CHECK_LISTED() CHECK_SAYS(NULL)
#define CHECK_FACTS(...) rank_check_says(says_missing(ad_last_error(), SAYS_FACTS(__VA_ARGS__)), __FILE__, __LINE__)
#define CHECK_FACTS_ALL(facts) rank_check_says(says_missing(ad_last_error(), (facts)), __FILE__, __LINE__)
#define CHECK_SAYS_ALL(facts) \
  rank_check_says(says_wrong(ad_last_error(), (facts), __FILE__, __func__), __FILE__, __LINE__)

/* For use in a test: runs function(comm, context) on `ranks` ranks; fails unless each returns 0. */
#define run_ranks(ranks, function, context) run_ranks_at((ranks), (function), (context), __FILE__, __LINE__)

void rank_check_failed(const char *file, int line, const char *words) __attribute__((noreturn));
void rank_check_status(ad_status status, ad_status expected, const char *file, int line, const char *words);
void rank_check_says(const char *wrong, const char *file, int line);
void run_ranks_at(int64_t ranks, int (*function)(ad_comm *comm, void *context), void *context, const char *file,
                  int line);
/* Fails if the rank has memory that nothing points to; only the address sanitizer sees that. */
void rank_leaks_check(void);
/* Allocates `bytes` between two red zones, filled with the byte 0xff (NaN in every float type). rank_memory_check fails
 * if a red zone was written. */
void *rank_memory(size_t bytes);
void rank_memory_check(const void *memory);
void rank_memory_free(void *memory);
/* Seconds of a clock that only goes forward; for use in ranks and tests. */
double rank_seconds(void);
/* Seconds after which a call counts as hanging. Tests check that something ends, not how soon: the machine may be busy,
 * and sanitizers are slow. */
enum { RANK_HANGS = 60 };

#endif
