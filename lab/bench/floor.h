/* The floor: a bare program that moves the same data without any library, as the time to compare with. Ranks are forked
 * and share one mapping; a collective is one loop over all ranks' buffers between barriers. */
#ifndef BENCH_FLOOR_H
#define BENCH_FLOOR_H
#include <stddef.h>

/* Two ways of a collective; the report shows the faster one. SLICES: each rank does its slice of the work on all ranks'
 * buffers. SLOTS: each rank copies its input into a slot and reads the other slots, which needs one synchronisation
 * instead of two. */
typedef enum bench_floor_way { BENCH_FLOOR_SLICES, BENCH_FLOOR_SLOTS } bench_floor_way;

/* Starts `ranks` processes that join the conductor at `address`, with buffers for `numel` f32 parameters; returns when
 * they have ended. */
int bench_floor(const char *address, int ranks, bench_floor_way way, size_t numel);

#endif
