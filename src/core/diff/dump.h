/* The files of one dumped step, as a whole: which rank's, and what is said of each parameter. */
#ifndef DIFF_DUMP_H
#define DIFF_DUMP_H
#include "diff/box.h"
#include "diff/metadata.h"
#include "files/file.h"

typedef struct ad_dump_param {
  const char *name; /* owned by the first file that has it */
  ad_shape shape;   /* of the whole */
  int64_t numel;
  int64_t sample;              /* how many elements the files have of it; numel: all */
  int is_sampled;              /* 1: `sample` of more elements */
  ad_type types[AD_DUMP_AXES]; /* R, I or a cut */
  uint32_t summed;             /* the axes of type R */
  uint32_t partial;            /* axes along which the sum still is in parts */
  double expect;
  ad_dtype reduce;      /* 0: not said */
  const char *unjudged; /* why nothing can be said of it; NULL: it is judged */
} ad_dump_param;

/* A tensor of a parameter in a file, and where it lies in the whole. */
typedef struct ad_piece {
  const ad_safetensor *tensor;
  ad_box box;
  const ad_sampled *sampled; /* its elements, where the parameter is sampled; NULL otherwise, or not looked up yet */
  int64_t rank, microbatch;
} ad_piece;

typedef struct ad_dump {
  ad_dump_file *files;
  size_t count;
  ad_dump_mesh mesh;
  int64_t step;                      /* -1: not said */
  int64_t microbatches;              /* 0: there are no addends */
  int64_t sample;                    /* 0: whole tensors */
  int32_t (*position)[AD_DUMP_AXES]; /* by rank */
  const ad_dump_file **addends;      /* [rank][microbatch] */
  const ad_dump_file **sums;         /* [rank] */
  const ad_dump_file *reference;     /* NULL: none */
  ad_dump_param *params;             /* by name */
  size_t param_count;
  int unchecked; /* values of parameters were not looked at: ad_parts_create does */
} ad_dump;

typedef void (*ad_dump_progress)(void *context, const char *what, int64_t done, int64_t of);

typedef struct ad_dump_opening {
  ad_dump_progress progress; /* NULL: nobody is told */
  void *context;
  int finite;  /* every value is known to be a finite number: none is looked at */
  int later;   /* values of parameters are looked at when they are needed, and read once: `unchecked` */
  int threads; /* at most so many look at values */
} ad_dump_opening;

/* Opens and checks all; a folder stands for the safetensors files in it. The message names everything that is wrong, a
 * line for each. Without addends there must be a reference: one of the files, or `has_reference`. */
ad_status ad_dump_open(const char *const *paths, size_t count, int has_reference, const ad_dump_opening *how,
                       ad_dump *out) AD_CHECKED;
/* What --reference names: a file of whole gradients, or another dump, of which the sums are enough. */
ad_status ad_dump_open_reference(const char *const *paths, size_t count, int threads, ad_dump *out) AD_CHECKED;
void ad_dump_tell_passed(const char *path, const char *what); /* of what in a folder is no file of its own */
/* Adds a file, or those in a folder that are named as safetensors files are. AD_INVALID: there is none. */
ad_status ad_dump_list(ad_file_list *list, const char *path) AD_CHECKED;
void ad_dump_close(ad_dump *dump);
/* Where the tensor of `param` in `file` lies: 0 in *there if it is not in it. AD_INVALID: the file
 * gives no box for it. That it fits was found when the dump was opened. */
ad_status ad_dump_piece(const ad_dump *dump, const ad_dump_param *param, const ad_dump_file *file, ad_piece *out,
                        int *there) AD_CHECKED;
/* The same number for all ranks that differ on these axes only. */
int64_t ad_dump_key(const ad_dump *dump, int64_t rank, uint32_t axes);
const ad_dump_param *ad_dump_find(const ad_dump *dump, const char *name); /* NULL: none */

#endif
