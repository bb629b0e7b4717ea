/* Memory of ranks that train, as `addend plan` says it and as the kernel counts it. */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H
#include <jansson.h>

#include "bench.h"

/* Appends a row for every mesh, ZeRO level and dtype that the options leave. */
void bench_measure_memory(const bench_options *options, json_t *rows);

#endif
