/* What a text of bytes and one of tokens share: parts, from which samples are taken, and how rows are filled. */
#ifndef DATA_TEXT_H
#define DATA_TEXT_H
#include "addend/data.h"
#include "data/npy.h"

/* A file of tokens, and which of them count as targets. */
typedef struct ad_token_file {
  char *path, *mask_path;
  ad_npy tokens, mask; /* mask without data: all count */
} ad_token_file;

/* The windows that a file of tokens has in a part. */
typedef struct ad_token_run {
  const ad_token_file *file;
  int64_t first;        /* token of the file */
  int64_t first_window; /* number among those of the part */
} ad_token_run;

/* What is trained on, or what is held out. */
typedef struct ad_text_part {
  int64_t size;         /* bytes or tokens */
  int64_t windows;      /* samples that lie in it one after another */
  uint64_t stream;      /* of random numbers */
  const uint8_t *bytes; /* of a text of bytes; NULL: not read */
  ad_token_run *runs;   /* of tokens: one for each file that has a window, in their order */
  size_t run_count;
} ad_text_part;

/* The wanted positions of one sample. */
typedef struct ad_wanted {
  const ad_span *spans;
  size_t count;
  int64_t width;
} ad_wanted;
/* How many of them are below `valid`. */
int64_t ad_wanted_below(const ad_wanted *positions, int64_t valid);

/* Where a sample begins is a place: a byte of the part, or the number of a window. */
typedef struct ad_text_source {
  int64_t (*draw)(const ad_text_data *text, const ad_text_part *part, uint64_t seed, uint64_t index);
  int64_t (*window)(const ad_text_data *text, int64_t number); /* the place of a window */
  /* tokens, targets: NULL: not wanted. Targets from position `valid` on do not count. *counted: how many do. */
  ad_status (*fill)(const ad_text_data *text, const ad_text_part *part, int64_t place, int64_t valid,
                    const ad_wanted *positions, int32_t *tokens, int32_t *targets, int64_t *counted);
  void (*tally)(const ad_text_data *text, const ad_text_part *part,
                int64_t *counts);        /* adds how often each token is there */
  void (*checksums)(ad_text_data *text); /* makes them, where they are not there yet */
} ad_text_source;

struct ad_text_data {
  const ad_text_source *source;
  ad_text_part parts[2]; /* by ad_data_part */
  int64_t seq;
  int64_t byte_count; /* of all files */
  uint64_t checksum, mask_checksum;
  uint8_t *bytes; /* of a text: first what is trained on, file after file, then what is held out; NULL: not read */
  ad_token_file *files; /* of tokens */
  size_t file_count;
  int64_t vocabulary; /* tokens are below it */
  int is_summed;      /* the checksums of tokens were made */
};

/* The last tokens or bytes of a file, of so many, that are held out. */
int64_t ad_held_out_of(int64_t size, double held_out);
/* AD_INVALID for a sample's length or a fraction that is out of its range. */
ad_status ad_text_check_numbers(int64_t seq, double held_out) AD_CHECKED;
void ad_token_files_close(ad_text_data *text);

#endif
