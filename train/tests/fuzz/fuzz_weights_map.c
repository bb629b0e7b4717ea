/* Fuzzes the index of sharded weights: what is accepted names files by plain names, which cannot lead out of the
 * index's folder; the same bytes give the same result again. */
#include <stdlib.h>
#include <string.h>
#include "data/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
  if (!holds) abort();
}

static void check_map(const json_t *map) {
  const char *tensor;
  json_t *file;
  require(json_object_size(map) > 0);
  json_object_foreach((json_t *)map, tensor, file) {
    const char *name = json_string_value(file);
    require(name && *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  json_t *map = NULL, *again = NULL;
  ad_status status = ad_weights_map_parse((const char *)data, size, "fuzz", &map);
  require(ad_weights_map_parse((const char *)data, size, "fuzz", &again) == status);
  if (status) {
    require(!map && !again && ad_last_error()[0] != 0);
    return 0;
  }
  check_map(map);
  require(json_equal(map, again));
  json_decref(map);
  json_decref(again);
  return 0;
}
