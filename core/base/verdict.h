/* The words of verdicts. */
#ifndef BASE_VERDICT_H
#define BASE_VERDICT_H
#include "addend/verdict.h"
#include "base/internal.h"

/* Returns "matches", "DOES NOT MATCH", ...; "unknown" for a number that is no verdict. */
AD_INTERNAL const char *ad_verdict_words(ad_verdict_word verdict);

#endif
