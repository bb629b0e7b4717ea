/* The activations' part of what ranks hold: recipes that differ in their batch alone hold the same besides. */
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

/* Of one batch; 0 if it is not known. */
static double one_batch(const json_t *rows, const char *compute, const char *key) {
  const json_t *once = json_object_get(find(rows, compute, 1), key);
  const json_t *twice = json_object_get(find(rows, compute, 2), key);
  return json_number_value(twice) > 0 && json_number_value(once) > 0
             ? json_number_value(twice) - json_number_value(once)
             : 0;
}

static json_t *positive(double value) { return value > 0 ? json_real(value) : json_null(); }

static json_t *compare(const json_t *rows, const char *key) {
  double f32 = one_batch(rows, "f32", key), bf16 = one_batch(rows, "bf16", key);
  return json_pack("{so so so}", "f32_bytes", positive(f32), "bf16_bytes", positive(bf16), "ratio",
                   positive(f32 > 0 ? bf16 / f32 : 0));
}

json_t *bench_activations(const json_t *rows) {
  if (!find(rows, "f32", 2) || !find(rows, "bf16", 2)) return json_null();
  return json_pack("{so so}", "planned", compare(rows, "planned_activation_bytes"), "pss",
                   compare(rows, "pss_rank_bytes"));
}
