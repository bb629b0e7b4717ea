/* Hosts of this machine: network namespaces with a name and an address each, joined by a bridge in one more. They are
 * removed when they are closed, and when this process ends without it, whatever ends it. */
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
  char bridge[BENCH_HOST_WORD];                               /* the namespace that joins them */
  char folder[BENCH_HOST_WORD];                               /* all hosts see it */
  char list[BENCH_HOST_WORD + 8], shell[BENCH_HOST_WORD + 8]; /* files there, for launchers */
  char places[BENCH_PLACES]; /* how many ranks are where, as MPICH's launcher takes it */
  pid_t keeper;              /* the process that removes them when `alive` is closed */
  int alive;
} bench_hosts;

/* `qdisc`: what tc puts at every host's interface, in its words; NULL: nothing. A failure has been told on standard
 * error. */
ad_status bench_hosts_open(bench_world world, const char *qdisc, bench_hosts *out) AD_CHECKED;
void bench_hosts_close(bench_hosts *hosts);

/* Bytes that all hosts sent since they are there, by the counters of their interfaces; -1: they cannot be read. */
int64_t bench_hosts_sent(const bench_hosts *hosts);

/* Words before those of a program that lets it run on the host, with the host's name; returns how many. */
int bench_hosts_enter_words(const bench_hosts *hosts, int host, char *line[]);
/* Words of an MPI's launcher that place the ranks on the hosts; returns how many. Variables that MPICH needs are set in
 * this process. */
int bench_hosts_launcher_words(const bench_hosts *hosts, int is_openmpi, char *line[]);
/* Brings this process into the host's network. Returns 0, or else it is not there. */
int bench_hosts_enter(const bench_hosts *hosts, int host);

#endif
