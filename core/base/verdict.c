/* The table of the words of verdicts, indexed by verdict. */
#include "addend/verdict.h"
#include "base/verdict.h"

static const struct {
  const char *words;
  int status;
} verdicts[] = {
#define AD_VERDICT_WORD_ROW(code, words, status) [code] = {words, status},
    AD_VERDICT_WORDS(AD_VERDICT_WORD_ROW)
#undef AD_VERDICT_WORD_ROW
};

enum { UNFINISHED = 3 };

static int is_verdict(ad_verdict_word verdict) { return (unsigned)verdict < AD_VERDICT_WORD_COUNT; }

const char *ad_verdict_words(ad_verdict_word verdict) {
  return is_verdict(verdict) ? verdicts[verdict].words : "unknown";
}

int ad_verdict_status(ad_verdict_word verdict) { return is_verdict(verdict) ? verdicts[verdict].status : UNFINISHED; }
