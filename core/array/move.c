/* The public functions that execute one transition of law 2 on an array. transit.c executes the transition; after.c
 * describes its result. */
#include "array/array.h"
#include "array/transit.h"
#include "base/error.h"

ad_status ad_array_move_at(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to,
                           ad_dtype accumulate, ad_array *out, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, in, out);
  AD_NEED(in->layout.mesh);
  ad_transit transit = {.move = move, .axes = axes, .to = to, .accumulate = accumulate, .site = site, .what = site};
  return ad_transit_run(comm, &transit, in, out);
}

ad_status ad_array_post_at(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to,
                           ad_dtype accumulate, ad_array *out, ad_request *request, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, in, out, request);
  AD_NEED(in->layout.mesh);
  ad_transit transit = {.move = move, .axes = axes, .to = to, .accumulate = accumulate, .site = site, .what = site};
  return ad_transit_post(comm, &transit, in, out, request);
}

ad_status ad_array_exchange_at(ad_comm *comm, const ad_array *in, ad_axes axes, const size_t *send_rows,
                               const size_t *receive_rows, ad_array *out, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, in, send_rows, receive_rows, out);
  AD_NEED(in->layout.mesh);
  ad_transit transit = {.move = AD_MOVE_ALL_TO_ALL, .axes = axes, .to = AD_V, .site = site, .what = site};
  transit.send_rows = send_rows;
  transit.receive_rows = receive_rows;
  ad_array after;
  AD_TRY(ad_exchange_after(comm, &transit, in, &after));
  after.data = out->data;
  AD_TRY(ad_transit_run(comm, &transit, in, &after));
  *out = after;
  return AD_OK;
}
