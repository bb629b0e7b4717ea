/* Groups of ranks in a form that is independent of the names of axes, and in words. */
#ifndef MESH_GROUP_H
#define MESH_GROUP_H
#include "addend/mesh.h"
#include "base/internal.h"

/* A group's ranks as arithmetic. Member number i is base + the sum over k of digit_k * stride_k, where digit_k are the
 * digits of i in the mixed radix size[0], size[1], ... (the last digit is the fastest). Factors of size 1 are left out,
 * and two neighbouring factors that are equivalent to one factor are joined. Therefore two groups have the same ranks
 * in the same order if and only if their shapes are equal. If a group covers two pools, `gap` is added to the rank of
 * members from number `head` on.
 * A group can instead be a list of ranks (ad_ranks): the size[0] ranks in `ranks`. `list` then identifies the group, so
 * that two lists of the same ranks are two groups. */
typedef struct ad_group_shape {
  int64_t base;
  int64_t head, gap; /* gap 0: the group does not cover two pools, and head is 0, too */
  int count;         /* number of factors; the slowest comes first */
  int64_t size[AD_AXIS_COUNT], stride[AD_AXIS_COUNT];
  uint64_t list;        /* identifier of a list of ranks; 0: the group is no list */
  const int64_t *ranks; /* the ranks of a list, borrowed; NULL in memory that processes share, and in messages */
} ad_group_shape;
/* Returns the shape of a mesh's group. */
AD_INTERNAL ad_group_shape ad_group_canonical(const ad_group *group);
/* Prints a group for messages: "dp_replicate,dp_shard {0,2,4}"; long lists are truncated with "...". Returns buffer. */
const char *ad_group_print(const ad_group *group, char *buffer, size_t size);

#endif
