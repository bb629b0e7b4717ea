/* What training data of bytes and of tokens have in common: samples are taken from a training part or a validation
 * part, and fill rows of a batch. */
#ifndef DATA_TEXT_H
#define DATA_TEXT_H
#include "addend/data.h"
#include "data/npy.h"

/* A file of tokens, and a mask that says which tokens count as targets. */
typedef struct ad_token_file {
  char *path, *mask_path;
  ad_npy tokens, mask; /* if the mask has no data, all tokens count */
} ad_token_file;

/* The windows of one file of tokens that belong to a part. */
typedef struct ad_token_run {
  const ad_token_file *file;
  int64_t first;        /* index, in the file, of the token with which the first window begins */
  int64_t first_window; /* index of the first window among those of the part */
} ad_token_run;

/* The part of the data that is for training, or the part for validation. */
typedef struct ad_text_part {
  int64_t size;         /* number of bytes or tokens */
  int64_t windows;      /* number of samples that fit into the part one after another */
  uint64_t stream;      /* the stream of random numbers with which samples are drawn */
  const uint8_t *bytes; /* the bytes of the part, if the data are bytes; NULL if they are not read */
  ad_token_run *runs;   /* if the data are tokens: one for each file that has a window, in the order of files */
  size_t run_count;
} ad_text_part;

/* The positions of a sample that a rank reads: spans, and the number of positions in all of them. */
typedef struct ad_wanted {
  const ad_span *spans;
  size_t count;
  int64_t width;
} ad_wanted;
/* Returns how many of the positions are below `valid`. */
int64_t ad_wanted_below(const ad_wanted *positions, int64_t valid);

/* A source of samples: functions for bytes (text.c) and for tokens (tokens.c). The `place` of a sample is, for bytes,
 * the offset in the part at which the sample begins; for tokens, the index of its window. */
typedef struct ad_text_source {
  /* Returns the place of the sample with this index in an endless random order. */
  int64_t (*draw)(const ad_text_data *text, const ad_text_part *part, uint64_t seed, uint64_t index);
  int64_t (*window)(const ad_text_data *text, int64_t number); /* returns the place of the window with this index */
  /* Fills the tokens and the targets of one sample; either may be NULL. Targets from position `valid` on do not count.
   * Sets *counted to the number of targets that count. */
  ad_status (*fill)(const ad_text_data *text, const ad_text_part *part, int64_t place, int64_t valid,
                    const ad_wanted *positions, int32_t *tokens, int32_t *targets, int64_t *counted);
  /* Adds to `counts` how often each token occurs. */
  void (*count_values)(const ad_text_data *text, const ad_text_part *part, int64_t *counts);
  void (*checksums)(ad_text_data *text); /* makes the checksums if they are not made yet */
} ad_text_source;

struct ad_text_data {
  const ad_text_source *source;
  ad_text_part parts[2]; /* indexed by ad_data_part */
  int64_t seq;
  int64_t byte_count; /* bytes of all files */
  uint64_t checksum, mask_checksum;
  uint8_t *bytes;       /* if the data are bytes: the training part, then the validation part; NULL if they are not
                         * read */
  ad_token_file *files; /* used if the data are tokens */
  size_t file_count;
  int64_t vocabulary; /* all tokens are below this number */
  int is_summed;      /* 1: the checksums of tokens are made */
};

/* Returns how many of a file's `size` bytes or tokens are for validation; these are at its end. */
int64_t ad_validation_size(int64_t size, double validation);
/* Returns AD_INVALID if the length of a sample or the validation fraction is out of its range. */
ad_status ad_text_check_numbers(int64_t seq, double validation) AD_CHECKED;
void ad_token_files_close(ad_text_data *text);
/* Returns the bytes of a part; owned by the text. NULL: the text was not read, or consists of tokens. */
const uint8_t *ad_text_data_part(const ad_text_data *text, ad_data_part of, int64_t *size);

#endif
