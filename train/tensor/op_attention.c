/* Attention as an operation: its types, the heads and positions of this rank, and where keys and values come from.
 * Either each rank has all keys and values, or they are sharded like the rows of q and go around the ring. The
 * arithmetic is in attention.c. */
#include <inttypes.h>
#include <string.h>
#include "array/array.h"
#include "base/injection.h"
#include "layout/nest.h"
#include "tensor/attention.h"
#include "tensor/heads.h"
#include "tensor/ring.h"
#include "tensor/tape.h"
#include "mesh/mesh.h"

typedef struct attention_numbers {
  int64_t head_dim; /* number of elements of one head */
  int sees_all;     /* 1: no mask; 0: causal mask */
} attention_numbers;

enum { Q, K, V };

static const attention_numbers *numbers_of(const ad_tensor *out) { return out->own; }
static int64_t head_dim_of(const ad_tensor *out) { return numbers_of(out)->head_dim; }
static const ad_array *array_of(const ad_tensor *out, int i) { return &out->operand[i]->array; }

static ad_axes sharded_axes(const ad_array *array, int dim) { return ad_layout_axes_sharding(&array->layout, dim); }

/* Returns the number of ranks on the ring; 1: keys and values are full. */
static int64_t ring_members(const ad_tensor *out) {
  return ad_mesh_ranks_over(out->array.layout.mesh, sharded_axes(array_of(out, K), 1));
}

static ad_dtype wide_of(const ad_tensor *out) { return ad_dtype_wide(out->array.dtype); }
static int is_narrow(const ad_tensor *out) { return wide_of(out) != out->array.dtype; }

/* ---- shapes, dtypes and types ---- */

static ad_status check_shapes(const ad_tape *tape, const ad_tensor *out) {
  const ad_shape *q = &array_of(out, Q)->shape, *k = &array_of(out, K)->shape, *v = &array_of(out, V)->shape;
  char texts[3][96];
  int64_t head_dim = head_dim_of(out);
  int fits = q->ndim == 3 && ad_shape_equal(k, v) && k->ndim == 3 && q->dim[0] == k->dim[0] &&
             tape->position + q->dim[1] == k->dim[1];
  if (!fits)
    return ad_fail(AD_INVALID,
                   "%s: `attention` got q of shape %s, k of %s and v of %s; give each the shape [batch, seq, heads * "
                   "head_dim], with the same batch and seq, and k and v the same shape",
                   out->site, ad_shape_print(q, texts[0], sizeof texts[0]),
                   ad_shape_print(k, texts[1], sizeof texts[1]), ad_shape_print(v, texts[2], sizeof texts[2]));
  if (head_dim < 1 || q->dim[2] % head_dim || k->dim[2] % head_dim)
    return ad_fail(AD_INVALID,
                   "%s: `attention` got head_dim %" PRId64
                   ", which does not divide the last dimensions of q and k, %" PRId64 " and %" PRId64
                   "; give a divisor of both",
                   out->site, head_dim, q->dim[2], k->dim[2]);
  if (!k->dim[2] || q->dim[2] % k->dim[2])
    return ad_fail(AD_INVALID,
                   "%s: `attention` got %" PRId64 " heads of keys and values for %" PRId64
                   " heads of queries; give q a multiple of the heads of k and v",
                   out->site, k->dim[2] / head_dim, q->dim[2] / head_dim);
  return AD_OK;
}

static ad_status check_dtypes(const ad_tape *tape, const ad_tensor *out) {
  for (int i = Q; i <= V; i++)
    if (array_of(out, i)->dtype != tape->options.dtype)
      return ad_fail(AD_INVALID,
                     "%s: operand %d of `attention` has dtype %s, but must have %s, the dtype of the tape; convert the "
                     "operand first",
                     out->site, i + 1, ad_dtype_name(array_of(out, i)->dtype), ad_dtype_name(tape->options.dtype));
  return AD_OK;
}

/* Builds the rule. Along the sequence, keys and values are full (letter t) or sharded like the rows of q (letter s:
 * they go around the ring). Their heads are all on each rank (letter e) or sharded like those of q (letter d). */
