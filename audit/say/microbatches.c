/* Prints counts that differ from microbatch to microbatch. */
#include "say/microbatches.h"

#include <math.h>
#include "base/text.h"
#include "solve/hypotheses.h"

static int is_close(double a, double b) { return ad_counts_close(a, b, 0); }

/* Prints a count: as 1/n if it is the inverse of a whole number, else as a number. */
static void add_times(double count, ad_text *text) {
  if (count > 0 && count < 1 && is_close(1 / count, round(1 / count)))
    ad_text_add(text, "1/%.0f", 1 / count);
  else
    ad_text_add(text, "%.6g", is_close(count, round(count)) ? round(count) + 0.0 : count);
}

/* Prints all microbatches that have the same count as microbatch `first`, from `first` on, as "microbatches 1 and 2
 * count 1/4". */
static void add_equal_counts(const double *counts, int64_t microbatches, int64_t first, ad_text *text) {
  int64_t identical = 0, reported = 0;
  for (int64_t m = first; m < microbatches; m++) identical += is_close(counts[m], counts[first]);
  ad_text_add(text, "%smicrobatch%s ", text->used ? ", " : "", identical > 1 ? "es" : "");
  for (int64_t m = first; m < microbatches; m++) {
    if (!is_close(counts[m], counts[first])) continue;
    reported++;
    ad_text_add(text, "%s%lld", reported == 1 ? "" : reported == identical ? " and " : ", ", (long long)m);
  }
  ad_text_add(text, " count%s ", identical > 1 ? "" : "s");
  add_times(counts[first], text);
}

/* Returns 1 if no earlier microbatch has the same count as this one. */
static int is_first_of_count(const double *counts, int64_t microbatch) {
  for (int64_t m = 0; m < microbatch; m++)
    if (is_close(counts[m], counts[microbatch])) return 0;
  return 1;
}

void ad_microbatches_print(const double *counts, int64_t microbatches, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (int64_t m = 0; m < microbatches; m++)
    if (is_first_of_count(counts, m)) add_equal_counts(counts, microbatches, m, &text);
}
