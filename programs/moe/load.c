/* Counts the tokens that each expert gets in routing, and sums the counts over ranks once a step. */
#include "moe/load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "addend/helpers.h"
#include "moe/moe.h"
#include "decoder/text_batch.h"

static size_t columns(const ad_moe_load *load) { return (size_t)load->experts + 1; }
static size_t size_of(const ad_moe_load *load) { return (size_t)load->blocks * columns(load); }
static double *load_row(const ad_moe_load *load, double *data, int64_t block) {
  return data + (size_t)block * columns(load);
}

/* Returns the layout of counts: P on axes whose ranks route different tokens or have different blocks (stages). */
static ad_layout layout_of(const ad_mesh *mesh, const ad_mesh *view) {
  ad_layout layout = ad_text_count_layout(mesh);
  int splits = ad_mesh_axis_size(view, AD_ETP) == 1;
  ad_layout_set(&layout, ad_mesh_named(mesh) & AD_AXES(AD_PP), AD_P);
  ad_layout_set(&layout, ad_mesh_named(mesh) & AD_AXES(AD_TP), splits ? AD_P : AD_R);
  return layout;
}

static ad_layout summed(const ad_layout *own) {
  ad_layout layout = *own;
  ad_layout_set(&layout, ad_layout_axes_of(own, AD_P), AD_R);
  return layout;
}

ad_status ad_moe_load_create(ad_moe_load *load, const ad_comm *comm, const ad_mesh *mesh, const ad_mesh *view,
                             const ad_moe_options *options) {
  *load = (ad_moe_load){.comm = (ad_comm *)(uintptr_t)comm,
                        .blocks = options->decoder.layers,
                        .experts = options->experts,
                        .margin = INFINITY};
  ad_shape shape = {2, {load->blocks, load->experts + 1}};
  ad_layout before = layout_of(mesh, view), after = summed(&before);
  AD_TRY(ad_new(size_of(load) + 2, &load->step));
  AD_TRY(ad_new((size_t)load->blocks, &load->names));
  for (int64_t i = 0; i < load->blocks; i++)
    snprintf(load->names[i], sizeof *load->names, "blocks.%lld.moe.tokens", (long long)i);
  AD_TRY(ad_array_create(load->comm, AD_F64, &shape, &before, &load->own));
  return ad_array_create(load->comm, AD_F64, &shape, &after, &load->all);
}

void ad_moe_load_release(ad_moe_load *load) {
  if (!load->comm) return;
  ad_array_destroy(load->comm, &load->own);
  ad_array_destroy(load->comm, &load->all);
  ad_release(load->step);
  ad_release(load->names);
}

void ad_moe_load_begin(ad_moe_load *load) {
  load->margin = INFINITY;
  if (load->own.data) memset(load->own.data, 0, ad_array_bytes(&load->own));
}

void ad_moe_load_add(ad_moe_load *load, int64_t block, const ad_routing *routing) {
  if (!routing) return;
  size_t count;
  const int32_t *expert = ad_routing_choices(routing, &count);
  load->margin = fmin(load->margin, ad_routing_margin(routing));
  if (!load->own.data) return;
  double *row = load_row(load, load->own.data, block);
  for (size_t i = 0; i < count; i++) row[expert[i]]++;
  row[load->experts] += (double)ad_routing_dropped(routing);
}

/* ---- summing and using the counts after a step ---- */

static double choices_of(const ad_moe_load *load, const double *row) {
  double sum = 0;
  for (int64_t e = 0; e < load->experts; e++) sum += row[e];
  return sum;
}

static double imbalance_of(const ad_moe_load *load, const double *row) {
  double most = 0, mean = choices_of(load, row) / (double)load->experts;
  for (int64_t e = 0; e < load->experts; e++) most = fmax(most, row[e]);
  return mean > 0 ? most / mean : 0;
}

static void summarise(ad_moe_load *load) {
  double dropped = 0, choices = 0, imbalance = 0;
  for (int64_t i = 0; i < load->blocks; i++) {
    const double *row = load_row(load, load->step, i);
    dropped += row[load->experts];
    choices += choices_of(load, row);
    imbalance = fmax(imbalance, imbalance_of(load, row));
  }
  load->step[size_of(load)] = choices > 0 ? dropped / choices : 0;
  load->step[size_of(load) + 1] = imbalance;
}

/* Refuses counts that are still P. Every rank corrects the bias by itself, so it needs the counts of all ranks. */
static ad_status check_summed(const ad_array *all) {
  char axes[128];
  ad_axes partial = ad_layout_axes_of(&all->layout, AD_P);
  if (!partial) return AD_OK;
  return ad_fail(AD_TYPE,
                 "the counts of each expert's tokens are P on `%s`, since each rank has counted only its own tokens; "
                 "possible repair: all_reduce P->R",
                 ad_axes_print(partial, axes, sizeof axes));
}

ad_status ad_moe_load_sum(ad_moe_load *load) {
  ad_axes axes = ad_layout_axes_of(&load->own.layout, AD_P);
  load->all.layout = summed(&load->own.layout);
  AD_TRY(ad_array_move_at(load->comm, &load->own, AD_MOVE_ALL_REDUCE, axes, AD_R, AD_F64, &load->all,
                          AD_HERE ", tokens of the experts"));
  AD_TRY(check_summed(&load->all));
  if (!load->all.data) return AD_OK;
  memcpy(load->step, load->all.data, ad_array_bytes(&load->all));
  summarise(load);
  return AD_OK;
}

void ad_moe_load_correct(const ad_moe_load *load, int64_t block, double rate, ad_array *bias) {
  const double *row = load_row(load, load->step, block);
  double even = choices_of(load, row) / (double)load->experts;
  for (size_t e = 0; bias->data && e < (size_t)load->experts; e++) {
    double sign = (row[e] < even) - (row[e] > even);
    ad_array_set(bias, e, ad_array_get(bias, e) + rate * sign);
  }
}

const double *ad_moe_load_measured(const ad_moe_load *load, size_t index, const char **name, size_t *count) {
  size_t blocks = (size_t)load->blocks;
  if (index > blocks + 1) return NULL;
  *count = index < blocks ? (size_t)load->experts : 1;
  *name = index < blocks ? load->names[index] : index == blocks ? "dropped" : "imbalance";
  return index < blocks ? load_row(load, load->step, (int64_t)index) : load->step + size_of(load) + (index - blocks);
}
