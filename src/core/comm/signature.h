/* Signatures: what must be the same in the calls of all members of a group, and the words for it in messages. */
#ifndef COMM_SIGNATURE_H
#define COMM_SIGNATURE_H
#include "base/text.h"
#include "comm/call.h"
#include "mesh/group.h"

enum {
  AD_SITE_MAX = 52,
  AD_SHOWN_MEMBERS = 16  // of a group, in messages
};

/* Two calls match if and only if their signatures are equal. Of a list of counts a signature has the 64-bit hash, so
 * that it has a fixed size and fits into shared memory and mail. */
typedef struct ad_signature {
  uint64_t what;   // op, dtype, accumulate, reduction, root; of transfers the peer
  uint64_t count;  // elements of the value or of a block
  uint64_t
      counts;  // hash of the counts, where all members know them; 0: all blocks have one size; of transfers the tag
} ad_signature;

static inline ad_collective_op ad_signature_op(const ad_signature *signature) {
  return (ad_collective_op)(signature->what & 0xff);
}
/* What the signature of a transfer says: the other side, and the tag. */
static inline int32_t ad_signature_peer(const ad_signature *signature) { return (int32_t)(signature->what >> 32); }
static inline int64_t ad_signature_tag(const ad_signature *signature) { return (int64_t)signature->counts; }

/* Copies a call's site; of a long one the end, which says more than the start. */
void ad_site_write(char to[AD_SITE_MAX], const char *site);

ad_signature ad_signature_of(const ad_call *call);
static inline int ad_signature_equal(const ad_signature *a, const ad_signature *b) {
  return a->what == b->what && a->count == b->count && a->counts == b->counts;
}
/* Adds "all_reduce(sum) of 100 f32", and how sums form and are written where that is not the default. */
void ad_signature_print(ad_text *text, const ad_signature *signature);
/* Adds "dp_shard {0,1}": the axes of a group and its ranks. */
void ad_group_words(ad_text *text, ad_axes axes, const ad_group_shape *shape);

#endif
