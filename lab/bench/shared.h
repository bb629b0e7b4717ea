/* Functions for the measurements of both the core and the trainer: which operations are measured, which failure is
 * reported, where peers are. */
#ifndef BENCH_SHARED_H
#define BENCH_SHARED_H
#include "bench.h"

/* Returns 1 if the options ask for this operation or for all. */
int bench_wants(const bench_options *options, const char *op);
/* Keeps the first failure in *first; AD_INTERRUPTED, a request to stop, replaces any other failure. */
void bench_keep(ad_status *first, ad_status next);
/* Writes the path of a peer's program or script into the buffer: in $ADDEND_PEERS, or in the folder `peers` beside this
 * program. Returns the buffer. */
const char *bench_peer_path(const char *name, char *buffer, size_t size);

#endif
