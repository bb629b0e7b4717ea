/* Packs the facts that must match in a call into three numbers (the signature), and prints signatures. Backends,
 * which see the signatures of all members, compare them. */
#include "comm/signature.h"
#include "mesh/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

void ad_site_write(char to[AD_SITE_MAX], const char *site) {
  size_t length = strlen(site), skipped = length < AD_SITE_MAX ? 0 : length - AD_SITE_MAX + 1;
  memcpy(to, site + skipped, length - skipped + 1);
}

/* Returns the upper 32 bits of the signature's field `what`: for a transfer the peer, for an operation that reduces
 * how results are written, else the root. */
static uint64_t pack_outputs(const ad_call *call) {
  const ad_reducing *how = &call->reducing;
  if (ad_op_is_transfer(call->op)) return (uint32_t)call->peer;
  if (!call->operation->reduces) return call->root;
  return (uint64_t)how->out_dtype | (uint64_t)(uint8_t)call->in_scale << 8 | (uint64_t)(uint8_t)call->out_scale << 16 |
         (uint64_t)how->adds << 24 | (uint64_t)how->aligned << 25;
}

static uint64_t pack(const ad_call *call) {
  return (uint64_t)call->op | (uint64_t)call->dtype << 8 | (uint64_t)call->reducing.accumulate << 16 |
         (uint64_t)call->reducing.reduction << 24 | pack_outputs(call) << 32;
}

/* Returns the signature's field `counts`: a transfer's tag, or a hash of the counts, segments and leaf ranges, which
 * must match too. */
static uint64_t hash_counts(const ad_call *call) {
  uint64_t hash = 0;
  if (ad_op_is_transfer(call->op)) return (uint64_t)call->tag;
  // All members know the counts of blocks. The counts of pairs are compared later, for each pair of members.
  if (call->in_starts && ad_is_of_pairs(call->operation)) return 1;
  // Bit 0 is set, since 0 means: no counts. Bit 1 is flipped, so that segments never match counts with the same hash.
  if (call->segment_count) hash = (call->segments_hash | 1) ^ 2;
  if (call->in_starts) hash = XXH3_64bits(call->in_starts, (call->members + 1) * sizeof *call->in_starts) | 1;
  return call->results ? hash ^ (call->ranges_hash | 1) : hash;
}

static uint64_t total_count(const ad_call *call) {
  if (!call->in_starts) return call->count;
  return ad_is_of_pairs(call->operation) ? 0 : call->in_starts[call->members];
}

void ad_signature_take(const ad_call *call, ad_signature *out) {
  // In an exchange, dtype and counts are compared for each message, since members without messages need not know them.
  int is_empty = !ad_op_is_transfer(call->op) && ad_has_no_value(call->operation);
  out->what = is_empty ? (uint64_t)call->op : pack(call);
  out->count = is_empty ? 0 : total_count(call);
  out->counts = is_empty ? 0 : hash_counts(call);
}

/* Returns the scale, -128 to 127, that is stored in the lowest byte. */
static int scale_at(uint64_t what) {
  int byte = (int)(what & 0xff);
  return byte < 128 ? byte : byte - 256;
}

static void print_outputs(ad_text *text, const ad_signature *signature, ad_dtype dtype) {
  ad_dtype out = (ad_dtype)(signature->what >> 32 & 0xff);
  int in_scale = scale_at(signature->what >> 40), out_scale = scale_at(signature->what >> 48);
  if (in_scale) ad_text_add(text, " holding values times 2^%d", -in_scale);
  if (out != dtype) ad_text_add(text, ", written as %s", ad_dtype_name(out));
  if (out_scale) ad_text_add(text, ", written times 2^%d", -out_scale);
  if (signature->what >> 56 & 1) ad_text_add(text, ", added to the output");
  if (signature->what >> 57 & 1) ad_text_add(text, ", summed by leaves (hash %08" PRIx64 ")", signature->counts >> 32);
}

static void print_transfer(ad_text *text, const ad_signature *signature) {
  ad_dtype dtype = (ad_dtype)(signature->what >> 8 & 0xff);
  int32_t peer = ad_signature_peer(signature);
  ad_text_add(text, "%s of %" PRIu64 " %s ", ad_op_name(ad_signature_op(signature)), signature->count,
              ad_dtype_name(dtype));
  if (peer == AD_ANY_SOURCE)
    ad_text_add(text, "from any rank");
  else
    ad_text_add(text, "%s rank %d", (int)ad_signature_op(signature) == AD_OP_SEND ? "to" : "from", (int)peer);
  ad_text_add(text, " under tag %" PRId64, ad_signature_tag(signature));
}

void ad_signature_print(ad_text *text, const ad_signature *signature) {
  ad_collective_op op = ad_signature_op(signature);
  if (ad_op_is_transfer(op)) {
    print_transfer(text, signature);
    return;
  }
  ad_dtype dtype = (ad_dtype)(signature->what >> 8 & 0xff), accumulate = (ad_dtype)(signature->what >> 16 & 0xff);
  ad_reduction reduction = (ad_reduction)(signature->what >> 24 & 0xff);
  const ad_comm_operation *operation = ad_comm_operation_of(op);
  ad_text_add(text, "%s", ad_op_name(op));
  if (!operation || ad_has_no_value(operation)) return;
  if (operation->reduces) ad_text_add(text, "(%s)", ad_reduction_name(reduction));
  if (ad_is_of_pairs(operation) && signature->counts)
    ad_text_add(text, " of %s with counts", ad_dtype_name(dtype));
  else
    ad_text_add(text, " of %" PRIu64 " %s", signature->count, ad_dtype_name(dtype));
  int leaves = operation->reduces && signature->what >> 57 & 1;  // their hash, printed below, includes the counts
  if (!ad_is_of_pairs(operation) && signature->counts && !leaves)
    ad_text_add(text, " in all, with counts (hash %08" PRIx64 ")", signature->counts >> 32);
  else if (ad_takes_counts(operation) && !signature->counts)
    ad_text_add(text, " per block");
  if (accumulate && accumulate != dtype) ad_text_add(text, " summed in %s", ad_dtype_name(accumulate));
  if (operation->reduces) print_outputs(text, signature, dtype);
  if (ad_has_root(operation))
    ad_text_add(text, " %s member %" PRIu64, operation->in_on_root ? "from" : "to", signature->what >> 32);
}

void ad_group_words(ad_text *text, ad_axes axes, const ad_group_shape *shape) {
  char names[128];
  int64_t members = ad_shape_members(shape);
  if (shape->list)
    snprintf(names, sizeof names, "ranks");
  else if (axes == AD_AXES_ALL)
    snprintf(names, sizeof names, "all axes");
  else
    ad_axes_print(axes, names, sizeof names);
  ad_text_add(text, "%s%s{", names, names[0] ? " " : "");
  for (int64_t i = 0; i < members && i < AD_SHOWN_MEMBERS; i++)
    ad_text_add(text, "%s%" PRId64, i ? "," : "", ad_shape_rank(shape, i));
  ad_text_add(text, members > AD_SHOWN_MEMBERS ? ",...}" : "}");
}
