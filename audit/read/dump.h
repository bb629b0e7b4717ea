/* The files of one dumped step together: which file is which rank's, and what the files say of a parameter. */
#ifndef DIFF_DUMP_H
#define DIFF_DUMP_H
#include "read/box.h"
#include "read/metadata.h"
#include "files/file.h"

/* One parameter, as the metadata of the dump's files describe it. */
typedef struct ad_dump_param {
  const char *name; /* owned by the first file that has it */
  ad_shape shape;   /* shape of the full parameter */
  int64_t numel;
  int64_t sample;              /* number of the parameter's elements that the files have; all if it equals numel */
  int is_sampled;              /* 1: `sample` is smaller than numel */
  ad_type types[AD_DUMP_AXES]; /* R, I or S(d), for each axis */
  uint32_t summed;             /* bit set of the axes of type R, over which addends are summed */
  uint32_t partial;            /* bit set of axes along which the ranks' sums still have to be added */
  uint32_t assumed;            /* bit set of the axes whose type the files assume, because no file states it */
  /* expected factor between the sum and its addends */
  double expect;
  ad_dtype reduce;      /* dtype in which the job reduced; 0: unknown */
  const char *unjudged; /* why this parameter cannot be judged; NULL: it can */
} ad_dump_param;

/* One parameter's tensor in one file, and its box of the full array. */
typedef struct ad_piece {
  const ad_safetensor *tensor;
  ad_box box;
  /* the tensor's sampled elements; NULL: the parameter is not sampled, or they were not looked up yet */
  const ad_sampled *sampled;
  int64_t rank, microbatch;
} ad_piece;

/* An open dump. */
typedef struct ad_dump {
  ad_dump_file *files;
  size_t count;
  ad_dump_mesh mesh;
  int64_t step;                      /* -1: the files do not give it */
  int64_t microbatches;              /* 0: there are no addend files */
  int64_t sample;                    /* number K of samples a parameter; 0: full tensors */
  int32_t (*position)[AD_DUMP_AXES]; /* [rank][axis]: position in the mesh */
  const ad_dump_file **addends;      /* [rank][microbatch]: the addend file */
  const ad_dump_file **sums;         /* [rank]: the sum file */
  const ad_dump_file *reference;     /* NULL: there is none */
  ad_dump_param *params;             /* sorted by name */
  size_t param_count;
  int unchecked; /* 1: values of parameters were not checked for NaN and infinity yet; ad_parts_create checks them */
} ad_dump;

typedef void (*ad_dump_progress)(void *context, const char *what, int64_t done, int64_t of);

/* How ad_dump_open checks values, and where it reports its progress. */
typedef struct ad_dump_opening {
  ad_dump_progress progress; /* called as files are read; NULL: not wanted */
  void *context;
  int finite;  /* 1: every value is known to be finite, so none is checked */
  int later;   /* 1: a parameter's values are checked when it is judged, so that they are read once (`unchecked`) */
  int threads; /* at most this many threads check values */
} ad_dump_opening;

/* Opens a dump and checks that its files belong together; a folder means the safetensors files in it. The error message
 * names everything that is wrong, one line each. Without addend files there must be a reference: one of the files, or
 * `has_reference`. */
ad_status ad_dump_open(const char *const *paths, size_t count, int has_reference, const ad_dump_opening *how,
                       ad_dump *out) AD_CHECKED;
/* Opens what --reference names: a file of full gradients, or another dump, of which only the sums are kept. */
ad_status ad_dump_open_reference(const char *const *paths, size_t count, int threads, ad_dump *out) AD_CHECKED;
/* Warns that the folder's entry `path` is skipped; `what`: the kind of entry, such as "a link". */
void ad_dump_report_passed(const char *path, const char *what);
/* Adds a file, or the files of a folder that are named *.safetensors. AD_INVALID: the folder has none. */
ad_status ad_dump_list(ad_file_list *list, const char *path) AD_CHECKED;
void ad_dump_close(ad_dump *dump);
/* Finds the box of the full parameter that the tensor of `param` in `file` fills; *there = 0 if the file has no such
 * tensor. Returns AD_INVALID if the file gives no box. That the box lies in the parameter was checked when the dump was
 * opened. */
ad_status ad_dump_piece(const ad_dump *dump, const ad_dump_param *param, const ad_dump_file *file, ad_piece *out,
                        int *there) AD_CHECKED;
/* Returns a number that is the same for two ranks if and only if their positions differ on `axes` only. */
int64_t ad_dump_key(const ad_dump *dump, int64_t rank, uint32_t axes);
const ad_dump_param *ad_dump_find(const ad_dump *dump, const char *name); /* NULL: there is none */

#endif
