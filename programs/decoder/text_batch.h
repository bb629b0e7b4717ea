/* A rank's share of one step's batch of text: its rows of all microbatches. They are read together, so that the
 * step's tokens are counted before the first microbatch runs (law 5). In a pipeline the first stage reads tokens and
 * the last reads targets. Every stage knows the samples by their numbers, and how many tokens of each count. */
#ifndef DECODER_TEXT_BATCH_H
#define DECODER_TEXT_BATCH_H
#include "addend/array.h"
#include "addend/data.h"
#include "addend/program.h"

typedef struct ad_text_microbatch {
  ad_span rows;             /* the rows of the step's global batch */
  ad_array tokens, targets; /* i32 [batch, seq]; a rank's part may be empty; without elements on ranks that do not read
                             * the array */
} ad_text_microbatch;

typedef struct ad_text_batch {
  const ad_comm *comm;         /* on backend dry nothing is read and nothing has memory */
  const ad_text_options *text; /* borrowed from the recipe */
  ad_batch_options options;
  int64_t vocabulary;
  ad_text_data *data; /* NULL until ad_text_batch_open */
  char *tokenizer;    /* path of the tokenizer beside files of tokens; NULL: there is none */
  int64_t evaluated;  /* samples of the validation set that the recipe asks to evaluate */
  ad_span *positions; /* the positions of the sequence that this rank reads */
  ad_text_microbatch *microbatches;
  size_t count;
  int32_t *memory;
} ad_text_batch;

/* The layout of [batch, seq]: samples sharded over dp, the sequence over cp (zigzag); on other axes I if the mesh names
 * them, else R. */
ad_layout ad_text_batch_layout(const ad_mesh *mesh);
/* The layout of counts of tokens: P on the axes that shard the batch. */
ad_layout ad_text_count_layout(const ad_mesh *mesh);
/* The layouts of a batch: rows on all ranks, tokens on ranks that read them, targets on ranks that compute the loss. */
typedef struct ad_text_layouts {
  ad_layout rows, tokens, targets;
} ad_text_layouts;
/* Borrows the options. Reads no file and allocates nothing for tokens, so that recipes of any size can be planned. */
ad_status ad_text_batch_create(const ad_program_setting *setting, const ad_text_layouts *layouts,
                               const ad_text_options *text, int64_t vocabulary, ad_text_batch *out) AD_CHECKED;
void ad_text_batch_destroy(ad_text_batch *batch);
/* Reads the text, or maps the tokens, and allocates the batch. */
ad_status ad_text_batch_open(ad_text_batch *batch) AD_CHECKED;
/* Reads a step's batch; validation as in ad_program_kind's read. counted[m]: the targets of microbatch m that count.
 * AD_INVALID: the validation part is asked for, and there is none. */
ad_status ad_text_batch_read(ad_text_batch *batch, int64_t step, ad_data_split validation, int64_t *counted) AD_CHECKED;
int64_t ad_text_batch_validation(
    const ad_text_batch *batch); /* samples of the validation part; after ad_text_batch_open */
/* Tokens and targets of each microbatch in turn, and their name (size 0: no name); NULL after the last. */
const ad_array *ad_text_batch_array(const ad_text_batch *batch, size_t index, char *name, size_t size);
size_t ad_text_batch_bytes(const ad_text_batch *batch); /* bytes of text and batch on this rank */
/* The contents of the files of data.text, or of data.tokens and data.mask, in words; NULL after the last. */
const char *ad_text_batch_content(const ad_text_batch *batch, size_t index, char *buffer, size_t size);
/* Rows for a report's summary, named "text" or "tokens", and "batch"; NULL after the last. */
const char *ad_text_batch_fact(const ad_text_batch *batch, size_t index, char *buffer, size_t size);

/* The tokenizer's path if the file exists; a run's folder gets a copy. NULL after it. */
const char *ad_text_batch_companion(const ad_text_batch *batch, size_t index);

#endif
