/* The conductor: the process to which the ranks of all started programs connect, and which lets the programs do
 * tasks in turns, whatever the tasks measure. */
#ifndef BENCH_CONDUCTOR_H
#define BENCH_CONDUCTOR_H
#include <sys/types.h>

#include "worker.h"

typedef struct bench_program {
  char name[BENCH_WORD]; /* "addend", "floor", "openmpi", ...; NUL-terminated */
  int ranks;
  pid_t process;             /* the process that started the ranks */
  int rank[BENCH_RANKS_MAX]; /* each rank's socket; -1: the rank has not joined */
  double busy;               /* processor seconds of all ranks together in one iteration of the last task */
  double waiting; /* seconds that a rank waited in one iteration, mean over ranks; 0: the program does not count them */
  int lives;      /* 1: all ranks have joined and still answer */
} bench_program;

/* Makes a listening socket for one program and writes its address. `folder`: the address is a file there; NULL: an
 * abstract address without a file. Returns -1 on failure. */
int bench_listen(const char *folder, char address[BENCH_WORD]);
/* Waits until all ranks of a started program have joined; if not within `seconds`, program->lives is 0. */
void bench_gather(bench_program *program, int listener, double seconds);
/* Lets all ranks do the task; returns the seconds of the slowest rank, or -1 if the program cannot do the task. Ends a
 * program that does not answer within `patience` seconds. */
double bench_perform(bench_program *program, const bench_task *task, double patience);
/* Closes the ranks' sockets, so that the ranks end, and waits for the program's end. */
void bench_dismiss(bench_program *program);

#endif
