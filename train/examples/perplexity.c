/* How well a trained model predicts a text: the sum of -log p of each token, given those before it in its line, by the
 * sampler's logits. Lines are sequences of their own.
 *
 *   example_perplexity RUN TEXT     RUN: the folder of a run on bytes, or of a model of 256 tokens */
#include <math.h>
#include <stdio.h>
#include "addend/sample.h"

/* Returns log p(token), from the logits of the token that follows those read so far. */
static double log_probability(const ad_sampler *sampler, int32_t token) {
  const double *logits = ad_sampler_logits(sampler);
  double largest = logits[0];
  int64_t count = ad_sampler_vocabulary(sampler);
  for (int64_t i = 1; i < count; i++) largest = fmax(largest, logits[i]);
  double sum = exp(logits[0] - largest);
  for (int64_t i = 1; i < count; i++) sum += exp(logits[i] - largest);
  return logits[token] - largest - log(sum);
}

/* Reads the text byte by byte, and adds -log2 p of each byte to *bits. The first byte of a line is read but not
 * counted, because nothing predicts it. */
static ad_status judge(ad_sampler *sampler, FILE *text, double *bits, int64_t *count) {
  int is_first = 1;
  for (int byte; (byte = getc(text)) != EOF;) {
    int32_t token = byte;
    if (byte == '\n') {
      ad_sampler_begin(sampler);
      is_first = 1;
      continue;
    }
    if (!is_first) {
      *bits -= log_probability(sampler, token) / log(2);
      ++*count;
    }
    AD_TRY(ad_sampler_read(sampler, &token, 1));
    is_first = 0;
  }
  return AD_OK;
}

int main(int argc, char **argv) {
  ad_sampler_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_sampler *sampler = NULL;
  double bits = 0;
  int64_t count = 0;
  if (argc != 3) return fprintf(stderr, "usage: example_perplexity RUN TEXT_FILE\n"), 2;
  FILE *text = fopen(argv[2], "r");
  ad_status status =
      text ? ad_sampler_open(argv[1], &options, &sampler)
           : ad_fail(AD_IO, "the text file %s cannot be opened; name a text file that can be read", argv[2]);
  if (!status && ad_sampler_vocabulary(sampler) != 256)
    status = ad_fail(AD_INVALID,
                     "%s: the model of this run reads tokens of a tokenizer, but this example can only count bytes; "
                     "name a run whose vocabulary is 256",
                     argv[1]);
  if (!status) status = judge(sampler, text, &bits, &count);
  if (status) fprintf(stderr, "%s\n", ad_last_error());
  if (!status) printf("%.6f bits for each of %d bytes\n", count ? bits / (double)count : 0, (int)count);
  ad_sampler_close(sampler);
  if (text) fclose(text);
  return status != AD_OK;
}
