/* What `addend bench` measures: addend and others in turns, in one run, on the same bytes. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H
#include <stddef.h>

#include "addend/status.h"

enum { BENCH_COUNTS_MAX = 8, BENCH_ROUNDS_MAX = 9, BENCH_HOSTS_MAX = 8 };

enum { BENCH_SMALLEST = 1024 }; /* bytes */

/* So many hosts with so many ranks on each. */
typedef struct bench_world {
  int hosts, ranks;
} bench_world;

typedef struct bench_options {
  const char *op; /* only this one; NULL: all */
  int ranks[BENCH_COUNTS_MAX];
  int rank_count; /* 0: 2, 4 and 8; sharded_step, which takes gigabytes, exchange and attention on 2 and 4; errors
                     on 3 too */
  size_t largest; /* bytes: larger sizes are left out; 0: none is */
  int peers;      /* every installed one too */
  bench_world worlds[BENCH_COUNTS_MAX]; /* collectives between hosts instead */
  int world_count;
  const char *qdisc; /* what tc puts at every host's interface; NULL: nothing */
  const char *write; /* op products: the file for its table of the fastest ways; NULL: none */
  int quick;         /* fewer rounds, sizes up to 1 MiB */
  void (*progress)(const char *what, int done, int of);
} bench_options;

/* The operations that can be measured, one by one; NULL after the last. */
const char *bench_op(int index);
/* The operations that are measured between hosts, likewise. */
const char *bench_between_op(int index);
/* 1 if `op` is one of bench_op's. */
int bench_has_op(const char *op);
/* Gives the document of `addend bench --json`; the caller frees it with free(). NULL if there is no memory. Another
 * failure, AD_INTERRUPTED if it was asked to stop while ranks ran, leaves rows out. */
ad_status bench_run(const bench_options *options, char **out) AD_CHECKED;
/* The same document as a table for people. */
char *bench_table(const char *json);

#endif
