/* Facts of a message, and its sentence in the golden file. */
#include "says.h"

#include <ctype.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { LONGEST = 1 << 16, NAMES = 128 };
static _Thread_local char wrong[2 * LONGEST];

static const char *const AXES[] = {"pp", "dp", "cp", "tp", "ep", "etp", "sp", "efsdp", "bool"};

static const char *report(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(wrong, sizeof wrong, format, arguments);
  va_end(arguments);
  return wrong;
}

static int is_of_a_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

static int is_option(const char *fact) {
  return *fact == '-' && (isalpha((unsigned char)fact[1]) || (fact[1] == '-' && isalpha((unsigned char)fact[2])));
}

// The fact as a whole name, option or number in the text; NULL if it is not there.
static const char *find(const char *text, const char *fact) {
  size_t length = strlen(fact);
  int option = is_option(fact);
  for (const char *at = text; (at = strstr(at, fact)); at++) {
    int begins = at == text || !is_of_a_name(at[-1]) || !is_of_a_name(*fact);
    int ends = !is_of_a_name(at[length]) || !is_of_a_name(fact[length - 1]);
    if (option) begins = at == text || (!is_of_a_name(at[-1]) && at[-1] != '-'), ends = ends && at[length] != '-';
    if (begins && ends) return at;
  }
  return NULL;
}

static int is_quoted(const char *text, const char *fact) {
  size_t length = strlen(fact);
  for (const char *at = text; (at = strstr(at, fact)); at++)
    if (at != text && strchr("`\"'", at[-1]) && at[length] == at[-1]) return 1;
  return 0;
}

// The subject of a message: `rotary` in "rotary: ..." and in "mine.c:7: rotary: ...".
static int is_subject(const char *text, const char *fact) {
  size_t length = strlen(fact);
  for (const char *at = text; (at = strstr(at, fact)); at++)
    if (at[length] == ':' && (at == text + strspn(text, " ") || (at - text > 1 && !strncmp(at - 2, ": ", 2)))) return 1;
  return 0;
}

// An axis, or several with commas between them.
static int is_of_axes(const char *fact) {
  for (size_t length; *fact; fact += length + (fact[length] == ',')) {
    int is_axis = 0;
    length = strcspn(fact, ",");
    for (size_t i = 0; i < sizeof AXES / sizeof *AXES; i++)
      is_axis |= length == strlen(AXES[i]) && !strncmp(fact, AXES[i], length);
    if (!is_axis) return 0;
  }
  return 1;
}

static int is_fact(const char *text, const char *fact) {
  if (is_quoted(text, fact) || *fact == '[' || is_option(fact)) return 1;
  const char *space = strchr(fact, ' ');
  if (!space && is_subject(text, fact)) return 1;
  if (space && strchr(space + 1, ' ')) return 0;
  if (is_of_axes(fact)) return 1;
  for (const char *c = fact; *c; c++)
    if (isdigit((unsigned char)*c) || isupper((unsigned char)*c) || strchr("/.=_", *c) || *c & 0x80) return 1;
  return 0;
}

// Digits and a point, perhaps with a sign.
static int is_number(const char *fact) {
  size_t sign = *fact == '-';
  return fact[sign] && fact[strspn(fact + sign, "0123456789.") + sign] == 0;
}

const char *says_missing(const char *text, const char *const *facts) {
  const char *after = text; /* the number before */
  for (; *facts; facts++) {
    const char *at = find(text, *facts);
    if (!at) return report("\"%s\" does not say %s", text, *facts);
    if (is_number(*facts)) {
      at = find(after, *facts);
      if (!at) return report("\"%s\" says %s in another order among its numbers", text, *facts);
      after = at + strlen(*facts);
    }
    if (!is_fact(text, *facts))
      return report(
          "\"%s\" is prose: name a fact of the message (tests/support/says.h), and put its sentence into the "
          "golden file",
          *facts);
  }
  return NULL;
}

// The length of a path's beginning that differs from run to run: this source tree, or one name in a folder for temporary
// files; 0 if it has none.
static size_t length_of_place(const char *path) {
  const char *const roots[] = {getenv("TMPDIR"), "/tmp", "/dev/shm", "/var/tmp"};
  size_t source = strlen(AD_TEST_SOURCE);
  if (!strncmp(path, AD_TEST_SOURCE, source) && !is_of_a_name(path[source])) return source;
  for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
    size_t length = roots[i] ? strlen(roots[i]) : 0;
    if (length && !strncmp(path, roots[i], length) && path[length] == '/') {
      length++;
      while (is_of_a_name(path[length]) || (path[length] && strchr(".-+@", path[length]))) length++;
      return length;
    }
  }
  return 0;
}

// The length of a checksum or a random name: 8 or more hexadecimal digits that are no part of a name, not all letters.
static size_t length_of_random(const char *text, const char *at) {
  enum { SHORTEST = 8 };
  size_t length = strspn(at, "0123456789abcdef"), letters = strspn(at, "abcdef");
  int is_whole = (at == text || !is_of_a_name(at[-1])) && !is_of_a_name(at[length]);
  return is_whole && length >= SHORTEST && letters < length ? length : 0;
}