static ad_status attention_describe(ad_tape *tape, ad_tensor *out) {
  AD_TRY(check_dtypes(tape, out));
  AD_TRY(check_shapes(tape, out));
  char dims[] = "bsd,b..,b..->bsd";
  dims[5] = dims[9] = !tape->position && sharded_axes(array_of(out, K), 1) ? 's' : 't';
  dims[6] = dims[10] = sharded_axes(array_of(out, K), 2) ? 'd' : 'e';
  const ad_layout *layouts[] = {&array_of(out, Q)->layout, &array_of(out, K)->layout, &array_of(out, V)->layout};
  int constant[] = {ad_is_constant(out->operand[Q]), ad_is_constant(out->operand[K]), ad_is_constant(out->operand[V])};
  ad_rule rule = {.size = sizeof rule, .name = "attention", .dims = dims, .linearity = AD_NONLINEAR, .full = "te"};
  ad_layout layout;
  AD_TRY(ad_layout_propagate_at(&rule, layouts, constant, 3, &layout, out->site));
  out->array = ad_array_describe(tape->comm, tape->options.dtype, &array_of(out, Q)->shape, &layout);
  return AD_OK;
}

/* ---- heads, positions and samples of this rank ---- */

/* Finds the index of the first head in this rank's part; the part must consist of complete heads. */
static ad_status find_first_head(const ad_tape *tape, const ad_tensor *out, const ad_array *array, size_t *first) {
  ad_span span = {0, 0};
  AD_TRY(ad_check_heads_of(tape, out, array, head_dim_of(out)));
  ad_layout_spans(&array->layout, 2, array->shape.dim[2], ad_comm_rank(tape->comm), &span, 1);
  *first = (size_t)(span.first / head_dim_of(out));
  return AD_OK;
}

/* Returns the number of samples that are computed together. Usually one, so that the sums for a narrow result or
 * gradient stay in the second-level cache; on a ring all samples, because they travel together. */
static size_t samples_at_once(const ad_tensor *out) {
  size_t batch = (size_t)out->array.local.dim[0];
  return ring_members(out) > 1 || !batch ? batch : 1;
}

/* sample_count returns the local elements of one sample, part_count those of the samples that are computed together. */
static size_t sample_count(const ad_array *array) { return (size_t)(array->local.dim[1] * array->local.dim[2]); }
static size_t part_count(const ad_tensor *out, const ad_array *array) {
  return samples_at_once(out) * sample_count(array);
}

static void *at_sample(const ad_array *array, const void *data, size_t sample) {
  if (!sample) return (void *)(uintptr_t)data;  // an array without elements may have no memory
  return (char *)(uintptr_t)data + sample * sample_count(array) * ad_dtype_size(array->dtype);
}

static ad_status take_sizes(const ad_tape *tape, const ad_tensor *out, attention_sizes *size) {
  const ad_array *q = array_of(out, Q), *k = array_of(out, K);
  size_t head_dim = (size_t)head_dim_of(out);
  *size = (attention_sizes){.batch = samples_at_once(out),
                            .head_dim = head_dim,
                            .heads = (size_t)q->local.dim[2] / head_dim,
                            .width = (size_t)q->local.dim[2],
                            .kv_heads = (size_t)k->local.dim[2] / head_dim,
                            .kv_width = (size_t)k->local.dim[2],
                            .sharing = (size_t)(q->shape.dim[2] / k->shape.dim[2]),
                            .visible = numbers_of(out)->sees_all ? (size_t)k->shape.dim[1] : 0};
  AD_TRY(find_first_head(tape, out, q, &size->first_head));
  AD_TRY(find_first_head(tape, out, k, &size->first_kv_head));
  return ad_find_positions_on(tape, out, q, &size->rows);
}

