/* Division by a step's count (law 5), and a microbatch's share of that count. Both operations accept only counts that
 * were summed over the ranks. */
#include <inttypes.h>
#include "base/injection.h"
#include "reduce/count.h"
#include "tensor/tape.h"
#include "mesh/mesh.h"

typedef struct count_numbers {
  double number; /* the divisor or the factor; 0: the result and the gradient are 0 */
  int divides;   /* 1: `number` is a divisor */
} count_numbers;

static void put_counted(const ad_tensor *out, ad_dtype dtype, void *dst, const void *src, int adds) {
  const count_numbers *own = out->own;
  const row_kernels *rows = ad_rows(dtype);
  if (own->number == 0)
    rows->fill(dst, 0, ad_numel(out), adds);
  else if (own->divides)
    rows->put_divided(dst, src, own->number, ad_numel(out), adds);
  else
    rows->put(dst, src, own->number, ad_numel(out), adds);
}

static ad_status count_forward(ad_tape *tape, ad_tensor *out) {
  put_counted(out, out->array.dtype, out->array.data, out->operand[0]->array.data, 0);
  return AD_OK;
}

static ad_status count_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  put_counted(out, out->grad.dtype, slot[0].data, out->grad.data, slot[0].adds);
  return AD_OK;
}

static const ad_operation divide = {.name = "divide",
                                    .dims = "...->...",
                                    .linearity = AD_MULTILINEAR,
                                    .dtypes = AD_IN_ANY_FLOAT,
                                    .passes_on = 1,
                                    .own_size = sizeof(count_numbers),
                                    .forward = count_forward,
                                    .backward = count_backward};

static const ad_operation share = {.name = "share",
                                   .dims = "...->...",
                                   .linearity = AD_MULTILINEAR,
                                   .dtypes = AD_IN_ANY_FLOAT,
                                   .passes_on = 1,
                                   .own_size = sizeof(count_numbers),
                                   .forward = count_forward,
                                   .backward = count_backward};

/* ---- checking the count, and dividing by it ---- */

// Checks that the count covers all ranks of the tape: a count over fewer ranks would differ between the tape's ranks.
static ad_status check_ranks(const ad_tape *tape, const ad_mesh *counted, const char *what, const char *site) {
  int covers = ad_mesh_first_rank(counted) <= ad_mesh_first_rank(tape->mesh) &&
               ad_mesh_last_rank(counted) >= ad_mesh_last_rank(tape->mesh);
  if (covers) return AD_OK;
  return ad_fail(AD_TYPE,
                 "%s: the count of `%s` was taken over ranks %" PRId64 " to %" PRId64
                 ", but the tape's mesh \"%s\" has ranks %" PRId64 " to %" PRId64 "; count over all ranks of the tape",
                 site, what, ad_mesh_first_rank(counted), ad_mesh_last_rank(counted), ad_mesh_text(tape->mesh),
                 ad_mesh_first_rank(tape->mesh), ad_mesh_last_rank(tape->mesh));
}

static ad_status check_summed(const ad_layout *layout, const char *what, const char *site) {
  ad_axes counts = ad_mesh_named(layout->mesh) | ad_mesh_large(layout->mesh);
  ad_axes partial = ad_layout_axes_of(layout, AD_P) & counts;
  if (!partial) return AD_OK;
  char axes[128];
  return ad_fail(AD_TYPE,
                 "%s: the count of `%s` is P on `%s`, since each rank has counted its own part and the parts were not "
                 "summed; call ad_count_post when the batch is read, and ad_count_wait before the count is used",
                 site, what, ad_axes_print(partial, axes, sizeof axes));
}

/* Waits for the count, if it is in flight, and checks that it was summed. */
static ad_status take_total(const ad_tape *tape, const ad_count *count, const char *what, const char *site,
                            int64_t *total) {
  if (!count) return ad_fail(AD_INVALID, "%s: the count of `%s` is NULL; give an ad_count", site, what);
  const ad_layout *layout = &ad_count_array(count)->layout;
  AD_TRY(check_ranks(tape, layout->mesh, what, site));
  if (ad_count_is_in_flight(count)) AD_TRY(ad_count_wait(count, NULL));
  AD_TRY(check_summed(layout, what, site));
  return ad_count_wait(count, total);
}

ad_tensor *ad_divide_at(ad_tape *tape, ad_tensor *a, const ad_count *count, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, divide.name);
  int64_t total = 0;
  ad_status status = tape->status ? AD_OK : take_total(tape, count, divide.name, site, &total);
  if (status) return ad_tape_fail(tape, status);
  ad_divisor_passing passing = {count, (double)total};
  ad_inject(AD_INJECT_DIVISOR, &passing);
  return ad_tape_apply(tape, &divide, &a, 1, &(count_numbers){passing.total, 1}, site);
}

ad_tensor *ad_share_at(ad_tape *tape, ad_tensor *a, const ad_count *count, size_t m, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, share.name);
  int64_t total = 0, own = 0;
  ad_status status = tape->status ? AD_OK : take_total(tape, count, share.name, site, &total);
  if (!status && !tape->status && (own = ad_count_of(count, m)) < 0)
    status = ad_fail(AD_INVALID,
                     "%s: `share` got microbatch %zu, but there are %" PRId64
                     " microbatches, numbered from 0; give one of these",
                     site, m, ad_count_array(count)->shape.dim[0]);
  if (status) return ad_tape_fail(tape, status);
  double part = total ? (double)own / (double)total : 0;
  return ad_tape_apply(tape, &share, &a, 1, &(count_numbers){part, 0}, site);
}
