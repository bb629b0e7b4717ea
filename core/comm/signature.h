/* Signatures: the facts that must be the same in the calls of all members of a group, and how messages describe
 * them. */
#ifndef COMM_SIGNATURE_H
#define COMM_SIGNATURE_H
#include "base/text.h"
#include "comm/call.h"
#include "mesh/group.h"

enum {
  AD_SITE_MAX = 52,      // bytes of a call site, with the final 0
  AD_SHOWN_MEMBERS = 16  // the most members of a group that a message lists
};

/* Two calls match if and only if their signatures are equal. A list of counts enters as a 64-bit hash, so that a
 * signature has a fixed size and fits into shared memory and into messages between nodes. */
typedef struct ad_signature {
  uint64_t what;    // op, dtype, accumulate, reduction; root, or how results are written; for transfers the peer
  uint64_t count;   // elements of the value or of a block
  uint64_t counts;  // hash of the counts; 0: all blocks have the same size; for transfers the tag
} ad_signature;

static inline ad_collective_op ad_signature_op(const ad_signature *signature) {
  return (ad_collective_op)(signature->what & 0xff);
}
/* ad_signature_peer and ad_signature_tag return the peer and the tag from the signature of a transfer. */
static inline int32_t ad_signature_peer(const ad_signature *signature) { return (int32_t)(signature->what >> 32); }
static inline int64_t ad_signature_tag(const ad_signature *signature) { return (int64_t)signature->counts; }

/* Copies a call site. If the call site is too long, its start is cut off, since the end (file name and line) matters
 * more. */
void ad_site_write(char to[AD_SITE_MAX], const char *site);

/* Writes the call's signature to *out, one number after another. A returned struct would be read back from the stack
 * before its numbers have left the core, and that read waits for all earlier writes, also for those to cache lines of
 * other ranks. */
void ad_signature_take(const ad_call *call, ad_signature *out);
static inline int ad_signature_equal(const ad_signature *a, const ad_signature *b) {
  return a->what == b->what && a->count == b->count && a->counts == b->counts;
}
/* Appends the signature as "all_reduce(sum) of 100 f32" and, where the caller did not use the defaults, how the sum
 * is formed and written. */
void ad_signature_print(ad_text *text, const ad_signature *signature);
/* Appends a group's axes and ranks, as "dp_shard {0,1}". */
void ad_group_words(ad_text *text, ad_axes axes, const ad_group_shape *shape);

#endif
