/* This rank's share of a batch of drawn lines: patches on the encoder's mesh, tokens and targets on the decoder's
 * mesh. */
#ifndef OCR_BATCH_H
#define OCR_BATCH_H
#include "addend/data.h"
#include "ocr/ocr.h"

typedef struct ad_ocr_microbatch {
  ad_span pictures, lines;        /* this rank's rows of the global batch: in the encoder's module, and in the
                                   * decoder's */
  ad_array patches, wide_patches; /* [batch, patches, pixels] in f32 and in f64: S0 on dp, S1 on cp, I on tp */
  ad_array tokens;                /* [batch, seq] i32: S0 on dp, full sequences */
  ad_array targets;               /* [batch, seq] i32: S0 on dp, S1z on cp */
} ad_ocr_microbatch;

typedef struct ad_ocr_batch {
  const ad_ocr_options *options;
  ad_program_setting setting; /* the recipe's setting, copied without its meshes */
  ad_line_data *lines;        /* NULL before ad_ocr_batch_open */
  size_t text_bytes;          /* bytes of the lines' text; known on backend dry, too */
  ad_ocr_microbatch *microbatches;
  size_t count;
  void *memory;
  uint8_t *characters; /* the characters of the line that was drawn last */
  float *picture;
} ad_ocr_batch;

/* Returns the layout of the count of characters: P on the axes that shard targets. */
ad_layout ad_ocr_count_layout(const ad_mesh *model);
/* Makes a batch without reading a file. Borrows the options. */
ad_status ad_ocr_batch_create(const ad_program_setting *setting, const ad_ocr_options *options, const ad_mesh *encoder,
                              const ad_mesh *model, ad_ocr_batch *out) AD_CHECKED;
void ad_ocr_batch_destroy(ad_ocr_batch *batch);
ad_status ad_ocr_batch_open(ad_ocr_batch *batch) AD_CHECKED;
/* Draws the line with this index of the training set or the validation set into batch->characters and
 * batch->picture. */
ad_status ad_ocr_batch_draw(ad_ocr_batch *batch, ad_data_split validation, int64_t index, ad_line *out) AD_CHECKED;
ad_status ad_ocr_batch_read(ad_ocr_batch *batch, int64_t step, ad_data_split validation, int64_t *counted) AD_CHECKED;
const ad_array *ad_ocr_batch_array(const ad_ocr_batch *batch, size_t index, char *name, size_t size);
/* Identifies the text (index 0) and then each font by a checksum, in words. Returns NULL after the last. */
const char *ad_ocr_batch_content(const ad_ocr_batch *batch, size_t index, char *buffer, size_t size);
size_t ad_ocr_batch_bytes(const ad_ocr_batch *batch);

#endif
