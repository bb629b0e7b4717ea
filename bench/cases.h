/* What is measured: the list of cases, each measured by all programs in turns. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H
#include "bench.h"
#include "programs.h"

typedef struct bench_case {
  const char *op;  /* that was asked for; the task's own is a variant of it where it is another */
  bench_task task; /* without iterations; its memory "": whatever each program has */
  int ranks, rounds;
  bench_duty duty;
  const bench_model *model;
} bench_case;

/* Fills at most `max` cases in the order in which they are measured, those of one rank count, duty and model together;
 * returns how many. */
int bench_cases(const bench_options *options, bench_case *cases, int max);

#endif