/* Checks that the ring runs along a single axis. */
static ad_status check_ring(const ad_tensor *out) {
  const ad_array *k = array_of(out, K);
  ad_axes axes = sharded_axes(k, 1) & ad_mesh_large(k->layout.mesh);
  if (!(axes & (axes - 1))) return AD_OK;
  char names[96];
  return ad_fail(AD_INVALID,
                 "%s: `attention` got k and v whose sequence is sharded over %s, but supports only one axis; gather "
                 "the sequence over the others",
                 out->site, ad_axes_print(axes, names, sizeof names));
}

static ad_status attention_check(const ad_tape *tape, const ad_tensor *out) {
  attention_sizes size;
  AD_TRY(check_ring(out));
  AD_TRY(take_sizes(tape, out, &size));
  if (!size.heads) return AD_OK;
  size_t first = size.first_head / size.sharing, last = (size.first_head + size.heads - 1) / size.sharing;
  if (first >= size.first_kv_head && last < size.first_kv_head + size.kv_heads) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: `attention` on this rank has the heads %zu to %zu of q, which need the heads %zu to %zu of k and v, but has "
      "%zu heads of k and v from head %zu on; shard q, k and v in the same way, or keep k and v full (R)",
      out->site, size.first_head, size.first_head + size.heads - 1, first, last, size.kv_heads, size.first_kv_head);
}

/* ---- sizes of saved and scratch memory ---- */

/* Returns the number of rows of all heads of one sample. */
static size_t row_count(const ad_tensor *out) {
  return (size_t)(out->array.local.dim[1] * (out->array.local.dim[2] / head_dim_of(out)));
}

static size_t row_bytes(const ad_tensor *out) {
  return (size_t)out->array.local.dim[0] * row_count(out) * ad_dtype_size(wide_of(out));
}

// Returns the bytes of the saved maximum and sum of every row of every head.
static size_t attention_saved(const ad_tensor *out) { return 2 * row_bytes(out); }

/* The bytes of the parts of the scratch memory: the ring's element counts, the ring's buffers, the arithmetic of one
 * part of the keys, and for each operand the sums from which its gradient is rounded. */
typedef struct scratch {
  size_t counts, ring, arithmetic, sums[3]; /* bytes */
} scratch;

/* Returns the most positions of k that a rank has. If the sequence is sharded zigzag, these are two of the longest
 * chunks. */
static size_t most_columns(const ad_tensor *out) {
  int64_t members = ring_members(out), seq = array_of(out, K)->shape.dim[1];
  return members == 1 ? (size_t)seq : 2 * (size_t)((seq + 2 * members - 1) / (2 * members));
}

static size_t sums_bytes(const ad_tensor *out, int i) {
  return part_count(out, array_of(out, i)) * ad_dtype_size(wide_of(out));
}

static scratch scratch_of(const ad_tensor *out) {
  const ad_array *k = array_of(out, K);
  int64_t members = ring_members(out);
  scratch sizes = {.arithmetic = ad_padded(ad_attention_scratch_bytes(k->dtype, (size_t)out->array.local.dim[1],
                                                                      most_columns(out), (size_t)head_dim_of(out)))};
  for (int i = Q; is_narrow(out) && i <= (members > 1 ? Q : V); i++) sizes.sums[i] = ad_padded(sums_bytes(out, i));
  if (members == 1) return sizes;
  key_ring ring = {.dtype = k->dtype,
                   .members = members,
                   .most = (size_t)k->local.dim[0] * most_columns(out) * (size_t)k->local.dim[2]};
  sizes.counts = ad_padded((size_t)members * sizeof(size_t));
  sizes.ring = ad_padded(ad_ring_bytes(&ring));
  return sizes;
}

static size_t attention_scratch(const ad_tensor *out) {
  scratch sizes = scratch_of(out);
  return sizes.counts + sizes.ring + sizes.arithmetic + sizes.sums[Q] + sizes.sums[K] + sizes.sums[V];
}

static void *arithmetic_of(const ad_tensor *out) {
  scratch sizes = scratch_of(out);
  return out->scratch ? (char *)out->scratch + sizes.counts + sizes.ring : NULL;
}

static void *sums_of(const ad_tensor *out, int i) {
  scratch sizes = scratch_of(out);
  char *sums = (char *)arithmetic_of(out) + sizes.arithmetic;
  for (int before = Q; before < i; before++) sums += sizes.sums[before];
  return sums;
}

