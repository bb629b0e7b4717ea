/* The sizes of the measured models (library.h). */
#include "library.h"

const bench_model bench_small = {.layers = 6, .d_model = 384, .heads = 6, .seq = 256, .batch = 8};
const bench_model bench_small_doubled = {.layers = 3, .d_model = 768, .heads = 12, .seq = 256, .batch = 8};
const bench_model bench_wide = {.layers = 4, .d_model = 512, .heads = 8, .seq = 256, .batch = 8};
const bench_model bench_tiny = {.layers = 2, .d_model = 128, .heads = 4, .seq = 64, .batch = 8};
const bench_model bench_tiny_doubled = {.layers = 2, .d_model = 256, .heads = 8, .seq = 64, .batch = 8};
const bench_model bench_staged = {.layers = 8, .d_model = 384, .heads = 6, .seq = 256, .batch = 8};
const bench_model bench_tiny_staged = {.layers = 4, .d_model = 128, .heads = 4, .seq = 64, .batch = 8};
const bench_model bench_leaves = {.layers = 6, .d_model = 384, .heads = 6, .seq = 256, .batch = 16};
const bench_model bench_decomposed = {.layers = 2, .d_model = 128, .heads = 4, .seq = 64, .batch = 16};
const bench_model bench_tiny_decomposed = {.layers = 1, .d_model = 32, .heads = 2, .seq = 16, .batch = 8};
const bench_model bench_large = {.layers = 14, .d_model = 768, .heads = 12, .seq = 256, .batch = 8};
