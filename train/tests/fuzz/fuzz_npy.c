/* Fuzzes .npy files: what is accepted has all its elements inside the input's bytes, and the same bytes give the same
 * result again. */
#include <stdlib.h>
#include <string.h>
#include "data/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
  if (!holds) abort();
}

static void check_file(const ad_npy *npy, const uint8_t *data, size_t size) {
  uint32_t most = 0;
  require(npy->count > 0 && npy->data > data && npy->data + ad_npy_bytes(npy) == data + size);
  for (int64_t i = 0; i < npy->count; i++) most = ad_npy_at(npy, i) > most ? ad_npy_at(npy, i) : most;
  int64_t first = ad_npy_first_from(npy, 0, npy->count, most);
  require(first < npy->count && ad_npy_at(npy, first) == most);
  require(most == UINT32_MAX || ad_npy_first_from(npy, 0, npy->count, most + 1) == npy->count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  for (int widths = 1; widths < 8; widths++) {
    ad_npy npy = {0}, again = {0};
    ad_status status = ad_npy_parse(data, size, "fuzz", widths, &npy);
    require(ad_npy_parse(data, size, "fuzz", widths, &again) == status);
    require(status ? !npy.data && ad_last_error()[0] != 0 : npy.data == again.data && (npy.width & widths) != 0);
    if (!status) check_file(&npy, data, size);
  }
  return 0;
}
