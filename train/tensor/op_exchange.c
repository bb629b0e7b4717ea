/* The transition all_to_all V->V of law 2 as an operation, and the dispatch of slots to the ranks
 * that have their experts. */
#include <string.h>
#include "array/array.h"
#include "array/transit.h"
#include "tensor/routing.h"
#include "tensor/tape.h"
#include "mesh/mesh.h"

typedef struct exchange_numbers {
  ad_axes axes;
  /* send_rows: rows to each member of the group; receive_rows: rows from each */
  const size_t *send_rows, *receive_rows;
  ad_row_order sent, received;
  /* index of the transition among those of its tape, from 0 */
  int ordinal;
} exchange_numbers;

static const exchange_numbers *numbers_of(const ad_tensor *out) { return out->own; }

static ad_transit transit_of(const ad_tensor *out, int backward) {
  const exchange_numbers *numbers = numbers_of(out);
  return (ad_transit){.move = AD_MOVE_ALL_TO_ALL,
                      .axes = numbers->axes,
                      .to = AD_V,
                      .send_rows = backward ? numbers->receive_rows : numbers->send_rows,
                      .receive_rows = backward ? numbers->send_rows : numbers->receive_rows,
                      .sent = backward ? numbers->received : numbers->sent,
                      .received = backward ? numbers->sent : numbers->received,
                      .site = out->site,
                      .ordinal = numbers->ordinal,
                      .backward = backward};
}

static ad_status exchange_describe(ad_tape *tape, ad_tensor *out) {
  ad_transit transit = transit_of(out, 0);
  return ad_exchange_after(tape->comm, &transit, &out->operand[0]->array, &out->array);
}

static ad_status exchange_forward(ad_tape *tape, ad_tensor *out) {
  ad_transit transit = transit_of(out, 0);
  return ad_transit_run(tape->comm, &transit, &out->operand[0]->array, &out->array);
}

// Returns the bytes of scratch memory: for this share of the gradient, until it is added to an earlier share.
static size_t exchange_scratch(const ad_tensor *out) {
  return out->operand[0]->carries ? ad_array_bytes(&out->operand[0]->array) : 0;
}

static ad_status exchange_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  ad_transit transit = transit_of(out, 1);
  ad_array arrives = out->operand[0]->grad;
  if (slot[0].adds) arrives.data = out->scratch;
  AD_TRY(ad_transit_run(tape->comm, &transit, &out->grad, &arrives));
  return slot[0].adds ? ad_array_add_at(&out->operand[0]->grad, &arrives, out->site) : AD_OK;
}

static const ad_operation exchange = {.name = "all_to_all",
                                      .dtypes = AD_IN_ANY_FLOAT,
                                      .own_size = sizeof(exchange_numbers),
                                      .runs_dry = 1,
                                      .scratch = exchange_scratch,
                                      .describe = exchange_describe,
                                      .forward = exchange_forward,
                                      .backward = exchange_backward};

/* Returns 1 if rows and gradients can keep their memory. In a group of one rank they can, except in a plan's worst
 * case, which assumes that more rows arrive. */
static int shares(const ad_tensor *out) { return ad_shape_equal(&out->operand[0]->array.local, &out->array.local); }

static const ad_operation exchange_alone = {.name = "all_to_all",
                                            .dtypes = AD_IN_ANY_FLOAT,
                                            .own_size = sizeof(exchange_numbers),
                                            .passes_gradient_on = 1,
                                            .runs_dry = 1,
                                            .scratch = exchange_scratch,
                                            .describe = exchange_describe,
                                            .shares = shares,
                                            .forward = exchange_forward,
                                            .backward = exchange_backward};

static ad_tensor *record_exchange(ad_tape *tape, ad_tensor *x, exchange_numbers numbers, const char *site) {
  const ad_mesh *mesh = x->array.layout.mesh;
  int is_alone = mesh && ad_mesh_ranks_over(mesh, numbers.axes) == 1;
  numbers.ordinal = tape->transitions++;
  x = ad_tape_apply(tape, is_alone ? &exchange_alone : &exchange, &x, 1, &numbers, site);
  if (ad_tape_failed(tape)) ad_tape_report_error(tape);  // other ranks may wait in the exchange
  return x;
}

