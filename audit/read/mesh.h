/* Meshes of dumps. Unlike the axes of ad_mesh, axes of a dump have names that the job chose. */
#ifndef DIFF_MESH_H
#define DIFF_MESH_H
#include <stddef.h>
#include <stdint.h>
#include "addend/layout.h"
#include "addend/status.h"

/* AD_DUMP_AXES is the most axes of a mesh; AD_DUMP_NAME is the most bytes of an axis' name, with its final 0. */
enum { AD_DUMP_AXES = 8, AD_DUMP_NAME = 48 };
enum { AD_DUMP_RANKS = 1 << 16 }; /* the most ranks */

typedef struct ad_dump_mesh {
  int count; /* number of axes; ranks are numbered row-major, so axis 0 varies slowest */
  char name[AD_DUMP_AXES][AD_DUMP_NAME];
  int64_t size[AD_DUMP_AXES];
  /* number of ranks */
  int64_t world;
} ad_dump_mesh;

/* Parses "dp_shard=2 tp=4". The message of AD_INVALID says what is wrong. */
ad_status ad_dump_mesh_parse(const char *text, ad_dump_mesh *out) AD_CHECKED;
/* Reads one "NAME=VALUE" and moves *text past it. *axis is the axis NAME, or -1 at the end of the text; *value and
 * *length give the VALUE. AD_INVALID: the mesh has no such axis, or the axis is in the bit set *seen already. */
ad_status ad_dump_mesh_next(const ad_dump_mesh *mesh, const char **text, uint32_t *seen, int *axis, const char **value,
                            size_t *length) AD_CHECKED;
/* Parses a position such as "dp_shard=1 tp=2"; axes that are not named are at 0. AD_INVALID: the text is wrong, or the
 * position is outside the mesh. */
ad_status ad_dump_mesh_coord(const ad_dump_mesh *mesh, const char *text, int32_t position[AD_DUMP_AXES]) AD_CHECKED;
/* Computes the position of a rank in the mesh. The order is row-major: the last axis varies fastest. */
void ad_dump_mesh_position(const ad_dump_mesh *mesh, int64_t rank, int32_t position[AD_DUMP_AXES]);
/* Prints a bit set of axes as "dp_shard,tp"; returns buffer. */
const char *ad_dump_axes_print(const ad_dump_mesh *mesh, uint32_t axes, char *buffer, size_t size);
/* Prints ranks as "rank 3", "ranks 2 and 3" or "ranks 0, 1, 2, ... (12 of 16)". `ranks` ([world] bytes) is 1 for each
 * rank to print. Returns buffer. */
const char *ad_dump_ranks_print(const ad_dump_mesh *mesh, const unsigned char *ranks, char *buffer, size_t size);
int64_t ad_dump_axes_size(const ad_dump_mesh *mesh, uint32_t axes); /* product of the axes' sizes */
/* Returns those of `axes` (a bit set) that have more than one rank. */
uint32_t ad_large_axes(const ad_dump_mesh *mesh, uint32_t axes);
/* Lists every set of axes whose sizes are all larger than 1 and have the product `size`. Sets of fewer axes come first;
 * among sets of equally many axes, subsets of `first` come first. Returns the number of sets. */
enum { AD_DUMP_SETS = 1 << AD_DUMP_AXES };
size_t ad_dump_axes_of_size(const ad_dump_mesh *mesh, double size, uint32_t first, uint32_t sets[AD_DUMP_SETS]);
/* Parses a text such as "dp_shard=R tp=S0" for a parameter of `ndim` dimensions. *named is set to the axes that the text
 * names; all others are R. */
ad_status ad_dump_types_parse(const ad_dump_mesh *mesh, const char *text, int ndim, ad_type types[AD_DUMP_AXES],
                              uint32_t *named) AD_CHECKED;
/* Adds the axes that a text such as "dp tp" names to the bit set *out. */
ad_status ad_dump_axes_parse(const ad_dump_mesh *mesh, const char *text, uint32_t *out) AD_CHECKED;

#endif
