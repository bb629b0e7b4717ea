/* Simulated hosts on this machine: network namespaces, each with a host name and an address, joined by a bridge in one
 * more namespace. They are removed by bench_hosts_close, or when this process ends in any way. */
#ifndef BENCH_HOSTS_H
#define BENCH_HOSTS_H
#include <stdint.h>
#include <sys/types.h>

#include "addend/status.h"
#include "bench.h"

enum { BENCH_HOST_WORD = 40, BENCH_PLACES = BENCH_HOSTS_MAX * (BENCH_HOST_WORD + 16) };

typedef struct bench_host {
  char space[BENCH_HOST_WORD], name[BENCH_HOST_WORD], address[BENCH_HOST_WORD];
} bench_host;

typedef struct bench_hosts {
  bench_world world;
  bench_host host[BENCH_HOSTS_MAX];
  char bridge[BENCH_HOST_WORD];                               /* the namespace with the bridge between hosts */
  char folder[BENCH_HOST_WORD];                               /* a temporary folder that all hosts can read */
  char list[BENCH_HOST_WORD + 8], shell[BENCH_HOST_WORD + 8]; /* files in `folder`: host list and ssh replacement */
  char places[BENCH_PLACES]; /* hosts and their numbers of ranks, for MPICH's option -hosts */
  pid_t keeper;              /* the process that removes the hosts when `alive` is closed */
  int alive;                 /* this process's end of a pipe; the keeper acts when it is closed */
} bench_hosts;

/* Makes the hosts. `qdisc`: the queueing discipline that tc sets on every host's interface, such as "netem delay 1ms";
 * NULL: none. A failure was reported on standard error. */
ad_status bench_hosts_open(bench_world world, const char *qdisc, bench_hosts *out) AD_CHECKED;
void bench_hosts_close(bench_hosts *hosts);

/* Returns the bytes that all hosts have sent so far, by their interfaces' counters; -1: these cannot be read. */
int64_t bench_hosts_sent(const bench_hosts *hosts);

/* Writes the command-line words that, put before a program's words, run it on the host. Returns how many. */
int bench_hosts_enter_words(const bench_hosts *hosts, int host, char *line[]);
/* Writes the options of an MPI launcher that place the ranks on the hosts; returns the number of words. Also sets
 * environment variables that MPICH needs in this process. */
int bench_hosts_launcher_words(const bench_hosts *hosts, int is_openmpi, char *line[]);
/* Moves this process into the host's network namespace. Returns 0 on success. */
int bench_hosts_enter(const bench_hosts *hosts, int host);

#endif
