/* Opens a dump: reads every file, then checks that all files belong to one step on one mesh. */
#include "read/dump.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/memory.h"
#include "base/text.h"
#include "read/complaints.h"
#include "read/params.h"
#include "read/threads.h"
#include "files/file.h"

/* ---- listing the files ---- */

static int is_safetensors(const char *path) {
  static const char ending[] = ".safetensors";
  size_t length = strlen(path), own = sizeof ending - 1;
  return length >= own && !strcmp(path + length - own, ending);
}

/* Warns of a link or special file in a folder. Links and special files are skipped, since a link may lead to a file
 * that is listed already; but the user may have put one there in place of a dump file. */
void ad_dump_report_passed(const char *path, const char *what) {
  if (is_safetensors(path))
    ad_log(AD_LOG_WARNING,
           "%s: the path is %s, which is not read as part of a folder; write the path of the file itself as an "
           "argument to read it",
           path, what);
}

/* Adds a file whatever its name is; from a folder, adds only files named *.safetensors. */
ad_status ad_dump_list(ad_file_list *list, const char *path) {
  struct stat found;
  size_t kept = list->count, before = kept;
  ad_status status = ad_file_list_add(list, path);
  if (status || stat(path, &found) || !S_ISDIR(found.st_mode)) return status;
  for (size_t i = before; i < list->count; i++) {
    if (!is_safetensors(list->entries[i].path)) {
      ad_release(list->entries[i].path);
      continue;
    }
    list->entries[kept++] = list->entries[i];
  }
  list->count = kept;
  return kept > before
             ? AD_OK
             : ad_fail(AD_INVALID, "%s: the folder has no .safetensors file; name the folder that contains the dump",
                       path);
}

/* A listed file while it is opened. Headers are read one after the other, because most equal the previous header. Then
 * several threads check values. Errors are kept until all files have been read. */
typedef struct ad_opened {
  ad_safetensors *tensors; /* NULL: the file could not be opened */
  ad_dump_kind kind;
  ad_status status;
  char *message; /* NULL: nothing is wrong */
} ad_opened;

/* The context of the threads that check values. */
typedef struct ad_opening {
  const ad_dump_opening *how;
  ad_opened *files;
  size_t count;
} ad_opening;

/* Keeps the last error message for a file. AD_MEMORY is returned instead, so that the caller stops. */
static ad_status keep_error(ad_opened *opened, ad_status status) {
  if (!status || status == AD_MEMORY) return status;
  opened->status = status;
  return ad_copy_string(ad_last_error(), &opened->message);
}

/* Opens one file. `plain` 1: a file without metadata is accepted as a reference. `like`: the file opened before, or
 * NULL; metadata that is the same in both files is parsed once. */
static ad_status open_file(const char *path, int plain, const ad_dump_file *like, ad_opened *opened,
                           ad_dump_file *out) {
  ad_safetensors *tensors;
  AD_TRY(ad_safetensors_open_like(path, like ? like->tensors : NULL, &tensors));
  AD_TRY(ad_dump_file_read(tensors, plain, like, out));
  opened->tensors = out->tensors;
  opened->kind = out->kind;
  ad_safetensors_forget(opened->tensors);
  return AD_OK;
}

static ad_status open_headers(ad_dump *dump, const ad_file_list *list, int plain, ad_opening *opening) {
  for (size_t i = 0; i < list->count; i++) {
    const ad_dump_file *like = dump->count ? &dump->files[dump->count - 1] : NULL;
    ad_opened *opened = &opening->files[i];
    AD_TRY(keep_error(opened, open_file(list->entries[i].path, plain, like, opened, &dump->files[dump->count])));
    if (opened->tensors) dump->count++;
  }
  return AD_OK;
}

/* Checks that one file's values are finite. Does nothing if the caller knows that they are, or if each parameter's
 * values are checked later. */
static ad_status check_one(void *context, size_t index) {
  const ad_opening *opening = context;
  ad_opened *opened = &opening->files[index];
  if (!opened->tensors || opening->how->finite) return AD_OK;
  if (opening->how->later && opened->kind != AD_DUMP_REFERENCE) return AD_OK;
  ad_status status = keep_error(opened, ad_safetensors_check_values(opened->tensors));
  ad_safetensors_forget(opened->tensors);
  return status;
}

static void report_one(void *context, size_t index) {
  const ad_opening *opening = context;
  const ad_dump_opening *how = opening->how;
  if (how->progress) how->progress(how->context, "files", (int64_t)index + 1, (int64_t)opening->count);
}

