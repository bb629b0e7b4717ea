/* Draws random components, and fits U to the weights by least squares with a Cholesky factorisation. */
#include "decompose/random_components.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "addend/helpers.h"
#include "addend/products.h"
#include "decompose/rows.h"

/* ---- the least-squares fit ---- */

/* Factorises by Cholesky: replaces the lower triangle of a [n, n] by L with L L^T = a. Reads only the lower
 * triangle. */
static void factorise(double *a, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      double sum = a[i * n + j];
      for (int64_t k = 0; k < j; k++) sum -= a[i * n + k] * a[j * n + k];
      a[i * n + j] = i == j ? sqrt(sum) : sum / a[j * n + j];
    }
  }
}

static void divide_row(double *row, double divisor, int64_t count) {
  for (int64_t k = 0; k < count; k++) row[k] /= divisor;
}

/* Replaces b [n, columns] by the solution x of L L^T x = b. */
static void solve(const double *l, int64_t n, double *b, int64_t columns) {
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < i; j++) ad_row_add(b + i * columns, b + j * columns, -l[i * n + j], columns);
    divide_row(b + i * columns, l[i * n + i], columns);
  }
  for (int64_t i = n; i-- > 0;) {
    for (int64_t j = i + 1; j < n; j++) ad_row_add(b + i * columns, b + j * columns, -l[j * n + i], columns);
    divide_row(b + i * columns, l[i * n + i], columns);
  }
}

/* Computes out [m, n] = a b for a [m, k] and b [k, n]; out's rows are contiguous. */
static ad_status put_product(int64_t m, int64_t n, int64_t k, ad_matrix a, ad_matrix b, double *out) {
  ad_matrix_product product = {.size = sizeof product, .dtype = AD_F64, .m = m, .n = n, .k = k, .a = a, .b = b};
  product.out = out;
  product.out_stride = n;
  return ad_multiply_matrices(&product);
}

/* Finds the u [c, out] that minimises ||w - v u|| for v [in, c] and w [in, out]; if there are several, the one with the
 * smallest ||u||. Scratch memory: with m the smaller of in and c, `gram` has m * m elements and `right` has m * out. */
static ad_status fit(const ad_site *site, const double *v, const double *w, double *gram, double *right, double *u) {
  int64_t in = site->in, c = site->components, out = site->out;
  ad_matrix plain = {v, c, 0}, transposed = {v, c, 1}, weight = {w, out, 0}, solved = {right, out, 0};
  if (c <= in) {
    AD_TRY(put_product(c, c, in, transposed, plain, gram));
    AD_TRY(put_product(c, out, in, transposed, weight, u));
    factorise(gram, c);
    solve(gram, c, u, out);
    return AD_OK;
  }
  AD_TRY(put_product(in, in, c, plain, transposed, gram));
  for (int64_t k = 0; k < in * out; k++) right[k] = w[k];
  factorise(gram, in);
  solve(gram, in, right, out);
  return put_product(c, out, in, transposed, solved, u);
}

/* ---- drawing and releasing random components ---- */

static void draw_component(const ad_site *site, uint64_t seed, double *v) {
  char name[AD_PARAM_NAME_SIZE + 16];
  snprintf(name, sizeof name, "random %s", site->name);
  uint64_t stream = ad_random_stream(name);
  for (int64_t k = 0; k < site->in * site->components; k++) v[k] = ad_random_normal(seed, stream, (uint64_t)k);
}

static ad_status put_array(const double *from, ad_shape shape, const ad_mesh *mesh, ad_dtype dtype, ad_array *out) {
  size_t numel = (size_t)ad_shape_numel(&shape);
  char *data;
  AD_TRY(ad_new(numel * ad_dtype_size(dtype), &data));
  ad_cast(data, dtype, from, AD_F64, numel);
  *out = (ad_array){.dtype = dtype, .shape = shape, .local = shape, .layout = ad_layout_all(mesh, AD_R), .data = data};
  return AD_OK;
}

static ad_status put_sizes(const double *u, size_t components, size_t width, double **out) {
  AD_TRY(ad_new(components, out));
  for (size_t c = 0; c < components; c++) (*out)[c] = sqrt(ad_row_dot(u + c * width, u + c * width, (int64_t)width));
  return AD_OK;
}

