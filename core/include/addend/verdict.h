/* The verdicts of all commands that judge: the words with which their reports begin and end, and their exit statuses.
 *
 * For users. Any thread may call these functions at any time. */
#ifndef ADDEND_VERDICT_H
#define ADDEND_VERDICT_H
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* All verdicts: X(code, words, status), with the exit status that check, diff and torch-check end with.
 * docs/verdicts.md explains each verdict; python/addend/_verdict.py has the same table. */
#define AD_VERDICT_WORDS(X)                 \
  X(AD_MATCHES, "matches", 0)               \
  X(AD_DOES_NOT_MATCH, "DOES NOT MATCH", 1) \
  X(AD_CANNOT_TELL, "CANNOT TELL", 1)       \
  X(AD_NOT_CHECKED, "NOT CHECKED", 1)

typedef enum ad_verdict_word {
#define AD_VERDICT_WORD_CODE(code, words, status) code,
  AD_VERDICT_WORDS(AD_VERDICT_WORD_CODE)
#undef AD_VERDICT_WORD_CODE
      AD_VERDICT_WORD_COUNT
} ad_verdict_word;

/* The exit status that check, diff and torch-check end with; 3, could not finish, for a number that is no verdict. */
AD_API int ad_verdict_status(ad_verdict_word verdict);

#if defined(__cplusplus)
}
#endif
#endif