static ad_status open_files(ad_dump *dump, const ad_file_list *list, int plain, const ad_dump_opening *how,
                            ad_complaints *complaints) {
  ad_opening opening = {.how = how, .count = list->count};
  AD_TRY(ad_new(list->count, &dump->files));
  AD_TRY(ad_new(list->count, &opening.files));
  ad_status status = open_headers(dump, list, plain, &opening);
  if (!status) status = ad_work_do(&(ad_work){list->count, check_one, report_one, &opening}, how->threads);
  for (size_t i = 0; i < list->count; i++) {
    const ad_opened *opened = &opening.files[i];
    if (opened->message && !status)
      status = ad_complaints_add(complaints, ad_fail(opened->status, "%s", opened->message));
    ad_release(opened->message);
  }
  ad_release(opening.files);
  return status;
}

static ad_status open_listed(ad_dump *dump, const char *const *paths, size_t count, int plain,
                             const ad_dump_opening *how, ad_complaints *complaints) {
  ad_file_list list = {.passed = ad_dump_report_passed};
  ad_status status = AD_OK;
  for (size_t i = 0; i < count && !status; i++) status = ad_complaints_add(complaints, ad_dump_list(&list, paths[i]));
  if (!status) status = open_files(dump, &list, plain, how, complaints);
  ad_file_list_clear(&list);
  return status;
}

/* ---- checking that the files belong to one step ---- */

static const ad_dump_file *first_of_a_rank(const ad_dump *dump) {
  for (size_t i = 0; i < dump->count; i++)
    if (dump->files[i].kind != AD_DUMP_REFERENCE) return &dump->files[i];
  return NULL;
}

static ad_status differs(const ad_dump_file *file, const char *what, const ad_dump_file *first) {
  return ad_fail(AD_INVALID,
                 "%s: addend.%s differs from addend.%s of %s, so the two files belong to different dumps; give only "
                 "files of one dump",
                 file->path, what, what, first->path);
}

/* Checks that mesh, step and sample of one file equal those of the first file, and that its rank is in the mesh. */
static ad_status check_file(const ad_dump *dump, const ad_dump_file *file, const ad_dump_file *first) {
  if (strcmp(file->mesh, first->mesh) != 0)
    return ad_fail(AD_INVALID, "%s has the mesh \"%.80s\", but %s has the mesh \"%.80s\"; give only files of one dump",
                   file->path, file->mesh, first->path, first->mesh);
  if (file->step != first->step) return differs(file, "step", first);
  if (file->sample != first->sample) return differs(file, "sample", first);
  if (file->rank < dump->mesh.world) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: addend.rank is %lld, but the mesh \"%.80s\" has only %lld rank%s, numbered from 0; correct one of the two",
      file->path, (long long)file->rank, file->mesh, (long long)dump->mesh.world, ad_plural(dump->mesh.world));
}

/* Sets mesh, step, sample and number of microbatches of the dump, and checks every file against the first file. */
static ad_status check_files(ad_dump *dump, ad_complaints *complaints) {
  const ad_dump_file *first = first_of_a_rank(dump);
  if (!first)
    return ad_complaints_add(complaints, ad_fail(AD_INVALID,
                                                 "no file has \"addend\" or \"sum\" as its addend.kind, so the mesh of "
                                                 "the dump is not known; give the files of the ranks, too"));
  ad_status status = ad_dump_mesh_parse(first->mesh, &dump->mesh);
  if (status) return ad_complaints_add(complaints, ad_fail_in(status, "%s: addend.mesh", first->path));
  dump->step = first->step;
  dump->sample = first->sample;
  for (size_t i = 0; i < dump->count; i++) {
    const ad_dump_file *file = &dump->files[i];
    if (file->kind == AD_DUMP_REFERENCE) continue;
    AD_TRY(ad_complaints_add(complaints, check_file(dump, file, first)));
    if (file->kind == AD_DUMP_ADDEND && file->microbatch >= dump->microbatches)
      dump->microbatches = file->microbatch + 1;
    if (file->kind == AD_DUMP_ADDEND && !dump->microbatches) dump->microbatches = 1;
  }
  return AD_OK;
}

/* Records `file` in *place, its entry for a rank (and microbatch); a second file for the same entry is an error. */
static ad_status put_file(const ad_dump_file **place, const ad_dump_file *file, const char *kind) {
  if (*place)
    return ad_fail(AD_INVALID, "%s is the %s of rank %lld, and so is %s; give only one of the two files", file->path,
                   kind, (long long)file->rank, (*place)->path);
  *place = file;
  return AD_OK;
}

