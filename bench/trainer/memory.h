/* Memory of ranks that train, as `addend plan` says it and as the kernel counts it. */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H
#include <jansson.h>

#include "bench/bench.h"

/* Appends a row for every mesh, ZeRO level and dtype that the options leave. The first failure is told when the others
 * are measured, AD_INTERRUPTED at once; rows that could be measured are there. */
ad_status bench_measure_memory(const bench_options *options, json_t *rows) AD_CHECKED;
/* From the rows above: what the activations of one batch more take in f32 and in bf16, and what part of f32's bf16
 * takes, `planned` and as the kernel counts (`pss`); null where rows are missing. */
json_t *bench_activations(const json_t *rows);

#endif
