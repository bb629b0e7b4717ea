/* Splits a parameter's sums into parts (elements with the same bits on one or several ranks), and reads values of
 * parts and addends from the files. */
#include "read/part.h"

#include <math.h>
#include <string.h>
#include "base/error.h"
#include "kernels/finite.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/roundoff.h"
#include "addend/safetensors.h"

/* ---- members: the ranks whose addends are summed together ---- */

int64_t ad_parts_key(const ad_parts *parts, int64_t rank) {
  return ad_dump_key(parts->dump, rank, parts->param->summed);
}

/* Appends the addend of one rank and microbatch to the members' columns, if the rank's file has the parameter. */
static ad_status add_column(ad_parts *parts, ad_members *members, int64_t rank, int64_t microbatch) {
  const ad_dump_file *file = parts->dump->addends[rank * parts->dump->microbatches + microbatch];
  ad_column *column = &members->columns[members->count];
  int there;
  AD_TRY(ad_dump_piece(parts->dump, parts->param, file, &column->piece, &there));
  if (!there) return AD_OK;
  column->divisor = file->divisor;
  members->ranks[members->count++] = (int32_t)rank;
  return ad_sampled_find(&parts->sampled, parts->param, &column->piece.box, &column->piece.sampled);
}

/* Checks that a tensor's values are finite, in a dump whose values were not checked when it was opened. */
static ad_status check_tensor(ad_parts *parts, const ad_safetensor *tensor) {
  size_t numel = (size_t)ad_shape_numel(&tensor->shape);
  if (!parts->dump->unchecked) return AD_OK;
  parts->checked++;
  if (ad_first_not_finite(tensor->data, tensor->dtype, numel) == numel) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the tensor \"%.80s\" has values that are not finite (NaN or infinity), so its counts cannot be "
                 "found; dump a step with finite gradients",
                 parts->param->name);
}

static ad_status check_columns(ad_parts *parts, const ad_members *members) {
  for (size_t c = 0; c < members->count && parts->dump->unchecked; c++) {
    if (c + 1 < members->count) ad_piece_expect(&members->columns[c + 1].piece, (size_t)parts->param->sample);
    AD_TRY(check_tensor(parts, members->columns[c].piece.tensor));
  }
  return AD_OK;
}

/* Checks the values of the tensors that belong to no part of the sum; does nothing if all tensors were checked
 * already. */
static ad_status check_others(ad_parts *parts) {
  const ad_dump *dump = parts->dump;
  if (!dump->unchecked || parts->checked == (size_t)(dump->mesh.world * (dump->microbatches + 1))) return AD_OK;
  for (size_t i = 0; i < dump->count; i++) {
    const ad_dump_file *file = &dump->files[i];
    const ad_safetensor *tensor = ad_safetensors_find(file->tensors, parts->param->name);
    if (tensor && file->kind != AD_DUMP_REFERENCE) AD_TRY(check_tensor(parts, tensor));
  }
  return AD_OK;
}

/* Returns the product T S, for a bound on the error inside addends that are sums themselves (addend.inside), whose
 * terms the job may add in another order. T is the total number of terms, S the sum of the addends' largest absolute
 * sums. With unit roundoff u, the order can change the result by T u S. */
static double inside_of(const ad_parts *parts, const ad_members *members) {
  double terms = 0, size = 0;
  for (size_t i = 0; i < members->count; i++) {
    const ad_piece *piece = &members->columns[i].piece;
    const ad_dump_file *file = parts->dump->addends[piece->rank * parts->dump->microbatches + piece->microbatch];
    if (!file->inside) continue;
    const json_t *inside = json_object_get(file->inside, parts->param->name);
    terms += json_number_value(json_array_get(inside, 0));
    size += json_number_value(json_array_get(inside, 1));
  }
  return terms * size;
}

/* Returns the box of the addends, if all addends of these members have the same box; else, or if there are no
 * addends, NULL. */
static const ad_box *common_box(const ad_parts *parts, const ad_members *members) {
  for (size_t i = 1; i < members->count; i++)
    if (!ad_box_equal(&parts->param->shape, &members->columns[i].piece.box, &members->columns[0].piece.box))
      return NULL;
  return members->count ? &members->columns[0].piece.box : NULL;
}

