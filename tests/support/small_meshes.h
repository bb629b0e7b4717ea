/* Small odd meshes for exhaustive tests: three axes of sizes 1, 2, 3, 5 in several orders, then four of sizes
 * 1, 2, 3. */
#ifndef SUPPORT_SMALL_MESHES_H
#define SUPPORT_SMALL_MESHES_H
#include <stdio.h>
#include "addend/mesh.h"

enum { SMALL_MESH_COUNT = 3 * 64 + 81 };

static inline const char *small_mesh_text(int index, char *buffer, size_t size) {
  static const char *const orders[4][4] = {{"dp_shard", "cp", "tp", NULL},
                                           {"tp", "cp", "dp_replicate", NULL},
                                           {"cp", "dp_replicate", "ep", NULL},
                                           {"dp_shard", "tp", "pp", "dp_replicate"}};
  static const int sizes[4] = {1, 2, 3, 5};
  int order = index < 192 ? index / 64 : 3, digits = index < 192 ? index % 64 : index - 192;
  int base = order < 3 ? 4 : 3, used = 0;
  buffer[0] = 0;
  for (int i = 0; i < 4 && orders[order][i]; i++, digits /= base)
    used +=
        snprintf(buffer + used, size - (size_t)used, "%s%s=%d", i ? " " : "", orders[order][i], sizes[digits % base]);
  return buffer;
}

#endif
