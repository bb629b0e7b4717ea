/* Reads validation lines by greedy decoding and counts wrong characters. */
#ifndef OCR_READING_H
#define OCR_READING_H
#include "ocr/batch.h"

/* The parts of the program that reading uses. */
typedef struct ad_ocr_reader {
  ad_ocr_batch *batch;
  /* The logits [batch, seq, 256] of the microbatch whose forward pass ran last. */
  const ad_array *(*logits)(void *own);
  void *own;
  const ad_mesh *mesh; /* mesh of the logits */
  const ad_forward *forward;
  ad_comm *comm;
} ad_ocr_reader;

/* Reads the first options->read lines of the validation set, and again with blank pictures. On the first rank *out
 * is a JSON document; the caller frees it. Its members: lines, characters; character_error_rate, blank,
 * validation_font (null: no line was drawn in that font), each the edits to the true line over its length; samples,
 * each with text, read, width, height, and pixels (base64, one byte each, 0 is paper). Collective over all ranks. */
ad_status ad_ocr_read_lines(const ad_ocr_reader *reader, char **out) AD_CHECKED;

#endif
