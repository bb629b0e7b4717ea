/* Computes the memory of activations from rows of memory.h: recipes that differ only in the batch differ only in
 * this memory. */
#include <string.h>

#include "memory.h"

static const json_t *find(const json_t *rows, const char *compute, int batches) {
  size_t i;
  json_t *row;
  json_array_foreach((json_t *)(size_t)rows, i, row) {
    const json_t *of = json_object_get(row, "batches");
    if (of && json_integer_value(of) == batches && !strcmp(json_string_value(json_object_get(row, "compute")), compute))
      return row;
  }
  return NULL;
}

/* Returns the bytes of activations that one more batch needs, or 0 if they are not known. */
static json_int_t one_batch(const json_t *rows, const char *compute, const char *key) {
  json_int_t once = json_integer_value(json_object_get(find(rows, compute, 1), key));
  json_int_t twice = json_integer_value(json_object_get(find(rows, compute, 2), key));
  return once ? twice - once : 0;
}

static json_t *compare(const json_t *rows, const char *key) {
  json_int_t f32 = one_batch(rows, "f32", key), bf16 = one_batch(rows, "bf16", key);
  if (f32 <= 0 || bf16 <= 0) return json_null();
  return json_pack("{sI sI sf}", "f32_bytes", f32, "bf16_bytes", bf16, "ratio", (double)bf16 / (double)f32);
}

json_t *bench_activations(const json_t *rows) {
  return json_pack("{so so}", "planned", compare(rows, "planned_activation_bytes"), "pss",
                   compare(rows, "pss_rank_bytes"));
}
