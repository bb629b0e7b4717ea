/* Compares the memory of training ranks as `addend plan` computes it with what the kernel counts. */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H
#include <jansson.h>

#include "bench/bench.h"

/* Appends a row for each mesh, ZeRO level and dtype in the options. After a failure the other cases are still measured,
 * then the first failure is returned; AD_INTERRUPTED is returned immediately. */
ad_status bench_measure_memory(const bench_options *options, json_t *rows) AD_CHECKED;
/* Computes from these rows the bytes of activations that one more batch needs, with f32 and with bf16 computing, and
 * their ratio: `planned`, and as the kernel counts (`pss`); null if rows are missing. */
json_t *bench_activations(const json_t *rows);

#endif
