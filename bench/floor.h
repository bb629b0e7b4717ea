/* The bare program: what the same bytes cost with no library at all. Ranks are forked and share one mapping; a
 * collective is barriers and one loop over buffers that every rank sees. */
#ifndef BENCH_FLOOR_H
#define BENCH_FLOOR_H
#include <stddef.h>

/* Two ways, of which the faster counts: each rank does its slice of the work on everybody's buffers; or everybody
 * copies its addends into a slot and reads the others', which needs one synchronisation instead of two. */
typedef enum bench_floor_way { BENCH_FLOOR_SLICES, BENCH_FLOOR_SLOTS } bench_floor_way;

/* Starts `ranks` processes that join the conductor at `address`, with room for as many parameters as `numel`; returns
 * when they have ended. */
int bench_floor(const char *address, int ranks, bench_floor_way way, size_t numel);

#endif
