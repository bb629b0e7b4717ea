/* Finds out whether all ranks that have the same part of a value have the same bits of it. */
#ifndef CHECK_REPLICAS_H
#define CHECK_REPLICAS_H
#include "addend/array.h"
#include "addend/train.h"

typedef struct ad_replicas {
  int equal;
  ad_axes differs;  /* axes along which replicas differ */
  int64_t odd_rank; /* the one rank that differs while all others of its group agree; -1: there is none */
} ad_replicas;

/* Compares `count` arrays over all ranks of `group` (a whole mesh); each rank passes its own parts. out[i] is the same
 * on all ranks. */
ad_status ad_replicas_compare(ad_comm *comm, const ad_group *group, const ad_array *const *arrays, size_t count,
                              ad_replicas *out) AD_CHECKED;

/* Compares, bit for bit, the losses and norms that the ranks of `group` report of one step. `text` becomes a sentence
 * about the first rank that reports another number than the group's first rank, or "" if all report the same. `text` is
 * the same on all ranks. Collective. */
ad_status ad_reports_compare(ad_comm *comm, const ad_group *group, const ad_step_report *report, char *text,
                             size_t size) AD_CHECKED;

#endif