/* Rounds the sums of the samples that are computed together, and writes them to the array's rows. */
static void round_sums(const ad_tensor *out, const ad_array *array, void *to, const void *sums, int adds) {
  size_t seq = (size_t)array->local.dim[1], width = (size_t)array->local.dim[2], head_dim = (size_t)head_dim_of(out);
  head_sizes of = {samples_at_once(out), seq, width, width / head_dim, head_dim};
  ad_attention_round(to, array->dtype, sums, of, adds);
}

/* ---- the parts of keys and values, one in each turn of the ring ---- */

static key_ring ring_of(const ad_tape *tape, const ad_tensor *out) {
  const ad_array *k = array_of(out, K);
  key_ring ring = {.comm = tape->comm,
                   .group = ad_array_group(tape->comm, k, sharded_axes(k, 1)),
                   .dtype = k->dtype,
                   .most = (size_t)k->local.dim[0] * most_columns(out) * (size_t)k->local.dim[2],
                   .site = out->site,
                   .memory = out->scratch ? (char *)out->scratch + scratch_of(out).counts : NULL,
                   .own = {k->data, array_of(out, V)->data}};
  ring.members = ad_group_size(&ring.group);
  ring.index = ad_group_index(&ring.group, ad_comm_rank(tape->comm));
  return ring;
}

static ad_status member_positions(const ad_tensor *out, const key_ring *ring, int64_t member, positions *to) {
  return ad_find_positions(out, array_of(out, K), ad_group_rank(&ring->group, member), to);
}

/* Writes to `counts` how many elements of k each rank of the ring has. */
static ad_status fill_counts(const ad_tensor *out, key_ring *ring, size_t *counts) {
  const ad_shape *local = &array_of(out, K)->local;
  for (int64_t i = 0; i < ring->members; i++) {
    positions theirs;
    AD_TRY(member_positions(out, ring, i, &theirs));
    counts[i] = (size_t)local->dim[0] * theirs.count * (size_t)local->dim[2];
  }
  ring->counts = counts;
  return AD_OK;
}

/* Finds the keys and values that this rank has in this turn (step) of the ring, and their positions. */
static ad_status part_of_turn(const ad_tensor *out, const key_ring *ring, int64_t turn, attention_part *part) {
  ring_pair pair = ad_ring_pair(ring, turn);
  positions own;
  *part = (attention_part){.k = pair.k, .v = pair.v};
  AD_TRY(member_positions(out, ring, ring->index, &own));
  AD_TRY(member_positions(out, ring, ad_ring_source(ring, turn), &part->columns));
  ring_turn_passing passing = {ring, turn, !numbers_of(out)->sees_all, &own, &part->columns};
  ad_inject(AD_INJECT_RING_TURN, &passing);
  return AD_OK;
}

/* Finds the keys and values of a sample if they are not sharded: all of them. */
static ad_status full_part(const ad_tape *tape, const ad_tensor *out, size_t sample, attention_part *part) {
  const ad_array *k = array_of(out, K), *v = array_of(out, V);
  *part = (attention_part){.k = at_sample(k, k->data, sample), .v = at_sample(v, v->data, sample)};
  return ad_find_positions(out, k, ad_comm_rank(tape->comm), &part->columns);
}

/* Calls the functions at the injection point AD_INJECT_RING. On backend dry the ring does nothing else. */
static void record_ring(const ad_tape *tape, const ad_tensor *out, int backward) {
  if (ring_members(out) == 1) return;
  const key_ring ring = ring_of(tape, out);
  ring_passing passing = {&ring, array_of(out, K), backward};
  ad_inject(AD_INJECT_RING, &passing);
}

/* ---- attention's forward ---- */

static ad_status forward_on_ring(ad_tape *tape, ad_tensor *out, const attention_forward *work) {
  key_ring ring = ring_of(tape, out);
  AD_TRY(fill_counts(out, &ring, out->scratch));
  for (int64_t turn = 0; turn < ring.members; turn++) {
    attention_part part;
    ad_request request;
    AD_TRY(part_of_turn(out, &ring, turn, &part));
    AD_TRY(ad_ring_post(&ring, turn, 0, &request));
    ad_attention_add(work, &part);
    AD_TRY(ad_ring_wait(&ring, turn, 0, &request));
  }
  return AD_OK;
}

