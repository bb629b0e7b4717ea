/* The kinds of programs that recipes may name: the library's own, and then the registered ones. */
#include <pthread.h>
#include <string.h>
#include "base/error.h"
#include "base/text.h"
#include "program/keys.h"
#include "program/program.h"

enum { KINDS_MAX = 32 };

static const ad_program_kind *kinds[KINDS_MAX + 1]; /* NULL follows the last one */
static size_t kind_count, own_count;

static void add_own(void) {
  while (ad_own_programs[kind_count]) {
    kinds[kind_count] = ad_own_programs[kind_count]();
    kind_count++;
  }
  own_count = kind_count;
}

static void need_own(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, add_own);
}

const ad_program_kind *const *ad_program_kinds(void) {
  need_own();
  return kinds;
}

const ad_program_kind *ad_program_kind_find(const char *name) {
  if (!name) return NULL;
  const ad_program_kind *const *kind = ad_program_kinds();
  while (*kind && strcmp((*kind)->name, name) != 0) kind++;
  return *kind;
}

const ad_text_options *ad_program_kind_text(const ad_program_kind *kind, const void *options, int64_t *vocabulary) {
  return AD_GUEST(kind, "sampling.text", kind->sampling.text(options, vocabulary));
}

int ad_program_kind_computes(const ad_program_kind *kind, const char *architecture) {
  const char *const *name = kind->architectures;
  while (name && *name && strcmp(*name, architecture) != 0) name++;
  return name && *name;
}

const ad_program_kind *ad_program_kind_computing(const char *architecture) {
  const ad_program_kind *const *kind = ad_program_kinds();
  while (*kind && !ad_program_kind_computes(*kind, architecture)) kind++;
  return *kind;
}

static int is_sampled(const ad_program_kind *kind) { return kind->sampling.next != NULL; }
static int is_exported(const ad_program_kind *kind) { return kind->architectures != NULL; }

static const char *list_kinds(int (*is_listed)(const ad_program_kind *), const char *between, char *buffer,
                              size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (const ad_program_kind *const *kind = ad_program_kinds(); *kind; kind++)
    if (is_listed(*kind)) ad_text_add(&text, "%s%s", text.used ? between : "", (*kind)->name);
  return buffer;
}

const char *ad_program_kinds_sampled(char *buffer, size_t size) { return list_kinds(is_sampled, ", ", buffer, size); }

const char *ad_program_kinds_exported(char *buffer, size_t size) {
  return list_kinds(is_exported, " and ", buffer, size);
}

int ad_program_kind_is_custom(const ad_program_kind *kind) {
  need_own();
  for (size_t i = 0; i < own_count; i++)
    if (kinds[i] == kind) return 0;
  return 1;
}

const char *const *ad_program_kind_modules(const ad_program_kind *kind) {
  static const char *const one[] = {"model", NULL};
  return kind->modules ? kind->modules : one;
}

ad_status ad_program_kind_check(const ad_program_kind *kind) {
  if (kind->size == sizeof *kind) return AD_OK;
  return ad_fail(AD_INVALID,
                 "ad_program_kind: the field `size` is %zu, but must be sizeof(ad_program_kind), which is %zu in this "
                 "library; set `size`, and build the program with the headers of this library",
                 kind->size, sizeof *kind);
}

static int fits(const ad_program_kind *kind, size_t offset, size_t bytes) {
  return offset <= kind->options_size && bytes <= kind->options_size - offset;
}

/* Checks that the key's value is inside the struct of the options. */
static ad_status check_key(const ad_program_kind *kind, size_t i) {
  const ad_key *key = &kind->keys[i];
  if (!key->path)
    return ad_fail(AD_INVALID, "program `%s`: key %zu (from 0) has no path; set its `path`, such as \"model.layers\"",
                   kind->name, i);
  int is_list = key->list || !ad_key_value_size(key);
  size_t bytes = is_list ? sizeof(void *) : ad_key_value_size(key);
  int has_second = is_list || key->kind == AD_KEY_GRADIENT;
  size_t second = key->kind == AD_KEY_GRADIENT && !key->list ? sizeof(int) : sizeof(size_t);
  if (fits(kind, key->offset, bytes) && (!has_second || fits(kind, key->second, second))) return AD_OK;
  return ad_fail(AD_INVALID,
                 "program `%s`: the value of the key %s is outside the options, which have %zu bytes; set options_size "
                 "to the size of the options' struct",
                 kind->name, key->path, kind->options_size);
}

static ad_status check_keys(const ad_program_kind *kind) {
  if (kind->key_count) AD_NEED_OF("ad_program_register", kind->keys);
  for (size_t i = 0; i < kind->key_count; i++) AD_TRY(check_key(kind, i));
  return AD_OK;
}

static ad_status check_sampling(const ad_program_kind *kind) {
  if (!kind->sampling.next || (kind->sampling.text && kind->sampling.kept_count)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "program `%s` has sampling.next without sampling.text or sampling.kept_count; give all three",
                 kind->name);
}

ad_status ad_program_register(const ad_program_kind *kind) {
  AD_NEED(kind);
  AD_TRY(ad_program_kind_check(kind));
  AD_NEED(kind->name, kind->create, kind->read);
  if (!*kind->name) return ad_fail(AD_INVALID, "the program has an empty name; set `name` of its ad_program_kind");
  AD_TRY(check_keys(kind));
  AD_TRY(check_sampling(kind));
  if (!ad_program_kind_modules(kind)[0])
    return ad_fail(AD_INVALID, "program `%s` has no module; list at least one in `modules`", kind->name);
  if (ad_program_kind_find(kind->name))
    return ad_fail(AD_INVALID, "a program named `%s` is already registered; give this program another name",
                   kind->name);
  if (kind_count == KINDS_MAX)
    return ad_fail(AD_INVALID,
                   "program `%s` cannot be registered, because %d programs, the most that are allowed, are registered "
                   "already; register fewer",
                   kind->name, KINDS_MAX);
  kinds[kind_count++] = kind;
  return AD_OK;
}
