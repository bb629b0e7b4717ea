/* The list of cases to measure; all programs measure each case in turns. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H
#include "bench.h"
#include "programs.h"

typedef struct bench_case {
  const char *op;  /* the operation's name for --op; task.op is another name if the case is a variant of it */
  bench_task task; /* without iterations; memory "": each program uses its own kind of memory */
  int ranks, rounds;
  bench_duty duty;
  const bench_model *model;
} bench_case;

/* Fills at most `max` cases in the order of measuring, so that cases with the same number of ranks, duty and model
 * follow each other; returns how many. */
int bench_cases(const bench_options *options, bench_case *cases, int max);

#endif
