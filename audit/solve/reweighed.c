/* Fits the reference by least squares with one weight for each microbatch. Each column of the fit is the right sum
 * over ranks of one microbatch's addends. */
#include "solve/reweighed.h"

#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "solve/explain.h"
#include "solve/fit.h"
#include "solve/fit_kernel.h"
#include "solve/hypotheses.h"

/* The columns of the fit, AD_ROWS elements at a time. */
typedef struct ad_columns {
  const ad_full *full;
  size_t n;         /* number of microbatches; column n is the reference */
  double *values;   /* (n + 1) x AD_ROWS: the columns, one after another */
  double *addend;   /* AD_ROWS, scratch: the addend that is read */
  double *products; /* (n + 1) x (n + 1): the columns' scalar products so far */
  /* how many elements were added so far */
  size_t rows;
} ad_columns;

/* Fills all columns for elements [begin, end) of a part (each addend, times its expected count, is added to its
 * microbatch's column), and adds up their scalar products. */
static void add_rows(ad_columns *columns, const ad_part *part, const double *expected, size_t begin, size_t end) {
  const ad_parts *parts = columns->full->parts;
  const ad_members *members = ad_part_members(parts, part);
  double *reference = columns->values + columns->n * AD_ROWS;
  memset(columns->values, 0, columns->n * AD_ROWS * sizeof *columns->values);
  for (size_t c = 0; c < members->count; c++) {
    const ad_piece *piece = &members->columns[c].piece;
    double *column = columns->values + (size_t)piece->microbatch * AD_ROWS;
    ad_part_read(parts, part, piece, begin, end, columns->addend);
    for (size_t i = 0; i < end - begin; i++) column[i] += expected[c] * columns->addend[i];
  }
  for (size_t i = begin; i < end; i++)
    reference[i - begin] = ad_full_value(columns->full, part, i) / parts->param->expect;
  ad_fit_kernels()->gram(columns->values, AD_ROWS, columns->n + 1, end - begin, columns->products);
}

static ad_status add_part(ad_columns *columns, const ad_part *part) {
  const ad_members *members = ad_part_members(columns->full->parts, part);
  double *expected;
  AD_TRY(ad_new(members->count, &expected));
  ad_expected_counts(columns->full->parts, members, expected);
  for (size_t begin = 0; begin < part->count; begin += AD_ROWS)
    add_rows(columns, part, expected, begin, begin + AD_ROWS < part->count ? begin + AD_ROWS : part->count);
  columns->rows += part->count;
  ad_release(expected);
  return AD_OK;
}

/* Sets weights[m] to how often the dumped sum counts microbatch m, relative to the reference. Returns 0 if some weight
 * is unknown or not positive, or if all weights are equal. */
static int invert(const ad_fit *fit, size_t n, double *weights) {
  int differ = 0;
  for (size_t m = 0; m < n; m++) {
    if (!isfinite(fit->errors[m]) || !(fit->counts[m] > 1e-3)) return 0;
    weights[m] = 1 / fit->counts[m];
    differ |= !ad_counts_close(weights[m], weights[0], fit->errors[m]);
  }
  return differ;
}

/* Fits the weights. Sets *found to 1 if they give the reference. */
static ad_status fit_weights(const ad_columns *columns, double bound, double *weights, int *found) {
  double ones[AD_REWEIGHED_MAX];
  ad_products products;
  ad_fit fit;
  for (size_t m = 0; m < columns->n; m++) ones[m] = 1;
  AD_TRY(ad_products_from(columns->products, columns->n, columns->rows, &products));
  ad_status status = ad_fit_create(&products, ones, &fit);
  ad_products_destroy(&products);
  if (status) return status;
  /* Squares are subtracted from each other, so a residual of about 1e-8 may remain even if the fit is exact. */
  *found = fit.rank == columns->n && fit.residual <= fmax(bound, 1e-7) && invert(&fit, columns->n, weights);
  ad_fit_destroy(&fit);
  return AD_OK;
}

ad_status ad_reweighed_find(const ad_full *full, double bound, double **weights) {
  const ad_parts *parts = full->parts;
  size_t n = (size_t)parts->dump->microbatches;
  ad_columns columns = {.full = full, .n = n};
  int found = 0;
  *weights = NULL;
  if (n < 2 || n > AD_REWEIGHED_MAX) return AD_OK;
  ad_status status = ad_new((n + 1) * AD_ROWS, &columns.values);
  if (!status) status = ad_new(AD_ROWS, &columns.addend);
  if (!status) status = ad_new((n + 1) * (n + 1), &columns.products);
  if (!status) status = ad_new(n, weights);
  for (size_t i = 0; i < parts->count && !status; i++)
    if (ad_part_is_first_of_its_box(parts, i)) status = add_part(&columns, &parts->parts[i]);
  if (!status && columns.rows > n) status = fit_weights(&columns, bound, *weights, &found);
  if (!found) {
    ad_release(*weights);
    *weights = NULL;
  }
  ad_release(columns.values);
  ad_release(columns.addend);
  ad_release(columns.products);
  return status;
}
