/* Reading: free-running, greedy decoding of held-out lines, and how many characters were wrong. */
#ifndef PROGRAM_OCR_READING_H
#define PROGRAM_OCR_READING_H
#include "program/ocr/batch.h"

/* What reading needs of the program. */
typedef struct ad_ocr_reader {
  ad_ocr_batch *batch;
  /* Of the microbatch whose forward pass ran last: [batch, seq, 256]. */
  const ad_array *(*logits)(void *own);
  void *own;
  const ad_mesh *mesh; /* of the logits */
  const ad_forward *forward;
  ad_comm *comm;
} ad_ocr_reader;

/* Reads the first lines of the held-out set, as many as options->read says, and again with blank pictures. On the first
 * rank *out is a JSON document that the caller frees: lines, characters; character_error_rate, blank and held_out_font
 * (null: none was drawn in it): edits to the true line over its length; samples: text, read, width, height, pixels
 * (base64 of one byte each, 0: paper) Collective over all ranks. */
ad_status ad_ocr_read_lines(const ad_ocr_reader *reader, char **out) AD_CHECKED;

#endif
