/* Signatures: what must be the same in the calls of all members of a group, and the words for it in messages. */
#ifndef COMM_SIGNATURE_H
#define COMM_SIGNATURE_H
#include "base/text.h"
#include "comm/call.h"

enum { AD_SITE_MAX = 52 };

/* Two calls match if and only if these are equal (of counts, their 64-bit hashes). Fixed size: it lies in shared
 * memory. */
typedef struct ad_signature {
  uint64_t what;    // op, dtype, accumulate, reduction, root
  uint64_t count;   // elements of the value or of a block
  uint64_t counts;  // hash of the counts that all members know; 0: equal blocks
} ad_signature;

ad_signature ad_signature_of(const ad_call *call);
static inline int ad_signature_equal(const ad_signature *a, const ad_signature *b) {
  return a->what == b->what && a->count == b->count && a->counts == b->counts;
}
/* "all_reduce(sum) of 100 f32 in f32" */
void ad_signature_print(ad_text *text, const ad_signature *signature);
/* "dp_shard {0,1}" */
void ad_group_words(ad_text *text, ad_axes axes, const ad_group_shape *shape);

#endif
