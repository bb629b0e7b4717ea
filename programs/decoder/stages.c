/* Divides a decoder's layers into stages of similar cost. */
#include "decoder/stages.h"

#include "addend/layout.h"

/* Returns the cost of the costliest stage, if the last stage has `last` layers and the head, and the `before` other
 * stages share the remaining layers evenly. */
static double largest(int64_t layers, double layer, double head, int64_t before, int64_t last) {
  double end = (double)last * layer + head;
  int64_t most = before ? (layers - last + before - 1) / before : 0;
  return (double)most * layer > end ? (double)most * layer : end;
}

void ad_cut_layers(int64_t layers, double layer, double head, size_t stages, int64_t *out) {
  int64_t before = (int64_t)stages - 1, last = layers;
  for (int64_t fewer = layers - 1; before && fewer >= 0; fewer--)
    if (largest(layers, layer, head, before, fewer) < largest(layers, layer, head, before, last)) last = fewer;
  for (int64_t s = 0; s < before; s++) out[s] = ad_cut(layers - last, s, before).count;
  out[before] = last;
}