// The length of a number that is no part of a name: digits, a fraction, an exponent, as far as it is not followed by more of a name.
static size_t length_of_number(const char *text, const char *at) {
  static const char digits[] = "0123456789";
  size_t whole = strspn(at, digits), length = whole;
  if (!whole || (at != text && is_of_a_name(at[-1]))) return 0;
  if (at[length] == '.') length += 1 + strspn(at + length + 1, digits);
  if (at[length - 1] == '.') length--;
  if (at[length] == 'e') {
    size_t sign = at[length + 1] == '-' || at[length + 1] == '+';
    size_t exponent = strspn(at + length + 1 + sign, digits);
    if (exponent) length += 1 + sign + exponent;
  }
  return is_of_a_name(at[length]) ? whole : length;
}

// A message as the golden file has it: on one line, without numbers and random names.
static void make_sentence(const char *text, char *sentence) {
  char *to = sentence, *const end = sentence + LONGEST - 8;
  for (const char *at = text; *at && to < end;) {
    size_t place = *at == '/' && (at == text || !is_of_a_name(at[-1])) ? length_of_place(at) : 0;
    size_t random = length_of_random(text, at), number = random ? 0 : length_of_number(text, at);
    if (place) {
      to = stpcpy(to, "...");
      at += place;
    } else if (random || number) {
      *to++ = '#';
      at += random + number;
    } else if (*at == '\n' || *at == '\033') {
      to = stpcpy(to, *at == '\n' ? "\\n" : "\\e");
      at++;
    } else {
      *to++ = *at++;
    }
  }
  *to = 0;
}

// LAYER and STEM of tests/LAYER/test_STEM.c
static void make_names(const char *file, char *layer, char *stem) {
  const char *base = strrchr(file, '/');
  if (!base) abort();
  const char *folder = base;
  while (folder != file && folder[-1] != '/') folder--;
  snprintf(layer, NAMES, "%.*s", (int)(base - folder), folder);
  base += strncmp(base + 1, "test_", 5) ? 1 : 6;
  snprintf(stem, NAMES, "%.*s", (int)strcspn(base, "."), base);
}

static char *read_all(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) return NULL;
  char *text = NULL;
  size_t size = 0;
  ssize_t length = getdelim(&text, &size, 0, file);
  fclose(file);
  if (length < 0) free(text), text = NULL;
  return text;
}

// The list of a function: its head "STEM.FUNCTION", then lines that begin with a blank.
static int is_listed(const char *path, const char *head, const char *sentence) {
  char *text = read_all(path), *line = text;
  int inside = 0, found = 0;
  for (; line && *line && !found; line += strlen(line) + 1) {
    char *end = strchrnul(line, '\n');
    int is_last = !*end;
    *end = 0;
    if (*line != ' ')
      inside = !strcmp(line, head);
    else
      found = inside && !strcmp(line + 2, sentence);
    if (is_last) break;
  }
  free(text);
  return found;
}

// A line in the file of this process that script/golden reads. A test's own limit on the size of files does not count.
static void record(const char *folder, const char *layer, const char *head, const char *sentence) {
  char path[4096], *line;
  struct rlimit of_test, widest;
  if (getrlimit(RLIMIT_FSIZE, &of_test)) abort();
  widest = (struct rlimit){of_test.rlim_max, of_test.rlim_max};
  setrlimit(RLIMIT_FSIZE, &widest);
  snprintf(path, sizeof path, "%s/said-%d", folder, (int)getpid());
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
  int length = asprintf(&line, "%s\t%s\t%s\n", layer, head, sentence);
  if (file < 0 || length < 0 || write(file, line, (size_t)length) != length) abort();
  close(file);
  free(line);
  setrlimit(RLIMIT_FSIZE, &of_test);
}

static const char *compare(const char *text, const char *file, const char *function) {
  char sentence[LONGEST], layer[NAMES], stem[NAMES], head[3 * NAMES], path[4096];
  make_sentence(text, sentence);
  make_names(file, layer, stem);
  snprintf(head, sizeof head, "%s.%s", stem, function);
  const char *folder = getenv("ADDEND_GOLDEN");
  if (folder) {
    record(folder, layer, head, sentence);
    return NULL;
  }
  snprintf(path, sizeof path, AD_TEST_SOURCE "/tests/golden/%s.txt", layer);
  if (is_listed(path, head, sentence)) return NULL;
  return report(
      "tests/golden/%s.txt does not list, for %s:\n  %s\nIf it should say so: script/golden %s, and read the diff",
      layer, head, sentence, layer);
}

const char *says_wrong(const char *text, const char *const *facts, const char *file, const char *function) {
  const char *missing = says_missing(text, facts);
  return missing ? missing : compare(text, file, function);
}

const char *says_wrong_line(const char *text, const char *const *facts, const char *file, const char *function) {
  char line[LONGEST];
  for (const char *at = text; *at;) {
    size_t length = strcspn(at, "\n");
    snprintf(line, sizeof line, "%.*s", (int)length, at);
    const char *const *fact = facts;
    while (*fact && find(line, *fact)) fact++;
    if (!*fact) return says_wrong(line, facts, file, function);
    at += length + (at[length] == '\n');
  }
  char *end = line;
  for (; *facts; facts++) end += snprintf(end, sizeof line - (size_t)(end - line), " %s", *facts);
  return report("no line has%s:\n%s", line, text);
}

void says_or_fail(const char *reason, const char *file, int line) {
  if (!reason) return;
  print_error("%s\n", reason);
  _fail(file, line);
}
