/* `addend bench`: measures addend and its peers (other libraries) in one run, on the same data; the programs take
 * turns. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H
#include <stddef.h>

#include "addend/status.h"

enum { BENCH_COUNTS_MAX = 8, BENCH_ROUNDS_MAX = 9, BENCH_HOSTS_MAX = 8 };

enum { BENCH_SMALLEST = 1024 }; /* bytes of the smallest case */

/* Number of hosts, and ranks on each. */
typedef struct bench_world {
  int hosts, ranks;
} bench_world;

typedef struct bench_options {
  const char *op;              /* measure only this operation; NULL: all */
  int ranks[BENCH_COUNTS_MAX]; /* numbers of ranks to measure with */
  int rank_count; /* entries of `ranks`. 0: the default, which is 2, 4 and 8 ranks; only 2 and 4 for sharded_step (which
                     takes gigabytes), exchange and attention; 3 too for errors */
  size_t largest; /* bytes: larger cases are left out; 0: no limit */
  int peers;      /* 1: measure every installed peer too */
  bench_world worlds[BENCH_COUNTS_MAX]; /* if any are given: measure collectives between simulated hosts instead */
  int world_count;
  const char *qdisc; /* queueing discipline that tc sets on every host's interface; NULL: none */
  const char *write; /* for op "products": file to write the table of the fastest kernels to; NULL: none */
  int quick;         /* fewer rounds, sizes up to 1 MiB */
  void (*progress)(const char *what, int done, int of);
} bench_options;

/* Returns the name of operation `index`, from 0; NULL after the last. */
const char *bench_op(int index);
/* Returns the name of operation `index`, from 0, of those measured between hosts; NULL after the last. */
const char *bench_between_op(int index);
/* Returns 1 if `op` is a name that bench_op gives. */
int bench_has_op(const char *op);
/* Runs the measurements and sets *out to the JSON document of `addend bench --json`, which the caller frees with
 * free(); NULL if there is no memory. After any other failure some rows are missing; AD_INTERRUPTED: the user asked to
 * stop. */
ad_status bench_run(const bench_options *options, char **out) AD_CHECKED;
/* Returns the document as a readable table; the caller frees it with free(). */
char *bench_table(const char *json);

#endif
