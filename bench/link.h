/* The network between hosts itself, measured: plain TCP streams, one for each two hosts, both ways at once. A task
 * "link" brings `bytes` from every host to every other. */
#ifndef BENCH_LINK_H
#define BENCH_LINK_H
#include "hosts.h"

/* One process on each host, which joins the conductor at `address`; returns when they have ended. */
int bench_link(const char *address, const bench_hosts *hosts);

#endif
