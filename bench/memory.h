/* Memory of ranks that train, as `addend plan` says it and as the kernel counts it. */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H
#include <jansson.h>

#include "bench.h"

/* Appends a row for every mesh, ZeRO level and dtype that the options leave. The first failure is told when the others
 * are measured, AD_INTERRUPTED at once; rows that could be measured are there. */
ad_status bench_measure_memory(const bench_options *options, json_t *rows) AD_CHECKED;
/* What the activations of one batch more take, planned and as the kernel counts it, of a step in f32 and one in bf16,
 * and what part bf16 has of f32's; from the rows above, null without them. */
json_t *bench_activations(const json_t *rows);

#endif
