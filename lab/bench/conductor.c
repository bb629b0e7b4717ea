/* The sockets and processes of the conductor (the main process of a benchmark): ranks join, get tasks and send
 * times; programs are ended. */
#include "conductor.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

int bench_listen(const char *folder, char address[BENCH_WORD]) {
  static int count;
  struct sockaddr_un name;
  if (folder)
    snprintf(address, BENCH_WORD, "%s/%d", folder, count++);
  else
    snprintf(address, BENCH_WORD, "addend-bench-%d-%d", (int)getpid(), count++);
  socklen_t size = bench_socket_name(address, &name);
  int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (listener >= 0 && !bind(listener, (struct sockaddr *)&name, size) && !listen(listener, BENCH_RANKS_MAX))
    return listener;
  if (listener >= 0) close(listener);
  return -1;
}

static int is_readable(int socket, double seconds) {
  struct pollfd at = {.fd = socket, .events = POLLIN};
  return poll(&at, 1, (int)(seconds * 1e3)) > 0;
}

static int hear(int socket, double seconds, char line[BENCH_MESSAGE]) {
  if (!is_readable(socket, seconds)) return 1;
  ssize_t bytes = recv(socket, line, BENCH_MESSAGE - 1, 0);
  if (bytes <= 0) return 1;
  line[bytes] = 0;
  return 0;
}

static int report(int socket, const char *line) { return send(socket, line, strlen(line) + 1, MSG_NOSIGNAL) < 0; }

static int welcome(bench_program *program, int listener) {
  int joined = accept4(listener, NULL, NULL, SOCK_CLOEXEC), rank;
  char line[BENCH_MESSAGE];
  if (joined < 0) return 1;
  if (hear(joined, 5, line) || sscanf(line, "%d", &rank) != 1 || rank < 0 || rank >= program->ranks ||
      program->rank[rank] >= 0)
    return close(joined), 1;
  program->rank[rank] = joined;
  return 0;
}

static int has_ended(bench_program *program) {
  if (waitpid(program->process, NULL, WNOHANG) == 0) return 0;
  program->process = -1;
  return 1;
}

void bench_gather(bench_program *program, int listener, double seconds) {
  double end = bench_now() + seconds;
  int joined = 0;
  while (joined < program->ranks && bench_now() < end) {
    if (is_readable(listener, 0.05)) {
      if (welcome(program, listener)) break;
      joined++;
    } else if (has_ended(program)) {
      break;
    }
  }
  close(listener);
  program->lives = joined == program->ranks;
  if (!program->lives) bench_dismiss(program);
}

static double collect(bench_program *program, double patience) {
  double slowest = 0, end = bench_now() + patience;
  int able = 1;
  program->busy = program->waiting = 0;
  for (int i = 0; i < program->ranks; i++) {
    char line[BENCH_MESSAGE];
    double left = end - bench_now(), seconds = -1, busy = 0, waiting = 0;
    if (hear(program->rank[i], left > 0 ? left : 0, line)) return bench_dismiss(program), -1;
    sscanf(line, "%lf %lf %lf", &seconds, &busy, &waiting);
    program->busy += busy;
    program->waiting += waiting / program->ranks;
    if (seconds < 0) able = 0;
    if (seconds > slowest) slowest = seconds;
  }
  return able ? slowest : -1;
}

double bench_perform(bench_program *program, const bench_task *task, double patience) {
  char line[BENCH_MESSAGE];
  if (!program->lives) return -1;
  bench_task_print(task, line);
  for (int i = 0; i < program->ranks; i++)
    if (report(program->rank[i], line)) return bench_dismiss(program), -1;
  return collect(program, patience);
}

/* Waits 5 s for a program's end (launchers end with their ranks), then kills it. */
static void see_off(pid_t process) {
  double end = bench_now() + 5;
  while (bench_now() < end) {
    if (waitpid(process, NULL, WNOHANG)) return;
    usleep(2000);
  }
  kill(process, SIGTERM);
  usleep(500000);
  kill(process, SIGKILL);
  waitpid(process, NULL, 0);
}

void bench_dismiss(bench_program *program) {
  for (int i = 0; i < program->ranks; i++) {
    if (program->rank[i] >= 0) close(program->rank[i]);
    program->rank[i] = -1;
  }
  if (program->process > 0) see_off(program->process);
  program->process = -1;
  program->lives = 0;
}