void ad_members_measure(const ad_parts *parts, ad_members *members) {
  ad_dtype before = 0;
  members->unit = members->smallest = 0;
  members->inside = inside_of(parts, members);
  members->box = common_box(parts, members);
  for (size_t i = 0; i < members->count; i++) {
    ad_dtype dtype = members->columns[i].piece.tensor->dtype;
    if (dtype == before) continue;
    members->unit = fmax(members->unit, ad_unit_roundoff(dtype));
    members->smallest = fmax(members->smallest, ad_smallest_number(dtype));
    before = dtype;
  }
}

enum { AHEAD = 4 }; /* how many files ahead of their use data is prefetched */

/* Prefetches, in three stages, the data that is needed to find tensors in the files after files[at]. */
static void expect_files(const ad_dump_file *const *files, size_t at, size_t count) {
  if (at + 3 * AHEAD < count) __builtin_prefetch(files[at + 3 * AHEAD], 0, 2);
  if (at + 2 * AHEAD < count) ad_safetensors_expect(files[at + 2 * AHEAD]->tensors);
  if (at + AHEAD < count) ad_safetensors_expect_tensors(files[at + AHEAD]->tensors);
}

/* Lists the addends of all ranks whose ad_parts_key is members->key. */
static ad_status fill_members(ad_parts *parts, ad_members *members) {
  const ad_dump *dump = parts->dump;
  size_t all = (size_t)(dump->mesh.world * dump->microbatches);
  size_t most = (size_t)(ad_dump_axes_size(&dump->mesh, parts->param->summed) * dump->microbatches);
  AD_TRY(ad_new(most, &members->columns));
  AD_TRY(ad_new(most, &members->ranks));
  for (int64_t rank = 0; rank < dump->mesh.world; rank++) {
    if (ad_parts_key(parts, rank) != members->key) continue;
    for (int64_t m = 0; m < dump->microbatches; m++) {
      expect_files(dump->addends, (size_t)(rank * dump->microbatches + m), all);
      AD_TRY(add_column(parts, members, rank, m));
    }
  }
  AD_TRY(check_columns(parts, members));
  ad_members_measure(parts, members);
  return AD_OK;
}

/* Sets *out to the index of the rank's members (the ranks that are summed with it); makes a new entry if there is
 * none. */
static ad_status find_members(ad_parts *parts, int64_t rank, size_t *out) {
  int64_t key = ad_parts_key(parts, rank);
  for (*out = 0; *out < parts->member_count; ++*out)
    if (parts->members[*out].key == key) return AD_OK;
  AD_TRY(ad_grow(&parts->members, parts->member_count, parts->member_count + 1));
  ad_members *members = &parts->members[parts->member_count++];
  *members = (ad_members){.key = key};
  return fill_members(parts, members);
}

/* ---- parts: sums that are the same on several ranks ---- */

/* Returns the rank whose position equals that of `rank` on all axes but those in `partial`; its position on the axes
 * `partial` has the row-major number `index`. */
static int64_t rank_beside(const ad_dump *dump, int64_t rank, uint32_t partial, int64_t index) {
  const ad_dump_mesh *mesh = &dump->mesh;
  int32_t place[AD_DUMP_AXES];
  memcpy(place, dump->position[rank], sizeof place);
  for (int axis = mesh->count - 1; axis >= 0; axis--) {
    if (!(partial >> axis & 1)) continue;
    place[axis] = (int32_t)(index % mesh->size[axis]);
    index /= mesh->size[axis];
  }
  for (int64_t other = 0; other < mesh->world; other++)
    if (!memcmp(dump->position[other], place, sizeof place)) return other;
  return rank;
}

/* Lists the tensors that add up to `rank`'s sum: the rank's own tensor or, if the sum is partial, those of all ranks
 * along the axes of `partial`. */
static ad_status find_terms(ad_parts *parts, int64_t rank, ad_piece *terms, size_t *count) {
  const ad_dump *dump = parts->dump;
  uint32_t partial = parts->param->partial;
  int64_t ranks = ad_dump_axes_size(&dump->mesh, partial);
  *count = 0;
  for (int64_t i = 0; i < ranks; i++) {
    int64_t other = partial ? rank_beside(dump, rank, partial, i) : rank;
    int there;
    ad_piece *term = &terms[*count];
    AD_TRY(ad_dump_piece(dump, parts->param, dump->sums[other], term, &there));
    if (!there) continue;
    AD_TRY(ad_sampled_find(&parts->sampled, parts->param, &term->box, &term->sampled));
    if (*count && !ad_box_equal(&parts->param->shape, &term->box, &terms[0].box))
      return ad_fail(
          AD_INVALID,
          "addend.partial of \"%.80s\" declares that the values of ranks %lld and %lld are addends of one sum, but the "
          "two ranks hold different parts of the parameter; correct addend.partial or the parts",
          parts->param->name, (long long)rank, (long long)other);
    ++*count;
  }
  return AD_OK;
}

