/* The machine on which a measurement was taken. */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H
#include <jansson.h>

/* {"cpu", "cores", "memory_bytes", "kernel", "huge_pages", "load"} */
json_t *bench_machine(void);
/* GB/s that all cores together read and write while each copies 64 MiB; best of several. */
double bench_copy_gbps(void);

#endif
