/* A rank's share of one step's batch of text: its rows of all microbatches. All microbatches are read together, because
 * the step's tokens must be counted before the first microbatch runs (law 5). In a pipeline the first stage reads
 * tokens and the last stage reads targets. Every stage knows which samples are in the batch, and how many tokens of
 * each sample count. */
#ifndef DECODER_TEXT_BATCH_H
#define DECODER_TEXT_BATCH_H
#include "addend/array.h"
#include "addend/data.h"
#include "addend/program.h"

typedef struct ad_text_microbatch {
  ad_span rows;             /* this rank's rows of the step's global batch */
  ad_array tokens, targets; /* i32 [batch, seq], this rank's part, which may be empty; no elements on ranks that do
                             * not read the array */
} ad_text_microbatch;

typedef struct ad_text_batch {
  const ad_comm *comm;         /* on backend dry nothing is read and no memory is allocated */
  const ad_text_options *text; /* borrowed from the recipe */
  ad_batch_options options;
  int64_t vocabulary;
  ad_text_data *data; /* NULL before ad_text_batch_open */
  char *tokenizer;    /* path of a tokenizer.json in the folder of the files of tokens; NULL if there are no files of
                       * tokens */
  int64_t evaluated;  /* how many samples of the validation set the recipe asks to evaluate */
  ad_span *positions; /* the positions of the sequence that this rank reads */
  ad_text_microbatch *microbatches;
  size_t count;
  const int64_t *own; /* the microbatches that this rank runs, borrowed; the others have no memory */
  size_t own_count;
  int is_of_leaves; /* 1: each microbatch is a leaf */
  int32_t *memory;
} ad_text_batch;

/* Returns the layout of a batch [batch, seq]: samples sharded over dp, the sequence over cp (zigzag). On other axes the
 * layout is I if the mesh has the axis, else R. */
ad_layout ad_text_batch_layout(const ad_mesh *mesh);
/* Returns the layout of counts of tokens: P on the axes that shard the batch. */
ad_layout ad_text_count_layout(const ad_mesh *mesh);
/* The layouts of a batch: `rows` is for all ranks, `tokens` for ranks that read tokens, `targets` for ranks that
 * compute the loss. */
typedef struct ad_text_layouts {
  ad_layout rows, tokens, targets;
} ad_text_layouts;
/* Makes a batch without reading a file or allocating memory for tokens, so that recipes of any size can be planned.
 * Borrows the options. */
ad_status ad_text_batch_create(const ad_program_setting *setting, const ad_text_layouts *layouts,
                               const ad_text_options *text, int64_t vocabulary, ad_text_batch *out) AD_CHECKED;
void ad_text_batch_destroy(ad_text_batch *batch);
/* Reads the text, or maps the tokens, and allocates the batch. */
ad_status ad_text_batch_open(ad_text_batch *batch) AD_CHECKED;
/* Reads a step's batch; `validation` has the same meaning as in an ad_program_kind's read. Sets counted[m] to the
 * number of targets of microbatch m that count. Returns AD_INVALID if the validation set is asked for and there is
 * none. */
ad_status ad_text_batch_read(ad_text_batch *batch, int64_t step, ad_data_split validation, int64_t *counted) AD_CHECKED;
int64_t ad_text_batch_validation(
    const ad_text_batch *batch); /* returns the number of samples in the validation set; call it after
                                  * ad_text_batch_open */
/* Returns the array with this index, in the order tokens and targets of microbatch 0, then of microbatch 1 and so on,
 * and writes its name (if size is not 0). Returns NULL after the last. */
const ad_array *ad_text_batch_array(const ad_text_batch *batch, size_t index, char *name, size_t size);
size_t ad_text_batch_bytes(const ad_text_batch *batch); /* bytes of text and batch on this rank */
/* Identifies in words the contents of the file with this index in data.text, or in data.tokens and then data.mask.
 * Returns NULL after the last. */
const char *ad_text_batch_content(const ad_text_batch *batch, size_t index, char *buffer, size_t size);
/* Writes the line with this index of a report's summary and returns its name: "text" or "tokens", then "batch". Returns
 * NULL after the last. */
const char *ad_text_batch_fact(const ad_text_batch *batch, size_t index, char *buffer, size_t size);

/* Index 0: returns the path of the tokenizer of which a run's folder gets a copy, or NULL if there is none. Index 1:
 * returns NULL. */
const char *ad_text_batch_companion(const ad_text_batch *batch, size_t index);

#endif
