/* A measured rank, in addend, in the floor and in every peer written in C: it joins the conductor, receives tasks, runs
 * and times them. The functions of its `bench_team` do the task; conductor.c decides when each program works.
 *
 * Ranks sleep in recv while other programs are measured, so that programs can take turns in one run. */
#ifndef BENCH_WORKER_H
#define BENCH_WORKER_H
#include <stddef.h>

enum { BENCH_WORD = 32, BENCH_MESSAGE = 256, BENCH_RANKS_MAX = 32 };

/* A task, sent as "OP DTYPE MEMORY STORAGE BYTES IN_PLACE ITERATIONS"; the words mean what they mean in a row of
 * `addend bench --json`. */
typedef struct bench_task {
  char op[BENCH_WORD], memory[BENCH_WORD];
  char dtype[BENCH_WORD];   /* dtype of the value; for train_step, the dtype of computing (parameters are f32) */
  char storage[BENCH_WORD]; /* how parameters are stored: "whole", "zero1", "zero2" or "zero3"; for parallel_step,
                               how ranks share the work */
  size_t bytes; /* of the full value: a rank's input of all_reduce and reduce_scatter, its output of all_gather, its
                   input of all_to_all and of the exchange with experts */
  int in_place;
  int iterations; /* 0: run the task once with known numbers and check the result */
} bench_task;

/* A rank of a program, with the functions that do its tasks. A function returns 0, or 1 if it cannot do the task. */
typedef struct bench_team {
  void *self;
  int rank, ranks;
  int only_f32; /* 1: adds f32 whatever the task's dtype, so only f32 results are checked */
  /* Allocates memory of the kind that the task names, with all pages present; freed in the order of allocation. A NULL
   * pointer: the worker uses ordinary memory. */
  void *(*alloc)(void *self, const bench_task *task, size_t bytes);
  void (*free)(void *self, const bench_task *task, void *memory);
  int (*run)(void *self, const bench_task *task, const void *in, void *out);
  int (*barrier)(void *self);
  /* Returns the seconds that this rank waited for sums (in a pipeline: for transfers) since the last call, as the
   * program counts them; NULL: the program does not count them. */
  double (*waited)(void *self);
} bench_team;

size_t bench_element(const char *dtype); /* bytes of one element */
int bench_is_collective(const char *op);
int bench_releases(const bench_task *task); /* 1: ZeRO 3, which keeps full parameters only during their use */

/* Writes a task as a line, and reads one; reading returns 0 if the line is a task. */
void bench_task_print(const bench_task *task, char line[BENCH_MESSAGE]);
int bench_task_read(const char *line, bench_task *out);

/* Returns how often a task is done, to warm up, before it is timed. */
int bench_warm_ups(const bench_task *task);
struct sockaddr_un;
/* Makes the name of the conductor's socket: the file's name if `address` is a path (which other network namespaces can
 * open), else an abstract name. Returns its size, or 0 if the address is too long. */
unsigned bench_socket_name(const char *address, struct sockaddr_un *out);

/* Binds this rank to a core if there is one for every rank (as Open MPI does), joins the conductor at `address` and
 * does the conductor's tasks until the conductor closes the connection. Answers each with three times of one iteration:
 * seconds, processor seconds, and seconds of waiting. Returns an exit status. */
int bench_work(const char *address, const bench_team *team);
/* Returns the seconds of a monotonic clock. lab/bench/ does not use base/clock.h, because peers are compiled with
 * worker.c but without addend. */
double bench_now(void);

/* Returns private memory on huge pages, like a tape's values and Open MPI's heap with the best settings; huge pages
 * save time, since the kernel reads another process's memory page by page. The caller frees it with free(). Returns
 * NULL if there is no memory. */
void *bench_ordinary_alloc(size_t bytes);

#endif
