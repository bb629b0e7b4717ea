/* Memory of ranks that train, as `addend plan` says it and as the kernel counts it. */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H
#include <jansson.h>

#include "bench.h"

/* Appends a row for every mesh, ZeRO level and dtype that the options leave. The first failure is told when the others
 * are measured, AD_INTERRUPTED at once; rows that could be measured are there. */
ad_status bench_measure_memory(const bench_options *options, json_t *rows) AD_CHECKED;

#endif
