/* Describes the machine on which a measurement was taken. */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H
#include <jansson.h>

/* Returns a JSON object with "cpu", "cores", "memory_bytes", "kernel", "shared_huge_pages" and "load". */
json_t *bench_machine(void);
/* Returns the memory bandwidth: GB/s that all cores together read and write while each copies 64 MiB; the best of
 * several tries. */
double bench_copy_gbps(void);

#endif