/* ---- how many rows each rank sends to each other rank ---- */

static ad_status take_offsets(ad_tape *tape, size_t count, size_t **out) {
  *out = ad_arena_take_zeroed(tape->own.arena, count * sizeof **out + 1);
  return *out ? AD_OK : AD_MEMORY;
}

/* Returns the most rows that can reach this rank's expert `e`, if this rank has its tokens and each other member has
 * `crowd` tokens, and every token chooses as many of this rank's experts as it can. */
static int64_t crowded_rows(const ad_routing *routing, size_t crowd, int64_t members, int64_t e) {
  size_t choices = routing->top_k < routing->own_experts ? routing->top_k : routing->own_experts;
  size_t tokens = routing->tokens + (size_t)(members - 1) * crowd;
  int64_t rows = ad_cut((int64_t)(tokens * choices), e, (int64_t)routing->own_experts).count;
  return routing->capacity && routing->capacity < rows ? routing->capacity : rows;
}

/* For backend dry: assumes that each member sends this rank's experts as many rows as this rank does or, in the worst
 * case, an even share of crowded_rows. */
static void suppose_counts(const ad_tape *tape, const ad_routing *routing, ad_span own, int64_t members,
                           size_t *theirs) {
  size_t crowd = tape->options.crowd;
  for (int64_t i = 0; i < members; i++)
    for (int64_t e = 0; e < own.count; e++)
      theirs[i * own.count + e] = crowd ? (size_t)ad_cut(crowded_rows(routing, crowd, members, e), i, members).count
                                        : routing->per_expert[own.first + e];
}

/* Exchanges the counts. theirs[i][e] becomes the number of rows that member i sends for this rank's expert e, [members,
 * own_experts]. */
static ad_status share_counts(ad_tape *tape, const ad_routing *routing, const ad_group *group, size_t *theirs,
                              const char *site) {
  size_t members = (size_t)ad_group_size(group), *send, *receive;
  int64_t index = ad_group_index(group, ad_comm_rank(tape->comm));
  ad_span own = ad_cut((int64_t)routing->experts, index, (int64_t)members);
  AD_TRY(take_offsets(tape, members, &send));
  AD_TRY(take_offsets(tape, members, &receive));
  for (size_t i = 0; i < members; i++) {
    send[i] = (size_t)ad_cut((int64_t)routing->experts, (int64_t)i, (int64_t)members).count;
    receive[i] = (size_t)own.count;
  }
  if (tape->dry) {
    suppose_counts(tape, routing, own, (int64_t)members, theirs);
    return AD_OK;
  }
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_TO_ALL,
                        .group = *group,
                        .in = routing->per_expert,
                        .out = theirs,
                        .counts = send,
                        .receive_counts = receive,
                        .dtype = AD_I64,
                        .site = site};
  return ad_comm_run(tape->comm, &call);
}

/* Sums the rows sent to and received from each member, and the rows of each own expert. */
static void count_rows(ad_routing *routing, size_t members, const size_t *theirs) {
  for (size_t i = 0; i < members; i++) {
    ad_span experts = ad_cut((int64_t)routing->experts, (int64_t)i, (int64_t)members);
    for (int64_t e = 0; e < experts.count; e++) routing->send_rows[i] += routing->per_expert[experts.first + e];
    for (size_t e = 0; e < routing->own_experts; e++) {
      routing->receive_rows[i] += theirs[i * routing->own_experts + e];
      routing->rows_of_expert[e] += theirs[i * routing->own_experts + e];
    }
    routing->received += routing->receive_rows[i];
  }
}

static ad_status take_runs(ad_tape *tape, size_t count, ad_row_run **runs, ad_row_order *out) {
  *runs = ad_arena_take_zeroed(tape->own.arena, count * sizeof **runs + 1);
  *out = (ad_row_order){*runs, count};
  return *runs ? AD_OK : AD_MEMORY;
}

/* Fills in the orders of rows. Slots and received rows are sorted by expert; the received rows of one expert are
 * sorted by sending member. */
