/* The conductor: starts programs whose ranks join it, and lets them work in turns. It knows neither what they measure
 * nor what the numbers mean. */
#ifndef BENCH_CONDUCTOR_H
#define BENCH_CONDUCTOR_H
#include <sys/types.h>

#include "worker.h"

typedef struct bench_program {
  char name[BENCH_WORD]; /* "addend", "floor", "openmpi", ...; NULL-terminated */
  int ranks;
  pid_t process;             /* the one that started the ranks */
  int rank[BENCH_RANKS_MAX]; /* sockets, -1 while a rank has not joined */
  double busy;               /* the processor's seconds of all ranks in the last task, of one iteration */
  double waiting; /* seconds that a rank waited in one iteration of it, the mean; 0: it does not count them */
  int lives;      /* 1: all ranks have joined, and it has failed at nothing since */
} bench_program;

/* A socket address for one program, and its socket. `folder`: the address is a file there; NULL: of no file. Returns -1
 * if there is none. */
int bench_listen(const char *folder, char address[BENCH_WORD]);
/* Waits until all ranks of a started program have joined; it does not live if they do not within `seconds`. */
void bench_gather(bench_program *program, int listener, double seconds);
/* All ranks do the task; returns the seconds of the slowest, or -1 if the program cannot do it. A program that does not
 * answer within `patience` seconds is ended. */
double bench_perform(bench_program *program, const bench_task *task, double patience);
/* Hangs up and waits for the end. */
void bench_dismiss(bench_program *program);

#endif
