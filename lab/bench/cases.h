/* The list of cases to measure; all programs measure each case in turns. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H
#include "bench.h"
#include "programs.h"

typedef struct bench_case {
  const char *op;  /* the operation's name for --op; of a variant, task.op has another name */
  bench_task task; /* without iterations; memory "": each program uses its own kind of memory */
  int ranks, rounds;
  bench_duty duty;
  const bench_model *model;
} bench_case;

/* Fills at most `max` cases in the order of measuring, with cases of the same number of ranks, duty and model next to
 * each other. Returns the number of cases. */
int bench_cases(const bench_options *options, bench_case *cases, int max);

#endif
