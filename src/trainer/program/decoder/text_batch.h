/* A rank's share of one step's batch of text: its rows of every microbatch, read at once so that the step's tokens can
 * be counted before the first of them is used (law 5). Of a pipeline the first stage reads tokens and the last one
 * targets; which samples they are, and how many tokens of each count, every stage knows from their numbers. */
#ifndef PROGRAM_DECODER_TEXT_BATCH_H
#define PROGRAM_DECODER_TEXT_BATCH_H
#include "addend/array.h"
#include "addend/data.h"
#include "addend/program.h"

typedef struct ad_text_microbatch {
  ad_span rows;             /* of the step's global batch */
  ad_array tokens, targets; /* i32 [batch, seq]; parts may be empty; without an element on ranks that do not read it */
} ad_text_microbatch;

typedef struct ad_text_batch {
  const ad_comm *comm;         /* of engine dry: nothing is read and nothing has memory */
  const ad_text_options *text; /* the recipe's */
  ad_batch_options options;
  int64_t vocabulary;
  ad_text_data *data; /* once opened */
  char *tokenizer;    /* path of the one beside files of tokens; NULL: there is none */
  int64_t evaluated;  /* samples of the held-out set that the recipe asks for */
  ad_span *positions; /* of the sequence that this rank reads */
  ad_text_microbatch *microbatches;
  size_t count;
  int32_t *memory;
} ad_text_batch;

/* Samples are cut over dp, the sequence over cp, zigzag; whole on the other axes: I where the mesh names them, R
 * elsewhere. [batch, seq] */
ad_layout ad_text_batch_layout(const ad_mesh *mesh);
/* What counts tokens: P where the batch is cut. */
ad_layout ad_text_count_layout(const ad_mesh *mesh);
/* How a batch lies: its rows on all ranks, tokens on those that read them, targets on those that have the loss. */
typedef struct ad_text_layouts {
  ad_layout rows, tokens, targets;
} ad_text_layouts;
/* Borrows the options. Reads no file, and takes memory for no token: recipes of any size are looked at. */
ad_status ad_text_batch_create(const ad_program_setting *setting, const ad_text_layouts *layouts,
                               const ad_text_options *text, int64_t vocabulary, ad_text_batch *out) AD_CHECKED;
void ad_text_batch_destroy(ad_text_batch *batch);
/* Reads the text, or maps the tokens, and makes room for the batch. */
ad_status ad_text_batch_open(ad_text_batch *batch) AD_CHECKED;
/* AD_INVALID if it is to be of the held-out part and there is none; held_out: as ad_program_kind's read has it.
 * counted[m]: the targets of microbatch m that count. */
ad_status ad_text_batch_read(ad_text_batch *batch, int64_t step, ad_held_out held_out, int64_t *counted) AD_CHECKED;
int64_t ad_text_batch_held_out(const ad_text_batch *batch); /* samples of the held-out part; once opened */
/* Tokens and targets of each microbatch in turn, with the name (size 0: not wanted); NULL after the last. */
const ad_array *ad_text_batch_array(const ad_text_batch *batch, size_t index, char *name, size_t size);
size_t ad_text_batch_bytes(const ad_text_batch *batch); /* of text and batch on this rank */
/* What the files of data.text, or of data.tokens and data.mask, hold; NULL after that. */
const char *ad_text_batch_content(const ad_text_batch *batch, size_t index, char *buffer, size_t size);
/* Rows "text" or "tokens", and "batch", for a report's summary; NULL after them. */
const char *ad_text_batch_fact(const ad_text_batch *batch, size_t index, char *buffer, size_t size);

/* "tokenizer.json" in the folder of the first file of tokens, whether it is there or not; NULL: there are no tokens.
 * Release it with ad_release. */
ad_status ad_text_tokenizer(const ad_text_options *text, char **out) AD_CHECKED;
/* The tokenizer, if there is one; NULL after it. */
const char *ad_text_batch_companion(const ad_text_batch *batch, size_t index);

#endif