static ad_status make_site(ad_random_components *to, const ad_target *target, size_t s, const ad_mesh *mesh,
                           ad_dtype dtype) {
  const ad_site *site = &target->sites[s];
  int64_t in = site->in, c = site->components, out = site->out, least = in < c ? in : c;
  double *memory;
  AD_TRY(ad_new((size_t)(in * c + c * out + least * least + least * out), &memory));
  double *v = memory, *u = v + in * c, *gram = u + c * out, *right = gram + least * least;
  draw_component(site, to->seed, v);
  ad_status status = fit(site, v, ad_target_weight(target, s), gram, right, u);
  if (!status) status = put_array(v, (ad_shape){2, {in, c}}, mesh, dtype, &to->v[s]);
  if (!status) status = put_array(u, (ad_shape){2, {c, out}}, mesh, dtype, &to->u[s]);
  if (!status) status = put_sizes(u, (size_t)c, (size_t)out, &to->sizes[s]);
  ad_release(memory);
  return status;
}

static ad_status make_components(ad_random_components *to, const ad_target *target, const ad_mesh *mesh,
                                 ad_dtype dtype) {
  size_t most = 0;
  AD_TRY(ad_new(to->site_count, &to->v));
  AD_TRY(ad_new(to->site_count, &to->u));
  AD_TRY(ad_new(to->site_count, &to->sizes));
  for (size_t s = 0; s < to->site_count; s++) {
    size_t components = (size_t)target->sites[s].components;
    most = components > most ? components : most;
    AD_TRY(make_site(to, target, s, mesh, dtype));
  }
  return ad_new(2 * most, &to->order);
}

ad_status ad_random_components_create(ad_random_components *out, const ad_target *target, const ad_mesh *mesh,
                                      ad_dtype dtype, uint64_t seed) {
  *out = (ad_random_components){.site_count = target->site_count, .seed = seed};
  ad_status status = make_components(out, target, mesh, dtype);
  if (status) ad_random_components_release(out);
  return status;
}

void ad_random_components_release(ad_random_components *components) {
  for (size_t s = 0; s < components->site_count; s++) {
    if (components->v) ad_release(components->v[s].data);
    if (components->u) ad_release(components->u[s].data);
    if (components->sizes) ad_release(components->sizes[s]);
  }
  ad_release(components->v);
  ad_release(components->u);
  ad_release(components->sizes);
  ad_release(components->order);
  *components = (ad_random_components){0};
}

/* ---- choosing the components that are kept ---- */

static int larger_first(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x < y) - (x > y);
}

/* Sets a row of the mask to 1 for the `count` components with the largest `order` (of equal ones the first), and to 0
 * for the others. `sorted` is scratch memory for `components` numbers. */
static void keep_largest(const double *order, double *sorted, size_t components, size_t row, size_t count,
                         ad_array *mask) {
  memcpy(sorted, order, components * sizeof *order);
  qsort(sorted, components, sizeof *sorted, larger_first);
  double least = count ? sorted[count - 1] : INFINITY;
  size_t ties = count;
  for (size_t c = 0; c < components; c++) ties -= order[c] > least;
  for (size_t c = 0; c < components; c++) {
    int is_tie = order[c] == least && ties > 0;
    ad_array_set(mask, row * components + c, order[c] > least || is_tie);
    ties -= (size_t)is_tie;
  }
}

void ad_random_components_keep_largest(const ad_random_components *components, size_t site, const ad_array *h,
                                       size_t row, size_t count, ad_array *mask) {
  size_t all = (size_t)components->u[site].shape.dim[0];
  double *order = components->order;
  for (size_t c = 0; c < all; c++) order[c] = fabs(ad_array_get(h, row * all + c)) * components->sizes[site][c];
  keep_largest(order, order + all, all, row, count, mask);
}

void ad_random_components_keep_any(const ad_random_components *components, size_t site, size_t place, size_t row,
                                   size_t count, ad_array *mask) {
  size_t all = (size_t)components->u[site].shape.dim[0];
  double *order = components->order;
  char name[32];
  snprintf(name, sizeof name, "kept %zu", site);
  uint64_t stream = ad_random_stream(name);
  for (size_t c = 0; c < all; c++) order[c] = ad_random_uniform(components->seed, stream, place * all + c);
  keep_largest(order, order + all, all, row, count, mask);
}
