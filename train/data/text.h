/* The common part of training data of bytes and of tokens: samples come from a training part or a validation part,
 * and fill rows of a batch. */
#ifndef DATA_TEXT_H
#define DATA_TEXT_H
#include "addend/data.h"
#include "data/npy.h"

/* A file of tokens, and a mask of the tokens that count as targets. */
typedef struct ad_token_file {
  char *path, *mask_path;
  ad_npy tokens, mask; /* mask without data: all tokens count */
} ad_token_file;

/* The windows of one file of tokens that are in a part. */
typedef struct ad_token_run {
  const ad_token_file *file;
  int64_t first;        /* the file's token with which the first window begins */
  int64_t first_window; /* the first window's number among those of the part */
} ad_token_run;

/* A part of the data: for training or for validation. */
typedef struct ad_text_part {
  int64_t size;         /* number of bytes or tokens */
  int64_t windows;      /* how many samples lie in the part one after another */
  uint64_t stream;      /* the stream of random numbers that draws samples */
  const uint8_t *bytes; /* bytes of the part, if the data are bytes; NULL: not read */
  ad_token_run *runs;   /* if the data are tokens: one run for each file that has a window, in the order of files */
  size_t run_count;
} ad_text_part;

/* The positions of a sample that a rank reads: spans, and the number of positions in all of them. */
typedef struct ad_wanted {
  const ad_span *spans;
  size_t count;
  int64_t width;
} ad_wanted;
/* How many of the positions are below `valid`. */
int64_t ad_wanted_below(const ad_wanted *positions, int64_t valid);

/* A source of samples: functions for bytes (text.c) and for tokens (tokens.c). The place of a sample is the byte of
 * the part where it begins, or the number of its window. */
typedef struct ad_text_source {
  /* The place of sample number `index` of the endless random order. */
  int64_t (*draw)(const ad_text_data *text, const ad_text_part *part, uint64_t seed, uint64_t index);
  int64_t (*window)(const ad_text_data *text, int64_t number); /* the place of a window */
  /* Fills the tokens and targets of one sample; either is NULL if it is not wanted. Targets from position `valid` on
   * do not count. Sets *counted to the number of targets that count. */
  ad_status (*fill)(const ad_text_data *text, const ad_text_part *part, int64_t place, int64_t valid,
                    const ad_wanted *positions, int32_t *tokens, int32_t *targets, int64_t *counted);
  /* Adds to `counts` how often each token occurs. */
  void (*count_values)(const ad_text_data *text, const ad_text_part *part, int64_t *counts);
  void (*checksums)(ad_text_data *text); /* makes the checksums, unless they are made already */
} ad_text_source;

struct ad_text_data {
  const ad_text_source *source;
  ad_text_part parts[2]; /* indexed by ad_data_part */
  int64_t seq;
  int64_t byte_count; /* bytes of all files */
  uint64_t checksum, mask_checksum;
  uint8_t *bytes;       /* if the data are bytes: the training part, then the validation part; NULL: not read */
  ad_token_file *files; /* if the data are tokens */
  size_t file_count;
  int64_t vocabulary; /* all tokens are below it */
  int is_summed;      /* 1: the checksums of tokens were made */
};

/* The number of bytes or tokens at the end of a file of `size` that are for validation. */
int64_t ad_validation_size(int64_t size, double validation);
/* AD_INVALID if a sample's length or the validation fraction is out of its range. */
ad_status ad_text_check_numbers(int64_t seq, double validation) AD_CHECKED;
void ad_token_files_close(ad_text_data *text);

#endif
