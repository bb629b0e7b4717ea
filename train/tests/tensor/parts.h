/* Compares an operation on the parts of a value with the same operation on the gathered value, on meshes on which some
 * ranks have an empty part. */
#ifndef TESTS_TENSOR_PARTS_H
#define TESTS_TENSOR_PARTS_H
#include "two_ways.h"

typedef ad_tensor *(*formula)(ad_tape *t, ad_tensor *const *x);

enum { SEQ = 5, WIDTH = 7 };

/* Compares on four meshes, with samples sharded over dp_shard and columns over tp. Inputs are [batch, SEQ, WIDTH]; if
 * `has_numbers` the last one is [batch, SEQ]. */
static inline void compare_on_all(formula fused, formula composed, const char *layout, int inputs, int has_numbers) {
  static const char *const meshes[] = {"dp_shard=1 tp=1", "dp_shard=2 tp=1", "dp_shard=1 tp=3", "dp_shard=3 tp=2"};
  for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
    // one of three ranks has no sample, or more samples than the others
    for (int64_t batch = 2; batch < 5; batch += 2) {
      comparison c = {.mesh = meshes[m], .input_count = inputs, .fused = fused, .composed = composed};
      for (int i = 0; i < inputs; i++) c.inputs[i] = (input){layout, SHAPE(3, batch, SEQ, WIDTH), 0};
      if (has_numbers) c.inputs[inputs - 1] = (input){"dp_shard=S0 tp=I", SHAPE(2, batch, SEQ), 0};
      compare(c);
    }
  }
}

static const char rows_sharded[] = "dp_shard=S0 tp=I", both_sharded[] = "dp_shard=S0 tp=S2";

static inline ad_tensor *full(ad_tape *t, ad_tensor *x) {
  ad_tensor *rows = ad_tensor_array(x)->layout.type[AD_TP] == AD_S(2) ? ad_all_gather(t, x, "tp", AD_I) : x;
  return ad_all_gather(t, rows, "dp_shard", AD_I);
}
static inline ad_tensor *rows_of(ad_tape *t, ad_tensor *full_value) {
  return ad_convert(t, full_value, "dp_shard", AD_S(0));
}
static inline ad_tensor *part_of(ad_tape *t, ad_tensor *full_value) {
  return ad_convert(t, rows_of(t, full_value), "tp", AD_S(2));
}
static inline ad_tensor *summed(ad_tape *t, ad_tensor *addends) { return ad_all_reduce(t, addends, "dp_shard", AD_I); }
static inline ad_tensor *summed_of_parts(ad_tape *t, ad_tensor *addends) {
  return ad_all_reduce(t, addends, "dp_shard tp", AD_I);
}
static inline ad_tensor *difference(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_add(t, a, ad_scale(t, b, -1)); }

#endif
