/* Compares replicas of values by their hashes: one small all-gather, then comparisons along the axes of the mesh. The
 * few numbers that every rank reports of a step are compared themselves. */
#include "check/replicas.h"

#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* The hashes that all ranks have of one array. */
typedef struct ad_hashes {
  const int64_t *values;
  size_t stride; /* number of elements from one rank's hash to the next rank's */
  int64_t first_rank;
} ad_hashes;

static int64_t hash_of(const ad_hashes *hashes, int64_t rank) {
  return hashes->values[(size_t)(rank - hashes->first_rank) * hashes->stride];
}

/* Returns the axes of the group along which hashes differ: some member's hash is not that of the first rank with the
 * same position on all other axes. */
static ad_axes differing_axes(const ad_hashes *hashes, const ad_group *group) {
  ad_axes differs = 0;
  for (int64_t i = 0; i < ad_group_size(group); i++) {
    int64_t rank = ad_group_rank(group, i);
    for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
      if (!(group->axes & AD_AXES(axis))) continue;
      ad_group line = ad_mesh_group(group->mesh, AD_AXES(axis), rank);
      if (hash_of(hashes, line.base) != hash_of(hashes, rank)) differs |= AD_AXES(axis);
    }
  }
  return differs;
}

/* Returns the one member whose hash differs while all other members have the same hash; -1 if there is no such member.
 * In a group of two there never is. */
static int64_t odd_member(const ad_hashes *hashes, const ad_group *group) {
  int64_t size = ad_group_size(group), odd = -1;
  if (size < 3) return -1;
  int64_t first = hash_of(hashes, ad_group_rank(group, 0)), second = hash_of(hashes, ad_group_rank(group, 1));
  int64_t third = hash_of(hashes, ad_group_rank(group, 2));
  int64_t common = first == second || first == third ? first : second;
  for (int64_t i = 0; i < size; i++) {
    if (hash_of(hashes, ad_group_rank(group, i)) == common) continue;
    if (odd >= 0) return -1;
    odd = ad_group_rank(group, i);
  }
  return odd;
}

static ad_replicas compare_one(const ad_hashes *hashes, const ad_layout *layout) {
  ad_replicas result = {.equal = 1, .odd_rank = -1};
  ad_axes same = AD_AXES_ALL & ~ad_layout_sharded_axes(layout);
  int64_t first = ad_mesh_first_rank(layout->mesh), size = ad_mesh_size(layout->mesh);
  for (int64_t rank = first; rank < first + size; rank++) {
    ad_group group = ad_mesh_group(layout->mesh, same, rank);
    if (group.base != rank) continue;
    ad_axes differs = differing_axes(hashes, &group);
    if (!differs) continue;
    result.odd_rank = result.equal ? odd_member(hashes, &group) : -1;
    result.equal = 0;
    result.differs |= differs;
  }
  return result;
}

/* Returns the calling rank's row of `all`, [ranks of the group][count] elements of 8 bytes. */
static void *own_row(const ad_comm *comm, const ad_group *group, void *all, size_t count) {
  return (char *)all + (size_t)ad_group_index(group, ad_comm_rank(comm)) * count * 8;
}

/* Gathers `count` elements of 8 bytes from each rank of the group, in place. `all` is [ranks of the group][count], and
 * the calling rank has written its own row. */
static ad_status gather_rows(ad_comm *comm, const ad_group *group, void *all, size_t count, ad_dtype dtype) {
  ad_collective gather = {.size = sizeof gather,
                          .op = AD_ALL_GATHER,
                          .group = *group,
                          .in = own_row(comm, group, all, count),
                          .out = all,
                          .count = count,
                          .dtype = dtype,
                          .site = AD_HERE};
  return ad_comm_run(comm, &gather);
}

ad_status ad_replicas_compare(ad_comm *comm, const ad_group *group, const ad_array *const *arrays, size_t count,
                              ad_replicas *out) {
  void *memory;
  AD_TRY(ad_comm_alloc(comm, (size_t)ad_group_size(group) * count * sizeof(int64_t), &memory));
  int64_t *own = own_row(comm, group, memory, count);
  for (size_t i = 0; i < count; i++) own[i] = (int64_t)XXH64(arrays[i]->data, ad_array_bytes(arrays[i]), 0);
  ad_status status = gather_rows(comm, group, memory, count, AD_I64);
  for (size_t i = 0; i < count && !status; i++) {
    ad_hashes hashes = {(const int64_t *)memory + i, count, ad_mesh_first_rank(group->mesh)};
    out[i] = compare_one(&hashes, &arrays[i]->layout);
  }
  ad_comm_free(comm, memory);
  return status;
}

/* ---- what ranks report ---- */

enum { LOSS, NORM, LOSSES, NORMS = LOSSES + AD_LOSSES_MAX, NUMBERS = NORMS + AD_NORM_GROUPS_MAX };

/* Writes a report's numbers to a list. All NaN get the same bits, because their sign and payload mean nothing. */
static void list_numbers(const ad_step_report *report, double numbers[NUMBERS]) {
  numbers[LOSS] = report->loss;
  numbers[NORM] = report->norm;
  for (int i = 0; i < AD_LOSSES_MAX; i++) numbers[LOSSES + i] = report->losses[i];
  for (int i = 0; i < AD_NORM_GROUPS_MAX; i++) numbers[NORMS + i] = report->norms[i];
  for (int k = 0; k < NUMBERS; k++)
    if (isnan(numbers[k])) numbers[k] = NAN;
}

static const char *what_number(int k) {
  return k == LOSS ? "the loss" : k == NORM ? "the norm" : k < NORMS ? "a loss" : "a group's norm";
}

static uint64_t bits_of(double number) {
  uint64_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

static void describe_difference(const ad_group *group, const double *all, char *text, size_t size) {
  for (int64_t i = 1; i < ad_group_size(group); i++) {
    const double *own = all + (size_t)i * NUMBERS;
    for (int k = 0; k < NUMBERS; k++) {
      if (bits_of(own[k]) == bits_of(all[k])) continue;
      snprintf(text, size, "%s is %.9g on rank %lld and %.9g on rank %lld", what_number(k), all[k],
               (long long)ad_group_rank(group, 0), own[k], (long long)ad_group_rank(group, i));
      return;
    }
  }
}

ad_status ad_reports_compare(ad_comm *comm, const ad_group *group, const ad_step_report *report, char *text,
                             size_t size) {
  void *memory;
  AD_TRY(ad_comm_alloc(comm, (size_t)ad_group_size(group) * NUMBERS * sizeof(double), &memory));
  list_numbers(report, own_row(comm, group, memory, NUMBERS));
  ad_status status = gather_rows(comm, group, memory, NUMBERS, AD_F64);
  *text = 0;
  if (!status) describe_difference(group, memory, text, size);
  ad_comm_free(comm, memory);
  return status;
}
