/* The files of one dumped step as a whole: which file belongs to which rank, and what the metadata of the files says
 * of each parameter. */
#ifndef DIFF_DUMP_H
#define DIFF_DUMP_H
#include "read/box.h"
#include "read/metadata.h"
#include "files/file.h"

typedef struct ad_declared ad_declared; /* declared.h */

/* One parameter, as the metadata of the dump's files describe it. */
typedef struct ad_dump_param {
  const char *name; /* owned by the first file that has it */
  ad_shape shape;   /* shape of the full parameter */
  int64_t numel;
  int64_t sample;              /* how many of the parameter's elements the files have; numel if they have all */
  int is_sampled;              /* 1: `sample` is smaller than numel */
  ad_type types[AD_DUMP_AXES]; /* R, I or S(d), for each axis */
  uint32_t summed;             /* bit set of the axes of type R: addends are summed over these axes */
  uint32_t partial; /* bit set of the axes along which the dumped sums are still Partial and must be added up */
  uint32_t assumed; /* bit set of the axes whose type the files only assume, since the job states none */
  /* by which factor the job is expected to multiply the sum of the addends */
  double expect;
  ad_dtype reduce;       /* dtype in which the job summed the gradient; 0: unknown */
  ad_dtype promised;     /* dtype in which the job says that the sum is formed; 0: it does not say */
  ad_declared *declared; /* what sources declare of the parameter; owned by the dump */
  size_t declared_count;
  /* bit sets of the axes whose type R, or I, a source declares that the addends may contradict: no wrapper that sums over
   * the axis itself, and not the dump's writer */
  uint32_t declared_r, declared_i;
  uint32_t placed;      /* those of them whose type a placement alone declares */
  const char *unjudged; /* why this parameter cannot be judged; NULL: it can be judged */
} ad_dump_param;

/* One parameter's tensor in one file, and the box of the full parameter that the tensor fills. */
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
  int64_t sample;                    /* how many elements of each parameter are sampled (K); 0: full tensors */
  int32_t (*position)[AD_DUMP_AXES]; /* [rank][axis]: position in the mesh */
  const ad_dump_file **addends;      /* [rank][microbatch]: the addend file */
  const ad_dump_file **sums;         /* [rank]: the sum file */
  const ad_dump_file *reference;     /* NULL: there is no reference file */
  ad_dump_param *params;             /* sorted by name */
  size_t param_count;
  int unchecked; /* 1: values of parameters were not checked for NaN and infinity yet; ad_parts_create checks them */
} ad_dump;

typedef void (*ad_dump_progress)(void *context, const char *what, int64_t done, int64_t of);

/* Settings of ad_dump_open: which values are checked when, and who is informed of the progress. */
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
/* Opens the reference that --reference names: a file of full gradients, or another dump, of which only the sums are
 * kept. */
ad_status ad_dump_open_reference(const char *const *paths, size_t count, int threads, ad_dump *out) AD_CHECKED;
/* Warns that an entry of a folder, `path`, is skipped. `what` is the kind of the entry, such as "a link". */
void ad_dump_report_passed(const char *path, const char *what);
/* Adds a file; if `path` is a folder, adds the files in it that are named *.safetensors. Returns AD_INVALID if the
 * folder has none. */
ad_status ad_dump_list(ad_file_list *list, const char *path) AD_CHECKED;
void ad_dump_close(ad_dump *dump);
/* Finds the box of the full parameter that the tensor of `param` in `file` fills; *there = 0 if the file has no such
 * tensor. Returns AD_INVALID if the file gives no box. That the box lies in the parameter was checked when the dump was
 * opened. */
ad_status ad_dump_piece(const ad_dump *dump, const ad_dump_param *param, const ad_dump_file *file, ad_piece *out,
                        int *there) AD_CHECKED;
/* Returns 1 if the position of rank `next` is one further along the axis than that of `rank`, and the same on all other
 * axes. */
int ad_dump_is_next(const ad_dump *dump, int64_t rank, int64_t next, int axis);
/* Returns a key that two ranks share if and only if their positions are the same on all axes except `axes`; with `axes`
 * 0 it is the row-major number of the rank's position. */
int64_t ad_dump_key(const ad_dump *dump, int64_t rank, uint32_t axes);
const ad_dump_param *ad_dump_find(const ad_dump *dump, const char *name); /* NULL: the dump has no such parameter */

#endif
