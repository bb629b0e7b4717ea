/* A rank's side of a measurement, the same for addend, for the bare program and for every peer written in C: it joins
 * the conductor, waits for tasks, runs and times them. What runs is the team's; who measures whom is decided in
 * conductor.c.
 *
 * Ranks sleep in a socket while others are measured, so that measured programs may take turns in one run. */
#ifndef BENCH_WORKER_H
#define BENCH_WORKER_H
#include <stddef.h>

enum { BENCH_WORD = 32, BENCH_MESSAGE = 256, BENCH_RANKS_MAX = 32 };

/* What is measured once: "OP DTYPE MEMORY STORAGE BYTES IN_PLACE ITERATIONS", the words of a row of `addend bench
 * --json`. */
typedef struct bench_task {
  char op[BENCH_WORD], memory[BENCH_WORD];
  char dtype[BENCH_WORD];   /* of the value; of a train_step what it computes in, beside f32 parameters and gradients */
  char storage[BENCH_WORD]; /* of parameters, where there are any: "whole", "zero1", "zero2" or "zero3"; of a
                               parallel_step how ranks share it */
  size_t bytes; /* of the whole value: what all_reduce and reduce_scatter read, what all_gather gives; what one
                   rank reads of an all_to_all, and where rows go to experts */
  int in_place;
  int iterations; /* 0: run it once on known numbers and look at the result */
} bench_task;

/* The ranks of one program. Functions return 0, or else what they were asked cannot be done here. */
typedef struct bench_team {
  void *self;
  int rank, ranks;
  int only_f32; /* adds f32 whatever the dtype says: only those results are looked at */
  /* Memory of the kind that the task names, all pages present, freed in the order in which it was given; NULL:
   * ordinary. */
  void *(*alloc)(void *self, const bench_task *task, size_t bytes);
  void (*free)(void *self, const bench_task *task, void *memory);
  int (*run)(void *self, const bench_task *task, const void *in, void *out);
  int (*barrier)(void *self);
  /* Seconds that this rank waited for sums, in a pipeline for transfers, since it was asked last, as the program itself
   * counts them; NULL: it does not count. */
  double (*waited)(void *self);
} bench_team;

size_t bench_element(const char *dtype); /* bytes of one */
int bench_is_collective(const char *op);
int bench_releases(const bench_task *task); /* parameters are whole only while they are used */

/* Writes and reads the line of a task; reading returns 0 if it is one. */
void bench_task_print(const bench_task *task, char line[BENCH_MESSAGE]);
int bench_task_read(const char *line, bench_task *out);

/* How often a task is done before it is timed. */
int bench_warm_ups(const bench_task *task);
struct sockaddr_un;
/* The socket's name: of a path the file's, which ranks on other hosts' networks see too; of any other address one that
 * no file has. Returns its size; 0: it is too long. */
unsigned bench_socket_name(const char *address, struct sockaddr_un *out);

/* Binds this rank to a core where every rank can have one (Open MPI does so too), joins the conductor at `address` and
 * does what it asks until it hangs up: seconds, the processor's seconds and seconds of waiting, of one iteration.
 * Returns an exit status. */
int bench_work(const char *address, const bench_team *team);
/* Seconds of a clock that only goes forward: the one clock of bench/. It is not base/clock.h, because peers are
 * compiled with worker.c and without addend. */
double bench_now(void);

#endif
