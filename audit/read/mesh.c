/* Meshes of dumps: parses them, and computes ranks and positions on them. */
#include "read/mesh.h"

#include <math.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "layout/type.h"
#include "base/text.h"

static int is_name(const char *text, size_t length) {
  if (!length || length >= AD_DUMP_NAME || isdigit((unsigned char)text[0])) return 0;
  for (size_t i = 0; i < length; i++)
    if (!isalnum((unsigned char)text[i]) && text[i] != '_') return 0;
  return 1;
}

/* Reads the next word of *text as NAME=VALUE. Returns the start of the word, sets *name to the length of NAME, and
 * *value and *length to the start and length of VALUE. If the word has no '=', *name is 0 and the whole word is the
 * value. Returns NULL if no word is left. */
static const char *next_word(const char **text, size_t *name, const char **value, size_t *length) {
  const char *word = *text + strspn(*text, " ");
  size_t all = strcspn(word, " ");
  const char *equals = memchr(word, '=', all);
  *text = word + all;
  *name = equals ? (size_t)(equals - word) : 0;
  *value = equals ? equals + 1 : word;
  *length = equals ? all - *name - 1 : all;
  return all ? word : NULL;
}

static int find_axis(const ad_dump_mesh *mesh, const char *name, size_t length) {
  for (int axis = 0; axis < mesh->count; axis++)
    if (strlen(mesh->name[axis]) == length && !memcmp(mesh->name[axis], name, length)) return axis;
  return -1;
}

/* Returns the value of a decimal number of at most 9 digits, or -1 if the text is no such number. */
static int64_t parse_number(const char *text, size_t length) {
  int64_t value = 0;
  if (!length || length > 9) return -1;
  for (size_t i = 0; i < length; i++) {
    if (!isdigit((unsigned char)text[i])) return -1;
    value = 10 * value + (text[i] - '0');
  }
  return value;
}

/* Appends one axis to the mesh. */
static ad_status add_axis(ad_dump_mesh *mesh, const char *word, size_t name, const char *value, size_t length) {
  int64_t size = parse_number(value, length);
  if (mesh->count == AD_DUMP_AXES)
    return ad_fail(AD_INVALID, "the mesh has more than %d axes, the most that are allowed; name fewer axes",
                   AD_DUMP_AXES);
  if (!is_name(word, name))
    return ad_fail(AD_INVALID, "'%.60s' is not an axis of a mesh; write each axis as NAME=SIZE, as in \"dp=2 tp=4\"",
                   word);
  if (find_axis(mesh, word, name) >= 0)
    return ad_fail(AD_INVALID, "axis `%.*s` is named twice; name each axis once", (int)name, word);
  if (size < 1)
    return ad_fail(AD_INVALID, "axis `%.*s` has size '%.*s'; write 1 or more", (int)name, word, (int)length, value);
  if (mesh->world * size > AD_DUMP_RANKS)
    return ad_fail(AD_INVALID, "the mesh has more than %d ranks, the most that are allowed; write smaller sizes",
                   AD_DUMP_RANKS);
  memcpy(mesh->name[mesh->count], word, name);
  mesh->size[mesh->count++] = size;
  mesh->world *= size;
  return AD_OK;
}

ad_status ad_dump_mesh_parse(const char *text, ad_dump_mesh *out) {
  ad_dump_mesh mesh = {.world = 1};
  const char *word, *value;
  size_t name, length;
  while ((word = next_word(&text, &name, &value, &length))) AD_TRY(add_axis(&mesh, word, name, value, length));
  if (!mesh.count) return ad_fail(AD_INVALID, "the mesh is empty; write at least one axis, as in \"dp=4\"");
  *out = mesh;
  return AD_OK;
}

ad_status ad_dump_mesh_next(const ad_dump_mesh *mesh, const char **text, uint32_t *seen, int *axis, const char **value,
                            size_t *length) {
  size_t name;
  const char *word = next_word(text, &name, value, length);
  *axis = -1;
  if (!word) return AD_OK;
  int found = name ? find_axis(mesh, word, name) : -1;
  if (found < 0)
    return ad_fail(
        AD_INVALID,
        "'%.60s' does not begin with the name of an axis of the mesh; write a position as NAME=INDEX, for example dp=1",
        word);
  if (*seen & 1u << found)
    return ad_fail(AD_INVALID, "axis `%s` is named twice; name each axis once", mesh->name[found]);
  *seen |= 1u << found;
  *axis = found;
  return AD_OK;
}

ad_status ad_dump_mesh_coord(const ad_dump_mesh *mesh, const char *text, int32_t position[AD_DUMP_AXES]) {
  uint32_t seen = 0;
  memset(position, 0, sizeof *position * AD_DUMP_AXES);
  for (;;) {
    int axis;
    const char *value;
    size_t length;
    AD_TRY(ad_dump_mesh_next(mesh, &text, &seen, &axis, &value, &length));
    if (axis < 0) return AD_OK;
    int64_t at = parse_number(value, length);
    if (at < 0 || at >= mesh->size[axis])
      return ad_fail(AD_INVALID, "the position on axis `%s` is '%.*s', but must be from 0 to %lld; write such an index",
                     mesh->name[axis], (int)length, value, (long long)mesh->size[axis] - 1);
    position[axis] = (int32_t)at;
  }
}

