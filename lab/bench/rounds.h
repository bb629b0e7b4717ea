/* Measures one case with all programs in turns (A B C A B C ...): the machine is shared and its speed changes, so
 * numbers that are compared must be measured in the same seconds. */
#ifndef BENCH_ROUNDS_H
#define BENCH_ROUNDS_H
#include <jansson.h>

#include "cases.h"

typedef struct bench_orchestra {
  bench_program programs[BENCH_KINDS_MAX]; /* programs[i] is the program of bench_kinds[i] */
  int ranks;
  bench_duty duty;
  const bench_model *model;
} bench_orchestra;

/* Measures one case and appends its rows to `rows`: one with the comm's shared memory and, for collectives, one with
 * ordinary memory. */
void bench_measure(bench_orchestra *orchestra, const bench_case *measured, int quick, json_t *rows);

#endif
