/* Reads validation lines by greedy decoding and counts the wrong characters. */
#ifndef OCR_READING_H
#define OCR_READING_H
#include "ocr/batch.h"

/* The parts of the program ocr that reading uses. */
typedef struct ad_ocr_reader {
  ad_ocr_batch *batch;
  /* Returns the logits [batch, seq, 256] of the microbatch whose forward pass ran last. */
  const ad_array *(*logits)(void *own);
  void *own;
  const ad_mesh *mesh; /* the mesh of the logits */
  const ad_forward *forward;
  ad_comm *comm;
} ad_ocr_reader;

/* Reads the first options->read lines of the validation set, then once more with blank pictures. Collective over all
 * ranks. On the first rank *out is a JSON document, which the caller frees. Its members are lines and characters
 * (counts); character_error_rate, blank and validation_font (each the edits to the true lines over their length; null
 * if no line was drawn in the validation font); and samples, each with text, read, width, height and pixels (base64,
 * one byte each, 0 is paper). */
ad_status ad_ocr_read_lines(const ad_ocr_reader *reader, char **out) AD_CHECKED;

#endif