void ad_dump_mesh_position(const ad_dump_mesh *mesh, int64_t rank, int32_t position[AD_DUMP_AXES]) {
  for (int axis = mesh->count - 1; axis >= 0; axis--) {
    position[axis] = (int32_t)(rank % mesh->size[axis]);
    rank /= mesh->size[axis];
  }
}

const char *ad_dump_axes_print(const ad_dump_mesh *mesh, uint32_t axes, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (int axis = 0; axis < mesh->count; axis++)
    if (axes >> axis & 1) ad_text_add(&text, "%s%s", text.used ? "," : "", mesh->name[axis]);
  return buffer;
}

const char *ad_dump_ranks_print(const ad_dump_mesh *mesh, const unsigned char *ranks, char *buffer, size_t size) {
  enum { SHOWN = 8 };
  ad_text text = ad_text_on(buffer, size);
  int64_t count = 0, done = 0;
  for (int64_t rank = 0; rank < mesh->world; rank++) count += ranks[rank] != 0;
  ad_text_add(&text, "rank%s ", count == 1 ? "" : "s");
  for (int64_t rank = 0; rank < mesh->world; rank++) {
    if (!ranks[rank] || (count > SHOWN && done > SHOWN - 3)) continue;
    ad_text_add(&text, "%s%lld", !done ? "" : done + 1 == count ? " and " : ", ", (long long)rank);
    done++;
  }
  if (done < count) ad_text_add(&text, ", ... (%lld of %lld)", (long long)count, (long long)mesh->world);
  return buffer;
}

uint32_t ad_large_axes(const ad_dump_mesh *mesh, uint32_t axes) {
  uint32_t large = 0;
  for (int axis = 0; axis < mesh->count; axis++)
    if (axes >> axis & 1 && mesh->size[axis] > 1) large |= 1u << axis;
  return large;
}

int64_t ad_dump_axes_size(const ad_dump_mesh *mesh, uint32_t axes) {
  int64_t ranks = 1;
  for (int axis = 0; axis < mesh->count; axis++)
    if (axes >> axis & 1) ranks *= mesh->size[axis];
  return ranks;
}

/* Returns 1 if the product of the axes' sizes is `size` and each axis is larger than 1. */
static int is_set_of(const ad_dump_mesh *mesh, uint32_t axes, double size) {
  for (int axis = 0; axis < mesh->count; axis++)
    if (axes >> axis & 1 && mesh->size[axis] == 1) return 0;
  return fabs((double)ad_dump_axes_size(mesh, axes) - size) <= 1e-4 * size;
}

size_t ad_dump_axes_of_size(const ad_dump_mesh *mesh, double size, uint32_t first, uint32_t sets[AD_DUMP_SETS]) {
  size_t found = 0;
  for (int count = 1; count <= mesh->count; count++)
    for (int preferred = 1; preferred >= 0; preferred--)
      for (uint32_t axes = 1; axes < 1u << mesh->count; axes++)
        if (__builtin_popcount(axes) == count && (!(axes & ~first)) == preferred && is_set_of(mesh, axes, size))
          sets[found++] = axes;
  return found;
}

/* Parses R, I or S<dim>. */
static ad_status read_type(const char *text, size_t length, int ndim, ad_type *out) {
  if (length == 1 && (*text == 'R' || *text == 'I')) return *out = *text == 'R' ? AD_R : AD_I, AD_OK;
  int dim = length == 2 && *text == 'S' ? text[1] - '0' : -1;
  if (dim < 0 || dim > 9)
    return ad_fail(AD_INVALID, "'%.*s' is not a type; write R, I, or S with a dimension, such as S0", (int)length,
                   text);
  if (dim >= ndim)
    return ad_fail(AD_INVALID,
                   "the type S%d shards dimension %d, but the parameter has only %d dimension%s, numbered from 0; "
                   "correct this type",
                   dim, dim, ndim, ad_plural(ndim));
  return *out = AD_S(dim), AD_OK;
}

ad_status ad_dump_types_parse(const ad_dump_mesh *mesh, const char *text, int ndim, ad_type types[AD_DUMP_AXES],
                              uint32_t *named) {
  *named = 0;
  memset(types, AD_R, sizeof *types * AD_DUMP_AXES);
  for (;;) {
    int axis;
    const char *value;
    size_t length;
    AD_TRY(ad_dump_mesh_next(mesh, &text, named, &axis, &value, &length));
    if (axis < 0) return AD_OK;
    AD_TRY(read_type(value, length, ndim, &types[axis]));
  }
}

ad_status ad_dump_axes_parse(const ad_dump_mesh *mesh, const char *text, uint32_t *out) {
  char axis[AD_DUMP_NAME];
  while (*text) {
    size_t length = strcspn(text, ", ");
    int found = -1;
    snprintf(axis, sizeof axis, "%.*s", (int)length, text);
    for (int a = 0; a < mesh->count; a++)
      if (!strcmp(mesh->name[a], axis)) found = a;
    if (found < 0)
      return ad_fail(AD_INVALID, "'%s' is not an axis of the dump's mesh (addend.mesh); name one of the mesh's axes",
                     axis);
    *out |= 1u << found;
    text += length;
    text += strspn(text, ", ");
  }
  return AD_OK;
}
