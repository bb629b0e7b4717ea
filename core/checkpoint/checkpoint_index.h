/* index.json: which file contains which slice of which value. The file begins with the XXH64 checksum of the bytes that
 * follow. */
#ifndef CHECKPOINT_CHECKPOINT_INDEX_H
#define CHECKPOINT_CHECKPOINT_INDEX_H
#include <jansson.h>
#include "addend/checkpoint.h"
#include "array/part.h"
#include "files/output.h"

/* Returns 1 if `rank` writes a piece of this value: it has a part of the value, and no lower rank has the same part. */
int ad_piece_is_written(const ad_array *array, int64_t rank);
/* Prints the name of a rank's file: "rank-R.safetensors". */
void ad_shard_name(int64_t rank, char *buffer, size_t size);

/* ---- writing index.json ---- */

/* Makes the index without the sizes and checksums of the files. The layouts determine which rank writes which piece.
 * Release with json_decref. */
AD_CHECKED ad_status ad_index_describe(const ad_group *group, const ad_checkpoint_state *state, json_t **out);
/* Adds the sizes and checksums of the files to the index; sums[i] is for the file of the group's member i. */
AD_CHECKED ad_status ad_index_add_sums(json_t *index, const ad_file_sum *sums);
/* Writes the index to `path`; returns when it is on disk. */
AD_CHECKED ad_status ad_index_write(const json_t *index, const char *path);

/* ---- reading index.json ---- */

/* Reads an index. Returns AD_IO if the file is missing, damaged or of another version. Release with json_decref. */
AD_CHECKED ad_status ad_index_read(const char *path, json_t **out);
size_t ad_index_file_count(const json_t *index);
/* Finds file number i of the index. Returns AD_IO if its name is not plain, because such a name could lead out of the
 * folder. */
AD_CHECKED ad_status ad_index_file(const json_t *index, size_t i, const char **name, ad_file_sum *out);
/* Compares the values in the index with those of a state. Returns AD_INVALID, with their names, if values are missing
 * from the checkpoint, are only in the checkpoint, or have another shape. */
AD_CHECKED ad_status ad_index_match(const json_t *index, const ad_checkpoint_state *state);
/* Returns AD_IO if the step in the index differs from `step`, which is in the folder's name. */
AD_CHECKED ad_status ad_index_check_step(const json_t *index, int64_t step);
/* Returns AD_IO if the number of ranks in the index differs from that of the mesh in the index. */
AD_CHECKED ad_status ad_index_check_ranks(const json_t *index);
/* Returns AD_IO if `dtype`, the value's dtype in its file, differs from the dtype in the index. */
AD_CHECKED ad_status ad_index_check_dtype(const json_t *index, const char *name, ad_dtype dtype);
/* Calls state->judge with the facts in the index, and returns the status of that call. */
AD_CHECKED ad_status ad_index_judge(const json_t *index, const ad_checkpoint_state *state);
/* Sets the state's step and its numbers from the index. */
AD_CHECKED ad_status ad_index_numbers(const json_t *index, ad_checkpoint_state *state);
/* ad_index_pieces returns the list of a value's pieces. ad_index_piece finds, for one piece, its elements and its
 * file. */
const json_t *ad_index_pieces(const json_t *index, const char *name);
AD_CHECKED ad_status ad_index_piece(const json_t *index, const json_t *piece, const ad_shape *shape, ad_part *part,
                                    size_t *file);

#endif