static ad_status order_rows(ad_tape *tape, ad_routing *routing, size_t members, const size_t *theirs) {
  ad_row_run *slots, *rows;
  AD_TRY(take_runs(tape, routing->experts, &slots, &routing->slot_order));
  AD_TRY(take_runs(tape, routing->own_experts * members, &rows, &routing->expert_order));
  for (size_t i = 0; i < members; i++) {
    ad_span experts = ad_cut((int64_t)routing->experts, (int64_t)i, (int64_t)members);
    for (int64_t e = experts.first; e < experts.first + experts.count; e++)
      slots[e] = (ad_row_run){i, routing->per_expert[e]};
  }
  for (size_t e = 0; e < routing->own_experts; e++)
    for (size_t i = 0; i < members; i++) rows[e * members + i] = (ad_row_run){i, theirs[i * routing->own_experts + e]};
  return AD_OK;
}

/* Prepares the exchange of rows: exchanges the counts and computes the orders of rows. */
static ad_status prepare(ad_tape *tape, ad_routing *routing, const ad_group *group, const char *site) {
  size_t members = (size_t)ad_group_size(group), *theirs;
  int64_t index = ad_group_index(group, ad_comm_rank(tape->comm));
  ad_span own = ad_cut((int64_t)routing->experts, index, (int64_t)members);
  routing->own_first = (size_t)own.first;
  routing->own_experts = (size_t)own.count;
  routing->received = 0;
  AD_TRY(take_offsets(tape, members * routing->own_experts, &theirs));
  AD_TRY(take_offsets(tape, members, &routing->send_rows));
  AD_TRY(take_offsets(tape, members, &routing->receive_rows));
  AD_TRY(take_offsets(tape, routing->own_experts, &routing->rows_of_expert));
  AD_TRY(share_counts(tape, routing, group, theirs, site));
  count_rows(routing, members, theirs);
  return order_rows(tape, routing, members, theirs);
}

static exchange_numbers numbers_between(ad_axes over, const ad_routing *routing) {
  return (exchange_numbers){.axes = over,
                            .send_rows = routing->send_rows,
                            .receive_rows = routing->receive_rows,
                            .sent = routing->slot_order,
                            .received = routing->expert_order};
}

/* Returns the arguments of the exchange that brings rows back from the experts; `there` are those of the exchange to
 * the experts. */
static exchange_numbers reversed(exchange_numbers there) {
  exchange_numbers back = {.axes = there.axes, .send_rows = there.receive_rows, .receive_rows = there.send_rows};
  back.sent = there.received;
  back.received = there.sent;
  return back;
}

ad_tensor *ad_dispatch_at(ad_tape *tape, ad_tensor *x, ad_routing *routing, const char *axes, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, "dispatch");
  if (ad_tape_failed(tape)) return ad_tape_fail(tape, AD_OK);
  ad_axes over;
  ad_status status = ad_axes_parse(axes, &over);
  if (!status && !ad_tape_owns(tape, x))
    status = ad_fail(AD_INVALID, "%s: the operand of `dispatch` is %s; give a tensor of this tape", site,
                     ad_tape_foreigner(x));
  if (status) return ad_tape_fail(tape, status);
  ad_group group = ad_array_group(tape->comm, &x->array, over);
  status = prepare(tape, routing, &group, site);
  if (status) return ad_tape_fail(tape, status);
  return record_exchange(tape, x, numbers_between(over, routing), site);
}

ad_tensor *ad_return_at(ad_tape *tape, ad_tensor *x, const ad_routing *routing, const char *axes, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, "return");
  if (ad_tape_failed(tape)) return ad_tape_fail(tape, AD_OK);
  ad_axes over;
  ad_status status = ad_axes_parse(axes, &over);
  if (!status && !ad_tape_owns(tape, x))
    status = ad_fail(AD_INVALID, "%s: the operand of `return` is %s; give a tensor of this tape", site,
                     ad_tape_foreigner(x));
  if (!status && !routing->send_rows)
    status = ad_fail(
        AD_INVALID,
        "%s: `return` got a routing whose rows were never dispatched; call ad_dispatch with this routing first", site);
  if (status) return ad_tape_fail(tape, status);
  return record_exchange(tape, x, reversed(numbers_between(over, routing)), site);
}
