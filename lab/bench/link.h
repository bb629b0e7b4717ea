/* Measures the network between hosts: one plain TCP stream between each two hosts, used in both directions at the same
 * time. The task "link" sends `bytes` from every host to every other. */
#ifndef BENCH_LINK_H
#define BENCH_LINK_H
#include "hosts.h"

/* Starts one process on each host, which join the conductor at `address`; returns when they have ended. */
int bench_link(const char *address, const bench_hosts *hosts);

#endif