/* Finds a part of the sum with the same bits, members and box as `like`. Searches from the last part back, since
 * neighbouring ranks mostly hold the same part. */
static ad_part *find_part(ad_parts *parts, const ad_part *like) {
  for (size_t i = parts->count; i-- > 0;) {
    ad_part *part = &parts->parts[i];
    if (part->bits == like->bits && part->members == like->members &&
        ad_box_equal(&parts->param->shape, &part->box, &like->box))
      return part;
  }
  return NULL;
}

/* Returns 1 if the tensors `terms` have the same bytes as the terms of `part`. The part's checksum and value checks
 * are then valid for `terms` too. */
static int repeats(const ad_part *part, const ad_piece *terms, size_t count) {
  if (part->term_count != count) return 0;
  for (size_t i = 0; i < count; i++) {
    const ad_safetensor *a = part->terms[i].tensor, *b = terms[i].tensor;
    if (a->dtype != b->dtype || a->bytes != b->bytes || memcmp(a->data, b->data, a->bytes) != 0) return 0;
  }
  return 1;
}

/* Computes the checksum *out of a rank's sum and checks the sum's values. `before` is the part that an earlier rank
 * holds, or NULL. */
static ad_status find_bits(ad_parts *parts, const ad_part *before, const ad_piece *terms, size_t count, uint64_t *out) {
  if (before && repeats(before, terms, count)) {
    parts->checked += count;
    return *out = before->bits, AD_OK;
  }
  *out = 0;
  for (size_t i = 0; i < count; i++) {
    const ad_safetensor *tensor = terms[i].tensor;
    *out = ad_checksum(tensor->data, tensor->bytes, *out + (uint64_t)tensor->dtype);
    AD_TRY(check_tensor(parts, tensor));
  }
  return AD_OK;
}

/* Finds the part of the sum that consists of the tensors `terms`, or adds a new part; *out is NULL for an empty box.
 * `before` is the part of an earlier rank, or NULL. */
static ad_status take_part(ad_parts *parts, int64_t rank, const ad_part *before, const ad_piece *terms, size_t count,
                           ad_part **out) {
  ad_part like = {.box = terms[0].box, .sampled = terms[0].sampled};
  AD_TRY(find_bits(parts, before, terms, count, &like.bits));
  like.count = like.sampled ? like.sampled->count : (size_t)ad_box_numel(&parts->param->shape, &like.box);
  like.terms = terms;
  like.term_count = count;
  *out = NULL;
  if (!like.count) return AD_OK;
  AD_TRY(find_members(parts, rank, &like.members));
  *out = find_part(parts, &like);
  if (!*out) {
    *out = &parts->parts[parts->count++];
    **out = like;
  }
  ++(*out)->holder_count;
  return AD_OK;
}

/* Returns 1 if this rank is the first of those ranks whose tensors add up to one partial sum; the first rank
 * represents all of them. */
static int leads(const ad_parts *parts, int64_t rank) {
  for (int axis = 0; axis < parts->dump->mesh.count; axis++)
    if (parts->param->partial >> axis & 1 && parts->dump->position[rank][axis]) return 0;
  return 1;
}

/* Finds the part of the sum that each rank holds. All tensors are located first, so that the next rank's sum can be
 * prefetched while one is read. */
static ad_status take_parts(ad_parts *parts, size_t *counts, ad_part **part_of) {
  ad_piece *terms = parts->terms;
  int64_t world = parts->dump->mesh.world;
  for (int64_t rank = 0; rank < world; rank++) {
    expect_files(parts->dump->sums, (size_t)rank, (size_t)world);
    if (leads(parts, rank)) AD_TRY(find_terms(parts, rank, terms, &counts[rank]));
    terms += counts[rank];
  }
  const ad_piece *end = terms;
  const ad_part *before = NULL;
  terms = parts->terms;
  for (int64_t rank = 0; rank < world; rank++) {
    const ad_piece *next = terms + counts[rank];
    if (next < end) ad_piece_expect(next, (size_t)parts->param->sample);
    if (counts[rank]) AD_TRY(take_part(parts, rank, before, terms, counts[rank], &part_of[rank]));
    if (part_of[rank]) before = part_of[rank];
    terms += counts[rank];
  }
  return AD_OK;
}