static ad_status forward_on_full(ad_tape *tape, const ad_tensor *out, size_t sample, const attention_forward *work) {
  attention_part part;
  AD_TRY(full_part(tape, out, sample, &part));
  ad_attention_add(work, &part);
  return AD_OK;
}

static row_state state_of(const ad_tensor *out, size_t sample) {
  if (!out->saved) return (row_state){NULL, NULL};
  char *first = (char *)out->saved + sample * row_count(out) * ad_dtype_size(wide_of(out));
  return (row_state){first, first + row_bytes(out)};
}

static ad_status forward_samples(ad_tape *tape, ad_tensor *out, size_t sample) {
  const ad_array *q = array_of(out, Q);
  void *to = at_sample(&out->array, out->array.data, sample);
  attention_forward work = {.dtype = out->array.dtype,
                            .q = at_sample(q, q->data, sample),
                            .out = is_narrow(out) ? sums_of(out, Q) : to,
                            .state = state_of(out, sample),
                            .scratch = arithmetic_of(out)};
  AD_TRY(take_sizes(tape, out, &work.size));
  ad_attention_begin(&work);
  AD_TRY(ring_members(out) > 1 ? forward_on_ring(tape, out, &work) : forward_on_full(tape, out, sample, &work));
  ad_attention_end(&work);
  if (is_narrow(out)) round_sums(out, &out->array, to, work.out, 0);
  return AD_OK;
}

/* Computes the result, a group of samples at a time. On a ring the loop runs once even without samples, because the
 * other ranks wait for this rank's messages. */
static ad_status attention_forward_pass(ad_tape *tape, ad_tensor *out) {
  size_t sample = 0, batch = (size_t)out->array.local.dim[0];
  record_ring(tape, out, 0);
  if (tape->dry) return AD_OK;
  do {
    AD_TRY(forward_samples(tape, out, sample));
    sample += samples_at_once(out);
  } while (sample < batch);
  return AD_OK;
}

/* ---- attention's backward ---- */

/* Returns the memory in which an operand's gradient is computed: the gradient's own, or sums that are rounded into it
 * afterwards. Returns NULL if the gradient is not wanted. */
static void *begin_gradient(const ad_tensor *out, int i, const ad_gradient_slot *slot, size_t sample) {
  if (!slot->data) return NULL;
  void *sums = is_narrow(out) ? sums_of(out, i) : at_sample(array_of(out, i), slot->data, sample);
  if (is_narrow(out) || !slot->adds) memset(sums, 0, sums_bytes(out, i));
  return sums;
}

static void end_gradient(const ad_tensor *out, int i, const ad_gradient_slot *slot, size_t sample, const void *sums) {
  if (!slot->data) return;
  void *to = at_sample(array_of(out, i), slot->data, sample);
  if (sums != to) round_sums(out, array_of(out, i), to, sums, slot->adds);
}

static void clear_gradients(const key_ring *ring, int64_t turn) {
  size_t bytes = ring->counts[ad_ring_source(ring, turn)] * ad_dtype_size(ad_ring_wide(ring));
  memset(ad_ring_d_k(ring, turn), 0, bytes);
  memset(ad_ring_d_v(ring, turn), 0, bytes);
}

static ad_status backward_turns(const ad_tensor *out, const key_ring *ring, const attention_backward *work) {
  for (int64_t turn = 0; turn < ring->members; turn++) {
    attention_part part;
    ad_request request;
    AD_TRY(part_of_turn(out, ring, turn, &part));
    AD_TRY(ad_ring_post(ring, turn, 1, &request));
    clear_gradients(ring, turn);
    ad_attention_back(work, &part, ad_ring_d_k(ring, turn), ad_ring_d_v(ring, turn));
    AD_TRY(ad_ring_wait(ring, turn, 1, &request));
  }
  return AD_OK;
}