static ad_status place_file(ad_dump *dump, const ad_dump_file *file) {
  int64_t microbatch = file->microbatch < 0 ? 0 : file->microbatch;
  if (file->kind == AD_DUMP_REFERENCE) {
    if (dump->reference)
      return ad_fail(AD_INVALID, "%s is a reference, and so is %s; give only one of the two files", file->path,
                     dump->reference->path);
    dump->reference = file;
    return AD_OK;
  }
  if (file->kind == AD_DUMP_SUM) return put_file(&dump->sums[file->rank], file, "sum");
  if (file->microbatch < 0 && dump->microbatches > 1)
    return ad_fail(AD_INVALID,
                   "%s contains the addend of a whole step, because it has no addend.microbatch, but other files "
                   "contain addends of single microbatches; dump all addends in one way",
                   file->path);
  return put_file(&dump->addends[file->rank * dump->microbatches + microbatch], file, "addend");
}

/* Limits on the size of a dump, so that a wrong number in a file does not make this program allocate all memory. */
enum { MICROBATCHES_MAX = 1 << 16, ADDENDS_MAX = 1 << 22 };

/* Records every file under its rank and kind: sums by [rank], addends by [rank][microbatch]. */
static ad_status place_files(ad_dump *dump, ad_complaints *complaints) {
  size_t world = (size_t)dump->mesh.world;
  if (dump->microbatches > MICROBATCHES_MAX || dump->microbatches * dump->mesh.world > ADDENDS_MAX)
    return ad_complaints_add(complaints, ad_fail(AD_INVALID,
                                                 "the dump has more addends than can be read: %lld microbatches on "
                                                 "each of %lld ranks; dump fewer microbatches",
                                                 (long long)dump->microbatches, (long long)dump->mesh.world));
  AD_TRY(ad_new(world * (size_t)dump->microbatches, &dump->addends));
  AD_TRY(ad_new(world, &dump->sums));
  for (size_t i = 0; i < dump->count; i++) AD_TRY(ad_complaints_add(complaints, place_file(dump, &dump->files[i])));
  return AD_OK;
}

static ad_status fail_missing(const char *what, int64_t rank, int64_t microbatch) {
  if (microbatch < 0)
    return ad_fail(AD_INVALID, "rank %lld has no %s file in the dump; give the files of all ranks", (long long)rank,
                   what);
  return ad_fail(
      AD_INVALID,
      "rank %lld has no %s file of microbatch %lld in the dump; give the files of all ranks and microbatches",
      (long long)rank, what, (long long)microbatch);
}

/* Reports an error for every rank without a sum file, and for every addend file that is missing. */
static ad_status check_ranks(const ad_dump *dump, ad_complaints *complaints) {
  int64_t count = dump->microbatches;
  for (int64_t rank = 0; rank < dump->mesh.world; rank++) {
    if (!dump->sums[rank]) AD_TRY(ad_complaints_add(complaints, fail_missing("sum", rank, -1)));
    for (int64_t m = 0; m < count; m++)
      if (!dump->addends[rank * count + m])
        AD_TRY(ad_complaints_add(complaints, fail_missing("addend", rank, count > 1 ? m : -1)));
  }
  return AD_OK;
}

/* ---- positions of ranks in the mesh ---- */

/* Sets the position of a file's rank, from addend.coord if the file has it, else from the rank. Files of one rank must
 * agree. */
static ad_status read_position(ad_dump *dump, const ad_dump_file *file) {
  int32_t position[AD_DUMP_AXES] = {0};
  ad_dump_mesh_position(&dump->mesh, file->rank, position);
  ad_status status = file->coord ? ad_dump_mesh_coord(&dump->mesh, file->coord, position) : AD_OK;
  if (status) return ad_fail_in(status, "%s: addend.coord", file->path);
  int32_t *own = dump->position[file->rank];
  if (own[0] >= 0 && memcmp(own, position, sizeof position) != 0)
    return ad_fail(AD_INVALID,
                   "%s: addend.coord differs from the addend.coord of the other files of rank %lld; give all files of "
                   "a rank the same position",
                   file->path, (long long)file->rank);
  memcpy(own, position, sizeof position);
  return AD_OK;
}

/* Fails if two ranks have the same position. `taken` ([world] bytes, zeros) is indexed by a position's ad_dump_key. */
static ad_status check_positions(const ad_dump *dump, unsigned char *taken) {
  for (int64_t rank = 0; rank < dump->mesh.world; rank++) {
    if (dump->position[rank][0] < 0) continue;
    if (taken[ad_dump_key(dump, rank, 0)]++)
      return ad_fail(AD_INVALID,
                     "rank %lld has the same addend.coord as another rank; give each rank a position of its own",
                     (long long)rank);
  }
  return AD_OK;
}