/* Lists the holders of each part of the sum: the ranks that hold it. */
static void list_holders(ad_parts *parts, ad_part *const *part_of) {
  int64_t *next = parts->holders;
  for (size_t i = 0; i < parts->count; i++) {
    parts->parts[i].holders = next;
    next += parts->parts[i].holder_count;
    parts->parts[i].holder_count = 0;
  }
  for (int64_t rank = 0; rank < parts->dump->mesh.world; rank++)
    if (part_of[rank]) part_of[rank]->holders[part_of[rank]->holder_count++] = rank;
}

static ad_status find_parts(ad_parts *parts) {
  size_t world = (size_t)parts->dump->mesh.world;
  ad_part **part_of;
  size_t *counts;
  AD_TRY(ad_new(world, &parts->parts));
  AD_TRY(ad_new(world, &parts->terms));
  AD_TRY(ad_new(world, &parts->holders));
  AD_TRY(ad_new(world, &part_of));
  ad_status status = ad_new(world, &counts);
  if (!status) {
    status = take_parts(parts, counts, part_of);
    ad_release(counts);
  }
  if (!status) list_holders(parts, part_of);
  ad_release(part_of);
  return status;
}

/* Checks that the box of every addend contains the boxes of the sums to which the addend belongs. */
static ad_status check_cover(const ad_parts *parts) {
  for (size_t i = 0; i < parts->count; i++) {
    const ad_part *part = &parts->parts[i];
    const ad_members *members = ad_part_members(parts, part);
    if (members->box && ad_box_contains(&parts->param->shape, members->box, &part->box)) continue;
    for (size_t c = 0; c < members->count; c++)
      if (!ad_box_contains(&parts->param->shape, &members->columns[c].piece.box, &part->box))
        return ad_fail(AD_INVALID,
                       "the sum of \"%.80s\" on rank %lld has elements that the addend of rank %lld does not have, "
                       "although both ranks hold the same part by addend.types; correct addend.types or the parts",
                       parts->param->name, (long long)part->holders[0], (long long)members->columns[c].piece.rank);
  }
  return AD_OK;
}

ad_status ad_parts_create(const ad_dump *dump, const ad_dump_param *param, ad_parts *out) {
  ad_parts parts = {.dump = dump, .param = param};
  ad_status status = ad_new_unset(5 * AD_ROWS, &parts.buffer);
  if (!status) parts.rows = parts.buffer + AD_ROWS;
  if (!status) status = ad_new(1, &parts.firsts);
  if (!status) status = find_parts(&parts);
  if (!status) status = check_others(&parts);
  if (!status) status = check_cover(&parts);
  if (status) {
    ad_parts_destroy(&parts);
    return status;
  }
  *out = parts;
  return AD_OK;
}

void ad_parts_destroy(ad_parts *parts) {
  for (size_t i = 0; i < parts->member_count; i++) {
    ad_release(parts->members[i].columns);
    ad_release(parts->members[i].ranks);
  }
  ad_release(parts->members);
  ad_sampled_clear(&parts->sampled);
  ad_release(parts->parts);
  ad_release(parts->terms);
  ad_release(parts->holders);
  ad_release(parts->buffer);
  if (parts->firsts) ad_release(parts->firsts->values);
  ad_release(parts->firsts);
}

const ad_members *ad_part_members(const ad_parts *parts, const ad_part *part) { return &parts->members[part->members]; }

int ad_part_is_first_of_its_box(const ad_parts *parts, size_t index) {
  for (size_t i = 0; i < index; i++)
    if (ad_box_equal(&parts->param->shape, &parts->parts[i].box, &parts->parts[index].box)) return 0;
  return 1;
}

/* ---- reading values of parts and addends ---- */

enum {
  LINE = 64 /* bytes of a cache line */,
  EXPECTED = 1 << 14 /* bytes to prefetch; beyond these the processor prefetches by itself */
};

void ad_piece_expect(const ad_piece *piece, size_t elements) {
  const char *data = piece->tensor->data;
  size_t bytes = elements * ad_dtype_size(piece->tensor->dtype);
  if (bytes > piece->tensor->bytes) bytes = piece->tensor->bytes;
  if (bytes > EXPECTED) bytes = EXPECTED;
  for (size_t at = 0; at < bytes; at += LINE) __builtin_prefetch(data + at, 0, 2);
}