static ad_status backward_on_ring(ad_tape *tape, ad_tensor *out, const attention_backward *work,
                                  const ad_gradient_slot *slot) {
  key_ring ring = ring_of(tape, out);
  const void *home[3] = {NULL};
  AD_TRY(fill_counts(out, &ring, out->scratch));
  AD_TRY(backward_turns(out, &ring, work));
  AD_TRY(ad_ring_come_home(&ring, &home[K], &home[V]));
  for (int i = K; i <= V; i++) end_gradient(out, i, &slot[i], 0, home[i]);
  return AD_OK;
}

static ad_status backward_on_full(ad_tape *tape, const ad_tensor *out, size_t sample, const attention_backward *work,
                                  const ad_gradient_slot *slot) {
  attention_part part;
  AD_TRY(full_part(tape, out, sample, &part));
  void *d_k = begin_gradient(out, K, &slot[K], sample), *d_v = begin_gradient(out, V, &slot[V], sample);
  ad_attention_back(work, &part, d_k, d_v);
  end_gradient(out, K, &slot[K], sample, d_k);
  end_gradient(out, V, &slot[V], sample, d_v);
  return AD_OK;
}

static ad_status backward_samples(ad_tape *tape, ad_tensor *out, size_t sample, const ad_gradient_slot *slot) {
  const ad_array *q = array_of(out, Q);
  attention_backward work = {.dtype = out->array.dtype,
                             .q = at_sample(q, q->data, sample),
                             .out = at_sample(&out->array, out->array.data, sample),
                             .d_out = at_sample(&out->array, out->grad.data, sample),
                             .state = state_of(out, sample),
                             .d_q = begin_gradient(out, Q, &slot[Q], sample),
                             .scratch = arithmetic_of(out)};
  AD_TRY(take_sizes(tape, out, &work.size));
  AD_TRY(ring_members(out) > 1 ? backward_on_ring(tape, out, &work, slot)
                               : backward_on_full(tape, out, sample, &work, slot));
  end_gradient(out, Q, &slot[Q], sample, work.d_q);
  return AD_OK;
}

static ad_status attention_backward_pass(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  size_t sample = 0, batch = (size_t)out->array.local.dim[0];
  record_ring(tape, out, 1);
  if (tape->dry) return AD_OK;
  do {
    AD_TRY(backward_samples(tape, out, sample, slot));
    sample += samples_at_once(out);
  } while (sample < batch);
  return AD_OK;
}

static const ad_operation attention = {.name = "attention",
                                       .dtypes = AD_IN_ANY_FLOAT,
                                       .own_size = sizeof(attention_numbers),
                                       .runs_dry = 1,
                                       .describe = attention_describe,
                                       .check = attention_check,
                                       .saved = attention_saved,
                                       .scratch = attention_scratch,
                                       .forward = attention_forward_pass,
                                       .backward = attention_backward_pass};

static ad_tensor *attend(ad_tape *tape, ad_tensor *q, ad_tensor *k, ad_tensor *v, attention_numbers numbers,
                         const char *site) {
  ad_tensor *out = ad_tape_apply(tape, &attention, (ad_tensor *[]){q, k, v}, 3, &numbers, site);
  // Other ranks may wait for this rank's keys. After an early failure no operand shows whether they do, so the error is
  // always reported.
  if (tape && ad_tape_failed(tape) && ad_comm_size(tape->comm) > 1) ad_tape_report_error(tape);
  return out;
}

ad_tensor *ad_attention_at(ad_tape *tape, ad_tensor *q, ad_tensor *k, ad_tensor *v, int64_t head_dim,
                           const char *site) {
  return attend(tape, q, k, v, (attention_numbers){.head_dim = head_dim}, site);
}

ad_tensor *ad_attention_all_at(ad_tape *tape, ad_tensor *q, ad_tensor *k, ad_tensor *v, int64_t head_dim,
                               const char *site) {
  return attend(tape, q, k, v, (attention_numbers){.head_dim = head_dim, .sees_all = 1}, site);
}