static ad_status read_positions(ad_dump *dump, ad_complaints *complaints) {
  unsigned char *taken;
  AD_TRY(ad_new((size_t)dump->mesh.world, &dump->position));
  for (int64_t rank = 0; rank < dump->mesh.world; rank++) dump->position[rank][0] = -1;
  for (size_t i = 0; i < dump->count; i++)
    if (dump->files[i].kind != AD_DUMP_REFERENCE)
      AD_TRY(ad_complaints_add(complaints, read_position(dump, &dump->files[i])));
  AD_TRY(ad_new((size_t)dump->mesh.world, &taken));
  ad_status status = ad_complaints_add(complaints, check_positions(dump, taken));
  ad_release(taken);
  return status;
}

/* ---- opening and closing a dump ---- */

/* Checks the files in stages, and stops after a stage that found errors, since later stages would only report their
 * consequences. */
static ad_status assemble(ad_dump *dump, int has_reference, ad_complaints *complaints) {
  if (complaints->count) return AD_OK;
  AD_TRY(check_files(dump, complaints));
  if (complaints->count) return AD_OK;
  AD_TRY(place_files(dump, complaints));
  if (complaints->count) return AD_OK;
  AD_TRY(check_ranks(dump, complaints));
  AD_TRY(read_positions(dump, complaints));
  if (!dump->microbatches && !dump->reference && !has_reference)
    AD_TRY(ad_complaints_add(complaints, ad_fail(AD_INVALID,
                                                 "the dump has no addend file and no reference, so the right sums are "
                                                 "not known; dump the addends, or give a reference with --reference")));
  return complaints->count ? AD_OK : ad_dump_params_read(dump, complaints);
}

int ad_dump_is_next(const ad_dump *dump, int64_t rank, int64_t next, int axis) {
  if (dump->position[next][axis] != dump->position[rank][axis] + 1) return 0;
  for (int other = 0; other < dump->mesh.count; other++)
    if (other != axis && dump->position[next][other] != dump->position[rank][other]) return 0;
  return 1;
}

int64_t ad_dump_key(const ad_dump *dump, int64_t rank, uint32_t axes) {
  int64_t key = 0;
  for (int axis = 0; axis < dump->mesh.count; axis++)
    key = key * dump->mesh.size[axis] + (axes >> axis & 1 ? 0 : dump->position[rank][axis]);
  return key;
}

/* Moves an opened dump to *out, or closes it if there is an error. */
static ad_status end_opening(ad_dump *dump, ad_status status, const ad_complaints *complaints, ad_dump *out) {
  if (!status) status = ad_complaints_end(complaints);
  if (status) {
    ad_dump_close(dump);
    return status;
  }
  /* lets the kernel free the memory of the headers' pages */
  for (size_t i = 0; i < dump->count; i++) ad_safetensors_forget(dump->files[i].tensors);
  *out = *dump;
  return AD_OK;
}

ad_status ad_dump_open(const char *const *paths, size_t count, int has_reference, const ad_dump_opening *how,
                       ad_dump *out) {
  ad_dump dump = {.step = -1, .unchecked = how->later && !how->finite};
  ad_complaints complaints = {0};
  ad_status status = open_listed(&dump, paths, count, 0, how, &complaints);
  if (!status) status = assemble(&dump, has_reference, &complaints);
  return end_opening(&dump, status, &complaints, out);
}

/* Closes the addend files of a dump that is used as a reference, since only its sums are needed. */
static void keep_sums(ad_dump *dump) {
  size_t kept = 0;
  for (size_t i = 0; i < dump->count; i++) {
    if (dump->files[i].kind == AD_DUMP_ADDEND)
      ad_dump_file_close(&dump->files[i]);
    else
      dump->files[kept++] = dump->files[i];
  }
  dump->count = kept;
}

ad_status ad_dump_open_reference(const char *const *paths, size_t count, int threads, ad_dump *out) {
  ad_dump dump = {.step = -1};
  ad_complaints complaints = {0};
  ad_status status = open_listed(&dump, paths, count, 1, &(ad_dump_opening){.threads = threads}, &complaints);
  keep_sums(&dump);
  if (!status && !complaints.count && dump.count == 1 && dump.files[0].kind == AD_DUMP_REFERENCE)
    dump.reference = &dump.files[0];
  else if (!status)
    status = assemble(&dump, 1, &complaints);
  return end_opening(&dump, status, &complaints, out);
}

void ad_dump_close(ad_dump *dump) {
  for (size_t i = 0; i < dump->count; i++) ad_dump_file_close(&dump->files[i]);
  ad_release(dump->files);
  ad_release(dump->position);
  ad_release(dump->addends);
  ad_release(dump->sums);
  for (size_t i = 0; i < dump->param_count; i++) ad_release(dump->params[i].declared);
  ad_release(dump->params);
  *dump = (ad_dump){0};
}
