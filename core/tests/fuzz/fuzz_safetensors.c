/* Fuzzes safetensors files: in what is accepted, tensors tile the data without gap, can be read, and are
 * found by name. */
#include <stdlib.h>
#include <string.h>
#include "addend/safetensors.h"
#include "files/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
  if (!holds) abort();
}

static void check_file(const ad_safetensors *file, const uint8_t *data, size_t size) {
  size_t bytes = 0;
  volatile uint8_t sum = 0;
  for (size_t i = 0; i < ad_safetensors_count(file); i++) {
    const ad_safetensor *tensor = ad_safetensors_at(file, i);
    const uint8_t *begin = tensor->data;
    require(tensor->bytes == (size_t)ad_shape_numel(&tensor->shape) * ad_dtype_size(tensor->dtype));
    require(begin >= data && begin + tensor->bytes <= data + size);
    require(ad_safetensors_find(file, tensor->name) == tensor);
    for (size_t at = 0; at < tensor->bytes; at++) sum = (uint8_t)(sum + begin[at]);
    bytes += tensor->bytes;
  }
  uint64_t header = 0;
  memcpy(&header, data, sizeof header);
  require(bytes + header + sizeof header == size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ad_safetensors *file = NULL;
  if (ad_safetensors_parse(data, size, "fuzz", &file)) {
    require(!file && ad_last_error()[0] != 0);
    return 0;
  }
  check_file(file, data, size);
  (void)ad_safetensors_metadata(file, "format");
  ad_safetensors_close(file);
  return 0;
}
