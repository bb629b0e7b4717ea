/* The counts by which losses are divided (law 5). They are summed by one small all-reduce in each step, which is posted
 * when the batch has been read. */
#include "reduce/count.h"

#include <string.h>
#include "array/array.h"
#include "array/transit.h"
#include "base/error.h"
#include "base/memory.h"

typedef enum count_state { NOT_POSTED, IN_FLIGHT, SUMMED } count_state;

/* The fields that posting and waiting change. They have their own struct so that ad_count_wait can take a const
 * count. */
typedef struct posted_count {
  count_state state;
  ad_array array;   // [n] i64 in comm memory: this rank's counts; after waiting, their sum
  ad_array summed;  // the memory of `array`, described as the sum
  ad_request request;
} posted_count;

struct ad_count {
  ad_comm *comm;
  ad_layout local, summed;  // the count's layout before and after the sum
  size_t n;
  posted_count *posted;
};

static ad_status check_layout(const ad_layout *layout) {
  char type[16];
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type is = layout->type[axis];
    if (is == AD_P || is == AD_R || is == AD_I) continue;
    return ad_fail(AD_TYPE,
                   "the layout of a count is %s on `%s`, but must be P where each rank counts a part, or R or I where "
                   "all ranks count the same",
                   ad_type_print(is, type, sizeof type), ad_axis_name((ad_axis)axis));
  }
  return AD_OK;
}

static ad_status take_memory(ad_count *count) {
  AD_TRY(ad_new(1, &count->posted));
  ad_array *array = &count->posted->array;
  *array = ad_array_describe(count->comm, AD_I64, &(ad_shape){1, {(int64_t)count->n}}, &count->local);
  return ad_comm_alloc(count->comm, ad_array_bytes(array),
                       &array->data);  // allocated on backend dry, too, because a rank counts its own batch there
}

ad_status ad_count_create(ad_comm *comm, const ad_layout *local, size_t n, ad_count **out) {
  AD_NEED(comm, local, out);
  AD_NEED(local->mesh);
  AD_TRY(check_layout(local));
  if (!n) return ad_fail(AD_INVALID, "the count is over `n` = 0 microbatches, but a step has at least one microbatch");
  if (!ad_mesh_has_rank(local->mesh, ad_comm_rank(comm)))
    return ad_fail(
        AD_INVALID,
        "the count was asked for on rank %lld, which is not in its mesh \"%s\"; count on the ranks of the mesh only",
        (long long)ad_comm_rank(comm), ad_mesh_text(local->mesh));
  ad_count *count;
  AD_TRY(ad_new(1, &count));
  *count = (ad_count){.comm = comm, .local = *local, .summed = *local, .n = n};
  ad_layout_set(&count->summed, ad_layout_axes_of(local, AD_P), AD_R);
  ad_status status = take_memory(count);
  if (status) {
    ad_count_destroy(count);
    return status;
  }
  *out = count;
  return AD_OK;
}

void ad_count_destroy(ad_count *count) {
  if (!count) return;
  if (count->posted) {
    // Other ranks may still read the counts. If one of them fails, ad_comm_wait returns an error instead of hanging.
    if (count->posted->request.id && ad_comm_wait(count->comm, &count->posted->request)) count->posted->request.id = 0;
    ad_comm_free(count->comm, count->posted->array.data);
    ad_release(count->posted);
  }
  ad_release(count);
}

int ad_count_is_in_flight(const ad_count *count) { return count->posted->state == IN_FLIGHT; }

// Posts the all-reduce in place: the sum overwrites this rank's counts.
static ad_status post_sum(const ad_count *count, const char *site) {
  ad_axes axes = ad_layout_axes_of(&count->local, AD_P);
  if (!axes) return AD_OK;
  ad_transit transit = {.move = AD_MOVE_ALL_REDUCE, .axes = axes, .to = AD_R, .site = site, .what = "count"};
  count->posted->summed = count->posted->array;
  count->posted->summed.layout = count->summed;
  return ad_transit_post(count->comm, &transit, &count->posted->array, &count->posted->summed, &count->posted->request);
}

ad_status ad_count_post_at(ad_count *count, const int64_t *local, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(count, local);
  if (ad_count_is_in_flight(count)) {
    return ad_fail(AD_INVALID,
                   "%s: the previous count is still in flight; call ad_count_wait before the next count is posted",
                   site);
  }
  posted_count *posted = count->posted;
  posted->state = NOT_POSTED;
  posted->array.layout = posted->summed.layout = count->local;
  memcpy(posted->array.data, local, ad_array_bytes(&posted->array));
  AD_TRY(post_sum(count, site));
  posted->state = IN_FLIGHT;
  return AD_OK;
}

ad_status ad_count_wait(const ad_count *count, int64_t *total) {
  AD_NEED(count);
  posted_count *posted = count->posted;
  if (posted->state == NOT_POSTED)
    return ad_fail(AD_INVALID, "ad_count_wait was called, but no count was posted; call ad_count_post first");
  if (posted->state == IN_FLIGHT) {
    AD_TRY(ad_comm_wait(count->comm, &posted->request));
    posted->array.layout = posted->summed.layout;
    posted->state = SUMMED;
  }
  if (!total) return AD_OK;
  *total = 0;
  for (size_t m = 0; m < count->n; m++) *total += ad_count_of(count, m);
  return AD_OK;
}

const ad_array *ad_count_array(const ad_count *count) { return count ? &count->posted->array : NULL; }

int64_t ad_count_of(const ad_count *count, size_t m) {
  if (!count || count->posted->state != SUMMED || m >= count->n) return -1;
  return ((const int64_t *)count->posted->array.data)[m];
}
