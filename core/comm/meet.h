/* Meetings: how ranks exchange data before they share memory. Each rank gives bytes (its note) and gets all notes. */
#ifndef COMM_MEET_H
#define COMM_MEET_H
#include "addend/comm.h"
#include "base/error.h"

typedef struct ad_meeting {
  uint32_t rank, ranks;
  void *context;
  /* An all-gather: `own` has `bytes` bytes of this rank; the bytes of all ranks are written to `all` (ranks * bytes
   * bytes) in order of rank. All ranks call it with the same `bytes`, and wait in it for each other. */
  ad_status (*all_gather)(void *context, const void *own, size_t bytes, void *all);
} ad_meeting;

/* ---- in rendezvous.c: a meeting over the caller's callbacks ---- */

/* A meeting over the caller's callbacks (ad_rendezvous). `round` counts the all-gathers so far. `token` is part of
 * the keys in the store; 0 until this rank knows it. */
typedef struct ad_rendezvous_meeting {
  ad_meeting meeting;
  ad_rendezvous by;
  int64_t token;
  uint32_t round;
} ad_rendezvous_meeting;

/* Waits until all ranks have arrived, and fills *out. Do not move or copy *out: its meeting points into it. Values that
 * earlier worlds left in the store are ignored. AD_SYSTEM names a rank that has not arrived in time; other errors come
 * from the callbacks. */
ad_status ad_rendezvous_begin(const ad_rendezvous *by, uint32_t rank, uint32_t ranks,
                              ad_rendezvous_meeting *out) AD_CHECKED;

/* ---- in sockets.c: a meeting between processes of one machine ---- */

typedef struct ad_socket_meeting {
  ad_meeting meeting;
  int64_t deadline; /* by ad_now(): when waiting for other ranks ends with an error */
  int *peers;       /* owned: sockets; on rank 0 one to each rank, elsewhere [0] to rank 0; -1: no connection */
  uint32_t peer_count;
} ad_socket_meeting;

/* Connects all ranks to rank 0 through an abstract Unix socket, which leaves no file. `world` is a name that is the
 * same on all ranks of the launch. AD_SYSTEM names the ranks that have not arrived after `seconds`. */
ad_status ad_sockets_begin(const char *world, uint32_t rank, uint32_t ranks, int64_t seconds,
                           ad_socket_meeting *out) AD_CHECKED;
void ad_sockets_end(ad_socket_meeting *meeting);

#endif
