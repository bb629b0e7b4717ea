/* Meshes of dumps: their axes have the names that the job gives them, unlike those of ad_mesh. */
#ifndef DIFF_MESH_H
#define DIFF_MESH_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

enum { AD_DUMP_AXES = 8, AD_DUMP_NAME = 48 };
enum { AD_DUMP_RANKS = 1 << 16 }; /* more than any dump has files */

typedef struct ad_dump_mesh {
  int count; /* axes, slowest first */
  char name[AD_DUMP_AXES][AD_DUMP_NAME];
  int64_t size[AD_DUMP_AXES];
  int64_t world;
} ad_dump_mesh;

/* "dp_shard=2 tp=4". AD_INVALID says what is wrong. */
ad_status ad_dump_mesh_parse(const char *text, ad_dump_mesh *out) AD_CHECKED;
/* Reads one "NAME=VALUE" of a text and moves *text behind it: the axis (-1: none is left) and where the value stands.
 * AD_INVALID for an axis that the mesh has not, or names twice in *seen. */
ad_status ad_dump_mesh_next(const ad_dump_mesh *mesh, const char **text, uint32_t *seen, int *axis, const char **value,
                            size_t *length) AD_CHECKED;
/* "dp_shard=1 tp=2" as positions; axes that are not named: 0. AD_INVALID. */
ad_status ad_dump_mesh_coord(const ad_dump_mesh *mesh, const char *text, int32_t position[AD_DUMP_AXES]) AD_CHECKED;
/* Of a rank, row-major. */
void ad_dump_mesh_position(const ad_dump_mesh *mesh, int64_t rank, int32_t position[AD_DUMP_AXES]);
/* "dp_shard,tp" of a set of axes (bit a: axis a); returns buffer. */
const char *ad_dump_axes_print(const ad_dump_mesh *mesh, uint32_t axes, char *buffer, size_t size);
/* "rank 3", "ranks 2 and 3", "ranks 0, 1, 2, ... (12 of 16)" of world bytes, 1 for each that is meant; returns buffer.
 */
const char *ad_dump_ranks_print(const ad_dump_mesh *mesh, const unsigned char *ranks, char *buffer, size_t size);
int64_t ad_dump_axes_size(const ad_dump_mesh *mesh, uint32_t axes); /* ranks over them */
/* Those of the axes that have more than one rank. */
uint32_t ad_large_axes(const ad_dump_mesh *mesh, uint32_t axes);
/* Every set of axes of more than one rank each over which there are `size` ranks: the fewest axes first, and of those
 * the ones that are in `first`. Returns how many there are. */
enum { AD_DUMP_SETS = 1 << AD_DUMP_AXES };
size_t ad_dump_axes_of_size(const ad_dump_mesh *mesh, double size, uint32_t first, uint32_t sets[AD_DUMP_SETS]);

#endif