/* Reads `count` values of a tensor, as f64, from element `at` on. Data in a mapped file need not be aligned. */
static void read_run(const ad_safetensor *tensor, size_t at, size_t count, double *out) {
  enum { RUN = 512 };
  char aligned[RUN * sizeof(double)] __attribute__((aligned(64)));
  size_t size = ad_dtype_size(tensor->dtype);
  const char *from = (const char *)tensor->data + at * size;
  if ((uintptr_t)from % size == 0) {
    ad_cast(out, AD_F64, from, tensor->dtype, count);
    return;
  }
  for (size_t done = 0; done < count; done += RUN) {
    size_t n = count - done < RUN ? count - done : RUN;
    memcpy(aligned, from + done * size, n * size);
    ad_cast(out + done, AD_F64, aligned, tensor->dtype, n);
  }
}

/* Returns the row-major index, in the box `outer`, of element `element` of the box `inner`. *run is set to how many
 * elements from there on are contiguous in both boxes. */
static size_t place_in(const ad_shape *shape, const ad_box *outer, const ad_box *inner, size_t element, size_t *run) {
  size_t place = 0, stride = 1, left = element, same = 1, in_run = 0;
  int continues = 1;
  for (int dim = shape->ndim - 1; dim >= 0; dim--) {
    size_t count = (size_t)inner->count[dim], digit = left % count;
    left /= count;
    place += ((size_t)(inner->first[dim] - outer->first[dim]) + digit) * stride;
    stride *= (size_t)outer->count[dim];
    if (!continues) continue;
    in_run += digit * same;
    same *= count;
    continues = inner->count[dim] == outer->count[dim];
  }
  *run = same - in_run;
  return place;
}

/* Reads elements [begin, end) of a part whose parameter is not sampled. */
static void read_full(const ad_shape *shape, const ad_part *part, const ad_piece *piece, size_t begin, size_t end,
                      double *out) {
  while (begin < end) {
    size_t run, place = place_in(shape, &piece->box, &part->box, begin, &run);
    if (run > end - begin) run = end - begin;
    read_run(piece->tensor, place, run, out);
    begin += run;
    out += run;
  }
}

/* Reads samples [begin, end) of a part, from a tensor that has at least the part's samples. */
static void read_sampled(const ad_part *part, const ad_piece *piece, size_t begin, size_t end, double *out) {
  const int64_t *wanted = part->sampled->numbers, *there = piece->sampled->numbers;
  if (begin == end) return;
  if (piece->sampled == part->sampled) {
    read_run(piece->tensor, begin, end - begin, out);
    return;
  }
  size_t place = ad_sample_place(piece->sampled, wanted[begin]);
  while (begin < end) {
    size_t run = 1;
    while (there[place] != wanted[begin]) place++;
    while (begin + run < end && there[place + run] == wanted[begin + run]) run++;
    read_run(piece->tensor, place, run, out);
    begin += run;
    place += run;
    out += run;
  }
}

void ad_part_read(const ad_parts *parts, const ad_part *part, const ad_piece *piece, size_t begin, size_t end,
                  double *out) {
  if (part->sampled)
    read_sampled(part, piece, begin, end, out);
  else
    read_full(&parts->param->shape, part, piece, begin, end, out);
}

const float *ad_part_floats(const ad_parts *parts, const ad_part *part, const ad_piece *piece, size_t begin) {
  const ad_safetensor *tensor = piece->tensor;
  int is_identical =
      part->sampled ? piece->sampled == part->sampled : ad_box_equal(&parts->param->shape, &piece->box, &part->box);
  if (!is_identical || tensor->dtype != AD_F32 || (uintptr_t)tensor->data % sizeof(float)) return NULL;
  return (const float *)tensor->data + begin;
}

void ad_part_read_sum(const ad_parts *parts, const ad_part *part, size_t begin, size_t end, double *out) {
  ad_part_read(parts, part, &part->terms[0], begin, end, out);
  for (size_t t = 1; t < part->term_count; t++) {
    ad_part_read(parts, part, &part->terms[t], begin, end, parts->buffer);
    for (size_t i = 0; i < end - begin; i++) out[i] += parts->buffer[i];
  }
}

int64_t ad_part_flat(const ad_parts *parts, const ad_part *part, size_t element) {
  const ad_dump_param *param = parts->param;
  ad_box full = ad_box_full(&param->shape);
  size_t run;
  if (!part->sampled) return (int64_t)place_in(&param->shape, &full, &part->box, element, &run);
  return ad_sample_element(ad_sample_hash(param->name), part->sampled->numbers[element], param->sample, param->numel);
}
