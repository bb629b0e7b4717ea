/* Groups of ranks as arithmetic, whatever their axes are called. */
#ifndef MESH_GROUP_H
#define MESH_GROUP_H
#include "addend/mesh.h"
#include "base/internal.h"

/* The ranks of a group as arithmetic, independent of axis names. Member number i is base + the sum over k of digit_k *
 * stride_k, where digit_k are the digits of i in the mixed base size[0], size[1], ... (the last one fastest). Factors
 * of size 1 are left out and neighbours that continue each other are one factor, so that two groups have the same ranks
 * in the same order if and only if their shapes are equal. Where two pools are one group, members from number `head` on
 * are `gap` ranks further on. Or a list of ranks (ad_ranks): size[0] of them, which `ranks` names, and `list` is the
 * group's identity, so that two lists of the same ranks are two groups. */
typedef struct ad_group_shape {
  int64_t base;
  int64_t head, gap; /* gap 0: there is none, and head is 0 too */
  int count;         /* factors, slowest first */
  int64_t size[AD_AXIS_COUNT], stride[AD_AXIS_COUNT];
  uint64_t list;        /* 0: no list */
  const int64_t *ranks; /* of a list, borrowed; NULL in memory that processes share, and in messages */
} ad_group_shape;
AD_INTERNAL ad_group_shape ad_group_canonical(const ad_group *group);

#endif
