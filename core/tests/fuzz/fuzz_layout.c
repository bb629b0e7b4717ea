/* Fuzzes layout strings on three meshes: what is accepted prints as a string that reads as the same layout. */
#include <stdlib.h>
#include <string.h>
#include "addend/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
  if (!holds) abort();
}

static void check_text(const char *mesh_text, const char *text) {
  ad_mesh *mesh = NULL;
  ad_layout layout, again;
  char printed[2][256];
  require(!ad_mesh_create(mesh_text, &mesh));
  if (ad_layout_parse(mesh, text, &layout)) {
    require(ad_last_error()[0] != 0);
  } else {
    require(!ad_layout_parse(mesh, ad_layout_print(&layout, printed[0], sizeof printed[0]), &again));
    require(ad_layout_equal(&layout, &again));
    require(strcmp(printed[0], ad_layout_print(&again, printed[1], sizeof printed[1])) == 0);
    ad_layout twice = ad_layout_dual(&layout);
    twice = ad_layout_dual(&twice);
    require(ad_layout_equal(&layout, &twice));
    ad_shape full = {AD_DIMS_MAX, {5, 5, 5, 5, 5, 5}}, local = ad_layout_local_shape(&layout, &full, 1);
    require(ad_shape_numel(&local) <= ad_shape_numel(&full));
  }
  ad_mesh_destroy(mesh);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  memcpy(text, data, size);
  text[size] = 0;
  check_text("tp=2", text);
  check_text("pp=1 dp_replicate=2 dp_shard=3 cp=2 tp=1", text);
  check_text("etp=2 ep=1 efsdp=3", text);
  free(text);
  return 0;
}
